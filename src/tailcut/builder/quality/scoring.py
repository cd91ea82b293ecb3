"""Quality on the whole holdout, through the runtime that will serve."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tailcut.builder.holdouts import run as holdout_run
from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.holdouts.labels import check_numbers, whole
from tailcut.common.tensors import Array, Arrays, Doubles
from tailcut.errors import BuildError
from tailcut.gate.metrics import BINARY, METRICS, PROBABILITIES, are_probabilities, cosine, decide, drop
from tailcut.gate.terms import check_shapes
from tailcut.models.runtimes import Runtime
from tailcut.registry.padding import lengths

BATCH_ROWS = 256
PADDED_BATCH_ROWS = 32
"""Rows of a holdout with ``padding``; few, so that rows of about the same length come together."""

MOST_VALUES = 1 << 25
"""Values that are kept of an output that is not judged."""

_DEFAULTS = ("auc", "log_loss", "accuracy")
_NO_WORSE = 1e-9
"""A drop below it is rounding."""

_OUTSIDE = (
    "end the model with a sigmoid (or softmax) so that the judged output is a probability, "
    "or set the quality budget on mae or cosine"
)


def scores(runtime: Runtime, holdout: Holdout, output: str, *, alone: bool = False) -> Array:
    """Run every row and return one output, (rows, ...); see ``every``."""
    return every(runtime, holdout, [output], alone=alone)[output]


def every(
    runtime: Runtime, holdout: Holdout, outputs: Sequence[str], *, alone: bool = False, nan: Collection[str] = ()
) -> Arrays:
    """Run every row and return the wanted outputs by name, (rows, ...) in the holdout's order; (rows, 1) is (rows,).

    Rows of a holdout with ``padding`` run sorted by length, so that few are padded far. An output with a value per
    token, (rows, tokens, ...), is then 0 from the end of a row's batch to the most tokens of any. Of an output after
    the first that is large, only the first rows are returned, up to ``MOST_VALUES`` values.

    Args:
        outputs: names; the first is the judged one.
        alone: run each row by itself, as a variant is served whose answers depend on the rows beside them.
        nan: names of the outputs that may hold NaN and infinity.

    Raises:
        BuildError: a row is refused, or NaN or infinity in an output that may not hold them.
    """
    order, batch_rows = _order(holdout)
    batch_rows = 1 if alone else batch_rows
    parts: dict[str, list[Array]] = {name: [] for name in outputs}
    places: dict[str, list[Array]] = {name: [] for name in outputs}
    for start in range(0, holdout.rows, batch_rows):
        batch = order[start : start + batch_rows]
        for name, array in holdout_run.run(runtime, holdout, batch, outputs).items():
            most = holdout.rows if name == outputs[0] else MOST_VALUES // max(array[:1].size, 1) + 1
            kept = np.asarray(batch, dtype=np.int64) < most
            parts[name].append(array[kept])
            places[name].append(batch[kept])
    return {name: _in_order(name, parts[name], np.concatenate(places[name]), holdout, name in nan) for name in outputs}


def _in_order(name: str, parts: list[Array], places: Array, holdout: Holdout, nan: bool) -> Array:
    """Put batches of one output together, in the holdout's order, and check that it is finite."""
    joined = np.concatenate(_widened(parts) if holdout.padding else parts)
    found: Array = np.empty_like(joined)
    found[places] = joined
    if found.dtype.kind == "f" and not nan:
        bad = np.flatnonzero(~np.isfinite(found.reshape(len(found), -1).astype(np.float64)).all(axis=1))
        if bad.size:
            raise BuildError(
                f"output {name!r} is NaN or infinite in {bad.size} of {holdout.rows} holdout rows, "
                f"first in row {holdout.number(int(bad[0]))}",
                hint="check the inputs of this row; fix the model or the preprocessing",
            )
    return found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found


def _order(holdout: Holdout) -> tuple[Array, int]:
    """Return row numbers in the order in which they run, (rows,), and the rows of a batch."""
    if not holdout.padding:
        return np.arange(holdout.rows), BATCH_ROWS
    return np.argsort(lengths(holdout.inputs[holdout.padding]), kind="stable"), PADDED_BATCH_ROWS


def _widened(parts: list[Array]) -> list[Array]:
    """Fill outputs that follow the tokens with 0 up to the widest; others are returned as they are."""
    if any(part.ndim < 2 for part in parts):
        return parts
    widest = max(part.shape[1] for part in parts)
    rest = [(0, 0)] * (parts[0].ndim - 2)
    return [np.pad(part, [(0, 0), (0, widest - part.shape[1]), *rest]) for part in parts]


