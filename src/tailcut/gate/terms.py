"""What the gate is given, and whether it fits together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tailcut.common.tensors import Array
from tailcut.errors import BuildError
from tailcut.gate.bootstrap import RESAMPLES
from tailcut.gate.clustered import Clusters
from tailcut.gate.evidence import OwnRows
from tailcut.gate.holm import alpha_of_use
from tailcut.gate.metrics import BINARY, METRICS, PROBABILITIES


@dataclass(frozen=True)
class Criteria:
    """What variants are judged by.

    Attributes:
        budget: metric -> largest drop, above 0, in the metric's own unit.
        confidence: one-sided confidence of the first verdict from these rows.
        slice_budget: how many times the budget a slice may drop.
        uses: verdicts that the same rows gave before.
        seed: of the bootstrap; the same seed gives the same verdicts.
        resamples: of the bootstrap.
    """

    budget: Mapping[str, float]
    confidence: float = 0.95
    slice_budget: float = 2.5
    uses: int = 0
    seed: int = 0
    resamples: int = RESAMPLES

    @property
    def alpha(self) -> float:
        """Error that this verdict may spend."""
        return alpha_of_use(1.0 - self.confidence, self.uses)


@dataclass(frozen=True)
class ConfirmationRows:
    """What is known of the confirmation rows.

    Attributes:
        source: (n,) or (n, ...) scores of the source model.
        labels: (n,), or None where there are none.
        slices: slice name -> (n,) of the group that each row belongs to.
        own: a user's metric -> its per-row values; more is better.
        clusters: (n,) the group of each row, whose rows hang together; None where each row stands for itself.
    """

    source: Array
    labels: Array | None
    slices: Mapping[str, Array] = field(default_factory=dict)
    own: Mapping[str, OwnRows] = field(default_factory=dict)
    clusters: Clusters | None = None

    @property
    def groups(self) -> int | None:
        """Groups that the rows come in; None where each row stands for itself."""
        return None if self.clusters is None else int(self.clusters.max()) + 1


def check(candidates: Mapping[str, Array], rows: ConfirmationRows, terms: Criteria) -> None:
    """Refuse what cannot be judged.

    Raises:
        BuildError: see ``judging.judge``.
    """
    count = len(rows.source)
    if not count:
        raise BuildError("there are no confirmation rows", hint="add labelled rows; a few thousand judge well")
    if not 0.5 < terms.confidence < 1.0:
        raise BuildError(
            f"the confidence is {terms.confidence}, it must be between 0.5 and 1", hint="use 0.95, the default"
        )
    sized = [
        ("labels", rows.labels),
        ("groups", rows.clusters),
        *((f"slice {name!r}", values) for name, values in rows.slices.items()),
    ]
    for name, own in rows.own.items():
        sized += [(f"values of {name!r} for the source", own.source)]
        sized += [(f"values of {name!r} for {who!r}", values) for who, values in own.variants.items()]
    for what, values in sized:
        if values is not None and len(values) != count:
            raise BuildError(
                f"the {what} have {len(values)} rows, the scores have {count}", hint="give one value per row"
            )
    if rows.clusters is not None and not rows.clusters.any():
        raise BuildError(
            f"all {count} confirmation rows belong to one group: there is no spread between groups",
            hint="set holdout.group to a column that distinguishes patients, sessions or the like",
        )
    for name, scores in (("the source model", rows.source), *candidates.items()):
        _check_scores(name, scores, rows.source)
    for metric, limit in terms.budget.items():
        _check_metric(metric, limit, candidates, rows)


def check_shapes(metric: str, labels: Array, scores: Array) -> None:
    """Refuse labels and scores of shapes that a metric cannot compare.

    Args:
        metric: one of ``METRICS``.
        labels: (n, ...).
        scores: (n, ...).

    Raises:
        BuildError: they are of other shapes than the metric needs.
    """
    have = f"labels are {list(labels.shape)}, scores {list(scores.shape)}"
    if metric == "mae" and labels.shape != scores.shape:
        raise BuildError(
            f"mae needs a label per score; {have}", hint="name the output that the labels belong to in holdout.output"
        )
    if metric not in PROBABILITIES | {"spearman"}:
        return
    if labels.ndim != 1:
        raise BuildError(
            f"{metric} needs one label per row; {have}",
            hint="give mae a budget, or add a metric of your own for several labels per row to quality.metrics",
        )
    if scores.ndim > (1 if metric == "spearman" else 2):
        needed = "one score per row" if metric == "spearman" else "one score per row, or one per class"
        raise BuildError(
            f"{metric} needs {needed}; {have}",
            hint="name the output that the labels belong to in holdout.output, or give mae or cosine a budget",
        )


def _check_scores(name: str, scores: Array, source: Array) -> None:
    if scores.shape != source.shape:
        raise BuildError(
            f"scores of {name} are {list(scores.shape)}, those of the source model {list(source.shape)}",
            hint="both must be the model's first output on the same rows",
        )
    if not np.isfinite(scores.astype(np.float64)).all():
        raise BuildError(f"scores of {name} hold NaN or infinity", hint="a variant with such answers cannot be served")


def _check_metric(metric: str, limit: float, candidates: Mapping[str, Array], rows: ConfirmationRows) -> None:
    if not limit > 0.0:
        raise BuildError(
            f"the budget of {metric} is {limit}; no number of rows can prove a drop of 0",
            hint="allow a small drop, such as 0.004",
        )
    own = rows.own.get(metric)
    if own is not None:
        missing = sorted(set(candidates) - set(own.variants))
        if missing:
            raise BuildError(
                f"{metric} has no values for {', '.join(missing)}", hint="give one value per row and variant"
            )
        for values in (own.source, *own.variants.values()):
            if values.ndim != 1 or not np.isfinite(values.astype(np.float64)).all():
                raise BuildError(
                    f"{metric} gave values of shape {list(values.shape)}, or NaN or infinity among them",
                    hint="return one finite number per row",
                )
    elif metric not in METRICS:
        raise BuildError(f"there is no metric {metric!r}", hint=f"use one of {', '.join(sorted(METRICS))}")
    elif rows.labels is not None:
        check_shapes(metric, rows.labels, rows.source)
        if metric in BINARY and metric != "log_loss":
            _check_binary(metric, rows.source, rows.labels)


def _check_binary(metric: str, source: Array, labels: Array) -> None:
    flat = source.ndim == 1 or (source.ndim == 2 and source.shape[1] == 2)
    if not flat or not np.isin(labels, (0, 1)).all():
        raise BuildError(
            f"{metric} needs labels 0 and 1 and one score per row, scores are {list(source.shape)}",
            hint="give accuracy or log_loss a budget instead",
        )
