"""Quality on the whole holdout, through the runtime that will serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tailcut.build import running
from tailcut.build.holdout import Holdout
from tailcut.core.metrics import BINARY, METRICS, PROBABILITIES, cosine, decide
from tailcut.core.tensors import Array
from tailcut.errors import BuildError
from tailcut.runtimes import Runtime

BATCH_ROWS = 256
PADDED_BATCH_ROWS = 32
"""Rows of a holdout with ``padding``; few, so that rows of about the same length come together."""

_DEFAULTS = ("auc", "log_loss", "accuracy")
_OUTSIDE = (
    "end the model with a sigmoid (or softmax) so that its first output is a probability, "
    "or set the quality budget on mae or cosine"
)


def scores(runtime: Runtime, holdout: Holdout, output: str, *, alone: bool = False) -> Array:
    """Run every row and return the wanted output, (rows, ...) in the holdout's order; (rows, 1) becomes (rows,).

    Rows of a holdout with ``padding`` run sorted by length, so that few are padded far. An output with a value per
    token, (rows, tokens, ...), is then 0 from the end of a row's batch to the most tokens of any.

    Args:
        alone: run each row by itself, as a variant is served whose answers depend on the rows beside them.

    Raises:
        BuildError: a row is refused, or NaN or infinity in the output.
    """
    order, batch_rows = _order(holdout)
    batch_rows = 1 if alone else batch_rows
    batches = [order[start : start + batch_rows] for start in range(0, holdout.rows, batch_rows)]
    parts = [running.run(runtime, holdout, places, [output])[output] for places in batches]
    sorted_found = np.concatenate(_widened(parts) if holdout.padding else parts)
    found: Array = np.empty_like(sorted_found)
    found[order] = sorted_found
    bad = np.flatnonzero(~np.isfinite(found.reshape(len(found), -1).astype(np.float64)).all(axis=1))
    if bad.size:
        raise BuildError(
            f"output {output!r} is NaN or infinite in {bad.size} of {holdout.rows} holdout rows, "
            f"first in row {holdout.number(int(bad[0]))}",
            hint="look at that row's inputs; mend the model or the preprocessing",
        )
    return found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found


def _order(holdout: Holdout) -> tuple[Array, int]:
    """Return row numbers in the order in which they run, (rows,), and the rows of a batch."""
    if not holdout.padding:
        return np.arange(holdout.rows), BATCH_ROWS
    mask = holdout.inputs[holdout.padding] != 0
    # As Holdout.at sees it, a row ends with its last value, wherever gaps are.
    lengths = np.where(mask.any(axis=1), mask.shape[1] - np.argmax(mask[:, ::-1], axis=1), 0)
    return np.argsort(lengths, kind="stable"), PADDED_BATCH_ROWS


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
        wanted = ("accuracy",) if found.ndim == 2 and labels.dtype.kind in "biu" else ("mae",)
    return (*wanted, *(name for name in budget if name not in wanted))


def measure(holdout: Holdout, found: Array, source: Array, budget: Mapping[str, float]) -> dict[str, float]:
    """Compute every chosen metric.

    Args:
        holdout: whose labels are the truth.
        found: the variant's scores.
        source: the source model's scores; what "cosine" compares with.
        budget: the quality budget.

    Raises:
        BuildError: labels or scores that a metric cannot be computed of.
    """
    if holdout.labels is None:
        return {"cosine": METRICS["cosine"](source, found)} if "cosine" in budget else {}
    names = metric_names(holdout.truth, found, budget)
    for name in names:
        _check(name, holdout.truth, found)
    return {name: METRICS[name](source if name == "cosine" else holdout.truth, found) for name in names}


def agreement(source: Array, found: Array) -> dict[str, Any]:
    """How close the variant's scores are to the source model's: needs no labels, and sees what metrics average away."""
    error = np.abs(source.astype(np.float64) - found.astype(np.float64))
    flat = {"max_abs": float(error.max()), "mean_abs": float(error.mean())}
    if found.ndim == 1:
        return {**flat, "flipped": float(np.mean(decide(source) != decide(found)))}
    return {**flat, "cosine": cosine(source, found)}


def constant(holdout: Holdout, found: Array) -> dict[str, float]:
    """Metrics of the best constant answer (the labels' mean): what the model's own figures stand beside."""
    if holdout.labels is None or found.ndim != 1 or holdout.labels.ndim != 1:
        return {}
    mean = float(holdout.truth.astype(np.float64).mean())
    answer = np.full(holdout.rows, mean)
    names = metric_names(holdout.truth, found, {})
    return {name: METRICS[name](holdout.truth, answer) for name in names}


def _check(name: str, labels: Array, found: Array) -> None:
    if name in BINARY and (found.ndim != 1 or not np.isin(labels, (0, 1)).all()):
        raise BuildError(
            f"{name} needs labels of 0 and 1 and one score a row; labels hold {_some(labels)}, scores are "
            f"{list(found.shape)}",
            hint="give accuracy, mae or cosine a budget instead",
        )
    if name == "auc" and np.unique(labels).size < 2:
        raise BuildError(
            f"auc needs both classes, every one of the {len(labels)} holdout labels is {labels[0]}",
            hint="take a holdout with both outcomes in it",
        )
    if name == "mae" and labels.shape != found.shape:
        raise BuildError(
            f"mae needs a label per score; labels are {list(labels.shape)}, scores {list(found.shape)}",
            hint="make the first of model.outputs the one that the labels belong to",
        )
    if name == "cosine" and found.ndim < 2:
        raise BuildError("cosine needs vectors, the model gives one score a row", hint="use auc, accuracy or mae")
    if name in PROBABILITIES and (found.min() < 0 or found.max() > 1):
        raise BuildError(
            f"{name} needs probabilities in [0, 1], the model's first output lies in "
            f"[{found.min():.4g}, {found.max():.4g}]",
            hint=_OUTSIDE,
        )


def _some(labels: Array) -> str:
    values = np.unique(labels)
    return ", ".join(str(value) for value in values[:4]) + (", ..." if values.size > 4 else "")
