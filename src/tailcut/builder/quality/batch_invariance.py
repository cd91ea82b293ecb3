"""Finds variants whose answer to a row depends on the other rows of the batch; of those each row runs alone.

Dynamic quantisation does that: it takes the scale of the activations from the whole batch. So does a model that
subtracts the mean of the batch, or that looks at padding, which a longer neighbour adds. Every output is compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tailcut.builder.holdouts import run as holdout_run
from tailcut.builder.holdouts.holdout import Holdout
from tailcut.common.tensors import Array, Arrays
from tailcut.errors import BuildError, InferenceError
from tailcut.gate.metrics import are_probabilities
from tailcut.manifest import Model, TensorSpec
from tailcut.models.runtimes import Runtime
from tailcut.models.runtimes.row_coupling import coupling_operators
from tailcut.registry.evidence import OutputChange, RowCoupling

ROWS = 64
LEAST_ROWS = 8
BUDGET_S = 5.0
"""Of rows that are compared there are fewer where they take longer, but no fewer than ``LEAST_ROWS``."""

_SHARE_ALONE = 0.1
"""Of the budget: the rows with company cost about nine times as much as the rows alone."""

LIMIT = 0.001
"""Largest change of a probability: a thousandth is below what a decision or a displayed percentage shows."""

_LIMIT_OF_SPREAD = 0.001
"""Of what is no probability: this share of the standard deviation of the scores."""

_CLOSE = 0.01
"""Where probabilities lie close together, as of rare events, LIMIT would hide much: this share of their spread."""

_ROUNDING = 8
"""Units in the last place of the largest score: batches of another size add up in another order."""

_LARGEST = float(np.finfo(np.float64).max)


def measure(
    runtime: Runtime,
    holdout: Holdout,
    model: Model,
    files: Sequence[Path] = (),
    clock_s: Callable[[], float] = time.perf_counter,
) -> RowCoupling:
    """Compare rows alone with the same rows in company, in every output.

    Company that the model refuses counts as none: such a batch is run again request by request. Real rows are no such
    company: see ``holdout_run.run``.

    Args:
        files: of the variant. Operators in them decide whatever was measured: more extreme rows may come than were
            tried.

    Raises:
        BuildError: a row of the holdout is refused, or does not get one answer.
    """
    names = [tensor.name for tensor in model.outputs]
    alone = _alone(runtime, holdout, names, clock_s)
    changes: dict[str, dict[str, float]] = {name: {} for name in names}
    for company in companies(holdout, model.inputs, len(alone)):
        try:
            given = runtime.run(company.inputs, names)
        except InferenceError:
            if company.is_real:
                raise
            continue
        for name in names:
            parts = zip(company.rows, company.places, strict=True)
            change = max(change_of(alone[row][name], given[name][place : place + 1]) for row, place in parts)
            changes[name][company.kind] = max(change, changes[name].get(company.kind, 0.0))
    limits = {name: limit_of([row[name] for row in alone]) for name in names}
    outputs = {name: OutputChange(max_abs=changes[name], limit=limits[name]) for name in names}
    return RowCoupling(rows=len(alone), outputs=outputs, operators=list(coupling_operators(files)))


def _alone(runtime: Runtime, holdout: Holdout, names: Sequence[str], clock_s: Callable[[], float]) -> list[Arrays]:
    """Run up to ``ROWS`` rows one by one, as many as the budget allows."""
    found: list[Arrays] = []
    begun_s = clock_s()
    while len(found) < min(ROWS, holdout.rows):
        if len(found) >= LEAST_ROWS and clock_s() - begun_s > _SHARE_ALONE * BUDGET_S:
            break
        row = holdout_run.run(runtime, holdout, np.array([len(found)]), names)
        wrong = [name for name in names if not row[name].ndim or len(row[name]) != 1]
        if wrong:
            raise BuildError(
                f"output {wrong[0]!r} has shape {list(row[wrong[0]].shape)} for a single row",
                hint="the first dimension of every output must be the batch, even if it is 1: look for squeeze()",
            )
        found.append(row)
    return found


def change_of(alone: Array, together: Array) -> float:
    """Return the largest difference of one row's answer, (1, ...); very large where only one of both is finite.

    Of an output that follows the tokens what both have is compared. Text that differs counts as 1.
    """
    if alone.ndim != together.ndim or len(together) != 1:
        return _LARGEST
    both = tuple(slice(0, min(sizes)) for sizes in zip(alone.shape, together.shape, strict=True))
    first, second = alone[both], together[both]
    if first.dtype.kind not in "biuf":
        return float(bool((first != second).any()))
    first, second = first.astype(np.float64), second.astype(np.float64)
    apart = (first != second) & ~(np.isnan(first) & np.isnan(second))
    if not apart.any():
        return 0.0
    change = float(np.abs(first[apart] - second[apart]).max())
    return change if np.isfinite(change) else _LARGEST


def limit_of(answers: Sequence[Array]) -> float:
    """Return by how much company may change an output of these rows, each (1, ...)."""
    if answers[0].dtype.kind not in "biuf":
        return 0.0
    values = np.concatenate([answer.ravel() for answer in answers])
    rounding = float(np.finfo(np.dtype(values.dtype.str)).eps) if values.dtype.kind == "f" else 0.0
    scores = values[np.isfinite(values)].astype(np.float64) if values.dtype.kind == "f" else values.astype(np.float64)
    if not scores.size:
        return 0.0
    spread = float(scores.std())
    limit = min(LIMIT, _CLOSE * spread) if are_probabilities(scores) else _LIMIT_OF_SPREAD * spread
    return max(limit, _ROUNDING * rounding * float(np.abs(scores).max()))


# -- Company: other rows, real, random and extreme ---------------------------------------------------------------------


BATCHES = (2, 8, 32)
"""Rows of batches of the holdout, in its order."""

_SEED = 0
_SHARED = 8
"""Rows that share one pair of extreme neighbours, which come first and last."""

Change = Callable[[Array, TensorSpec], Array]
"""Input of two rows of the holdout -> the same input of two extreme rows."""


class Neighbours(NamedTuple):
    """One batch.

    Attributes:
        kind: such as "batch of 8".
        rows: numbers of the rows whose answers are compared.
        places: (len(rows),) where each is in the batch.
        inputs: of the batch, padded together.
        is_real: whether all of its rows are the holdout's own.
    """

    kind: str
    rows: Sequence[int]
    places: Array
    inputs: Arrays
    is_real: bool


def companies(holdout: Holdout, inputs: Sequence[TensorSpec], count: int) -> Iterator[Neighbours]:
    """Yield batches in which the first ``count`` rows of the holdout have company; of extreme company half of them.

    Floats of extreme rows go up to the largest of their datatype. Integers stay within what the holdout has in their
    place: an index beyond a table would only make the model fail.
    """
    for size in BATCHES:
        for start in range(0, count, size):
            rows = range(start, min(start + size, count))
            yield Neighbours(f"batch of {size}", rows, np.arange(len(rows)), holdout.take(size, start), is_real=True)
    draw = np.random.default_rng(_SEED)
    for rows in _groups(count, _SHARED // 2):
        places = draw.permutation(_SHARED)[: len(rows)]
        numbers = draw.integers(holdout.rows, size=_SHARED)
        numbers[places] = rows
        yield Neighbours("random", rows, places, holdout.at(numbers), is_real=True)
    for kind, change in _extremes(holdout, inputs).items():
        for rows in _groups(-(-count // 2), _SHARED):
            first, last = draw.integers(holdout.rows, size=2).tolist()
            found = holdout.at(np.array([first, *rows, last]))
            changed = {tensor.name: _changed(found[tensor.name], tensor, change) for tensor in inputs}
            yield Neighbours(kind, rows, np.arange(1, len(rows) + 1), changed, is_real=False)
    if holdout.padding:
        longest = int(np.argmax(holdout.inputs[holdout.padding].astype(bool).sum(axis=1)))
        for rows in _groups(count, _SHARED):
            found = holdout.at(np.array([longest, *rows]))
            yield Neighbours("longest", rows, np.arange(1, len(rows) + 1), found, is_real=True)


def _groups(count: int, size: int) -> Iterator[range]:
    for start in range(0, count, size):
        yield range(start, min(start + size, count))


def _changed(array: Array, tensor: TensorSpec, change: Change) -> Array:
    found = array.copy()
    found[[0, -1]] = change(array[[0, -1]], tensor)
    return found


def _extremes(holdout: Holdout, inputs: Sequence[TensorSpec]) -> dict[str, Change]:
    """Return what makes rows extreme, by kind; none for datatypes that the model does not take."""
    found: dict[str, Change] = {}
    if any(_is_float(holdout.inputs[tensor.name]) for tensor in inputs):
        found |= {
            "zeros": _floats(np.zeros_like),
            "1000 times": _floats(lambda array: np.multiply(array, 1e3)),
            "-1000 times": _floats(lambda array: np.multiply(array, -1e3)),
            "1e7": _floats(lambda array: np.full_like(array, 1e7)),
            "-1e7": _floats(lambda array: np.full_like(array, -1e7)),
            "1e-3 to 1e7": _floats(_mixed),
            "largest": _floats(lambda array: np.full_like(array, np.inf)),
        }
    if any(_is_float(holdout.inputs[tensor.name]) and tensor.allow_nan for tensor in inputs):
        found["NaN and infinity"] = _not_finite
    if any(holdout.inputs[tensor.name].dtype.kind in "iub" for tensor in inputs):
        found |= {"least integers": _integers(holdout, np.min), "greatest integers": _integers(holdout, np.max)}
    return found


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f"


def _floats(make: Callable[[Array], Array]) -> Change:
    """Change floats, in float64 and then clipped to their datatype; leave other inputs as they are."""

    def change(array: Array, tensor: TensorSpec) -> Array:
        if not _is_float(array):
            return array
        largest = float(np.finfo(np.dtype(array.dtype.str)).max)
        return np.clip(make(array.astype(np.float64)), -largest, largest).astype(array.dtype)

    return change


def _mixed(array: Array) -> Array:
    """Return values of many magnitudes and both signs."""
    draw = np.random.default_rng(_SEED)
    found: Array = draw.choice([-1.0, 1.0], size=array.shape) * 10.0 ** draw.uniform(-3.0, 7.0, size=array.shape)
    return found


def _not_finite(array: Array, tensor: TensorSpec) -> Array:
    """Return a row of NaN and a row of infinity where the input takes them."""
    if not _is_float(array) or not tensor.allow_nan:
        return array
    found = np.full_like(array, np.nan)
    found[-1] = np.inf
    return found


def _integers(holdout: Holdout, most: Callable[..., Array]) -> Change:
    """Give integers the least or greatest value that the holdout has in the same place of a row."""

    def change(array: Array, tensor: TensorSpec) -> Array:
        if array.dtype.kind not in "iub":
            return array
        found = most(holdout.inputs[tensor.name], axis=0)
        wanted = tuple(slice(0, size) for size in array.shape[1:])  # padding may be cut off
        return np.broadcast_to(found[wanted], array.shape).astype(array.dtype)

    return change
