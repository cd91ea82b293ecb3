"""Axes of the matrix, its groups and the pairwise selection.

A group is one built model: (model, values, labels). Every group is asked in every form and over every protocol, so one
group is ``len(FORMS) * len(PROTOCOLS)`` cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

MODELS = ("lightgbm", "xgboost", "tree", "forest", "histgradient", "linear", "pipeline", "torch", "onnx")
VALUES = ("float32", "float64", "int64", "missing", "text", "constant")
LABELS = ("0/1", "text", "boolean", "-1/1", "1..3", "regression")
FORMS = ("many rows", "one row", "no rows")
PROTOCOLS = ("json", "binary", "grpc", "predict")

ESTIMATORS = frozenset(MODELS) - {"torch", "onnx"}
"""Models with ``predict`` of their own; the others are networks without classes."""


@dataclass(frozen=True)
class Group:
    """One model to build and serve.

    What is no axis varies with the place on the axes, so that the whole matrix has every mixture of it.
    """

    model: str
    values: str
    labels: str

    @property
    def name(self) -> str:
        """Name on the command line and in reports."""
        return f"{self.model}, {self.values}, {self.labels}"

    @property
    def slug(self) -> str:
        """Name of the group's folder and of its Python module."""
        return "".join(each if each.isalnum() else "_" for each in f"{self.model}_{self.values}_{self.labels}")

    @property
    def place(self) -> int:
        """Number of the group among ``GROUPS``; seeds its random draws."""
        return GROUPS.index(self)

    @property
    def one_tensor(self) -> bool:
        """Whether all columns are one tensor of shape [-1, columns] instead of a tensor each; needs one datatype."""
        return self.values != "text" and self._sum % 2 == 0

    @property
    def on_frame(self) -> bool:
        """Whether the estimator was fitted on a DataFrame, and is therefore called with one."""
        return self.model in ESTIMATORS and (self.model == "pipeline" or self.values == "text" or self._sum % 3 == 0)

    @property
    def output(self) -> str:
        """Datatype of the output."""
        return "FP64" if self.values == "float64" else "FP32"

    @property
    def classes(self) -> tuple[object, ...]:
        """Labels of the holdout's classes, sorted; empty for a regression."""
        return {
            "0/1": (0, 1),
            "text": ("no", "yes"),
            "boolean": (False, True),
            "-1/1": (-1, 1),
            "1..3": (1, 2, 3),
            "regression": (),
        }[self.labels]

    @property
    def knows_classes(self) -> bool:
        """Whether the model itself knows what the labels are called.

        XGBoost's classifiers take 0, 1, ... only: people encode other labels, of the holdout too. Networks have no
        classes: the manifest names them.
        """
        plain = self.labels in ("0/1", "boolean", "regression")
        return plain or (self.model in ESTIMATORS and self.model != "xgboost")

    @property
    def width(self) -> int:
        """Scores of a row."""
        return len(self.classes) if len(self.classes) > 2 else 1

    @property
    def _sum(self) -> int:
        return MODELS.index(self.model) + VALUES.index(self.values) + LABELS.index(self.labels)


GROUPS = tuple(Group(*each) for each in product(MODELS, VALUES, LABELS))


def pairwise() -> tuple[Group, ...]:
    """Choose few groups that have every pair of levels of two axes; greedy and deterministic.

    Forms and protocols need no choice: every group has all of them.
    """
    missing = {pair for group in GROUPS for pair in _pairs(group)}
    chosen: list[Group] = []
    while missing:
        # Of equals the first: the choice is the same in every run.
        best = max(GROUPS, key=lambda group: sum(pair in missing for pair in _pairs(group)))
        missing.difference_update(_pairs(best))
        chosen.append(best)
    return tuple(sorted(chosen, key=GROUPS.index))


def _pairs(group: Group) -> Iterator[tuple[str, str, str]]:
    yield "model, values", group.model, group.values
    yield "model, labels", group.model, group.labels
    yield "values, labels", group.values, group.labels