def metric_names(labels: Array, found: Array, budget: Mapping[str, float]) -> tuple[str, ...]:
    """Choose what is measured: the budget's metrics, and all that suit a probability where one is meant.

    Without a budget: auc, log_loss and accuracy for labels 0 and 1; accuracy for classes in columns; else mae.
    """
    binary = found.ndim == 1 and bool(np.isin(labels, (0, 1)).all())
    if binary and (not budget or PROBABILITIES & set(budget)):
        wanted = tuple(name for name in _DEFAULTS if name != "auc" or np.unique(labels).size == 2)
    elif budget:
        wanted = ()
    else:
        # Values have the shape of the scores; one whole number per row of scores is a class.
        wanted = ("accuracy",) if found.ndim == 2 and labels.ndim == 1 and whole(labels) else ("mae",)
    return (*wanted, *(name for name in budget if name not in wanted))


def measure(
    holdout: Holdout, found: Array, source: Array, budget: Mapping[str, float], output: str
) -> dict[str, float]:
    """Compute every chosen metric.

    Args:
        holdout: whose labels are the truth.
        output: name of the judged output, for errors.
        found: the variant's scores.
        source: the source model's scores; what "cosine" compares with.
        budget: the quality budget.

    Raises:
        BuildError: labels or scores that a metric cannot be computed of.
    """
    if holdout.labels is None:
        return {"cosine": METRICS["cosine"](source, found)} if "cosine" in budget else {}
    measured: dict[str, float] = {}
    for name in metric_names(holdout.truth, found, budget):
        check_shapes(name, holdout.truth, found)
        scores = _second(name, found)
        _check(name, holdout.truth, scores)
        if name in PROBABILITIES:
            check_numbers(holdout.truth, scores, output)
        measured[name] = METRICS[name](source if name == "cosine" else holdout.truth, scores)
    return measured


def _second(name: str, found: Array) -> Array:
    """Return the probability of the second of two classes, where a metric of two classes meets both."""
    return found[:, 1] if name in BINARY and found.ndim == 2 and found.shape[1] == 2 else found


def agreement(source: Array, found: Array) -> dict[str, float]:
    """How close the variant's scores are to the source model's: needs no labels, and sees what metrics average away."""
    error = np.abs(source.astype(np.float64) - found.astype(np.float64))
    flat = {"max_abs": float(error.max()), "mean_abs": float(error.mean())}
    if found.ndim == 1:
        return {**flat, "flipped": float(np.mean(decide(source) != decide(found)))}
    return {**flat, "cosine": cosine(source, found)}


def constant(holdout: Holdout, found: Array, budget: Mapping[str, float]) -> dict[str, float]:
    """Metrics of the best constant answers: what the model's own figures stand beside.

    That is the share of each class, and the median of values.
    """
    if holdout.labels is None or holdout.labels.ndim != 1 or found.ndim > 2:
        return {}
    labels = holdout.truth
    values: Doubles = labels.astype(np.float64)
    measured: dict[str, float] = {}
    for name in metric_names(labels, found, budget):
        if name in {"cosine", "spearman"}:
            continue
        if found.ndim == 2:
            shares = np.bincount(labels.astype(np.int64), minlength=found.shape[1]) / len(labels)
            answer = np.tile(shares, (len(labels), 1))
        else:
            answer = np.full(len(labels), np.median(values) if name == "mae" else values.mean())
        measured[name] = METRICS[name](labels, _second(name, answer))
    return measured


def worse_than_constant(metrics: Mapping[str, float], constants: Mapping[str, float]) -> list[str]:
    """Say which metrics of the source model are worse than those of a constant answer."""
    return [
        f"the source model's {name} is {value:.4g}, worse than the {constants[name]:.4g} of a constant answer: check "
        "the labels, the classes and the order of the columns"
        for name, value in metrics.items()
        if name in constants and drop(name, constants[name], value) > _NO_WORSE
    ]


def _check(name: str, labels: Array, found: Array) -> None:
    two = found.ndim == 1 and bool(np.isin(labels, (0, 1)).all())
    if name in BINARY and not two and (name != "log_loss" or found.ndim != 2):
        raise BuildError(
            f"{name} needs labels 0 and 1 and one score per row; labels hold {_some(labels)}, scores are "
            f"{list(found.shape)}",
            hint="give accuracy, mae or cosine a budget instead",
        )
    if name == "auc" and np.unique(labels).size < 2:
        raise BuildError(
            f"auc needs both classes, every one of the {len(labels)} holdout labels is {labels[0]}",
            hint="use a holdout with both outcomes",
        )
    if name == "cosine" and found.ndim < 2:
        raise BuildError("cosine needs vectors, but the model gives one score per row", hint="use auc, accuracy or mae")
    if name in PROBABILITIES and not are_probabilities(found):
        raise BuildError(
            f"{name} needs probabilities in [0, 1], the judged output lies in [{found.min():.4g}, {found.max():.4g}]",
            hint=_OUTSIDE,
        )


def _some(labels: Array) -> str:
    values = np.unique(labels)
    return ", ".join(str(value) for value in values[:4]) + (", ..." if values.size > 4 else "")
