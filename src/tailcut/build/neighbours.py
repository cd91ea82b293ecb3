"""Whether the rows beside it in a batch change a row's answer, as they do where one scale serves a whole batch.

Dynamic quantisation takes the scale of the activations from the batch (onnxruntime, "Quantize ONNX models": scale and
zero point per tensor), so that one extreme row makes all others coarse. Requests of different clients may only share
batches of a variant whose answers do not depend on the company.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tailcut.build.holdout import Holdout
from tailcut.core.tensors import Array, Arrays
from tailcut.runtimes import Runtime

ROWS = 64
BATCHES = (8, 32)
EXTREME = 1000.0
"""The floats of the extreme neighbour are those of a holdout row, this many times."""

LIMIT = 0.001
"""Largest change of a probability: a thousandth is below what a decision or a displayed percentage shows."""

_LIMIT_OF_SPREAD = 0.001
"""Of what is no probability: this share of the standard deviation of the scores."""


def measure(runtime: Runtime, holdout: Holdout, output: str) -> dict[str, Any]:
    """Compare rows alone with the same rows in company.

    Returns:
        {"neighbour": {"rows", "max_abs" by kind of company, "limit"}, "merge": whether requests may share batches}.
    """
    count = min(ROWS, holdout.rows)
    alone = np.concatenate([_run(runtime, holdout.take(1, row), output) for row in range(count)])
    changes = {f"batch of {size}": _of_batches(runtime, holdout, output, alone, size) for size in BATCHES}
    changes["extreme"] = _of_extreme(runtime, holdout, output, alone)
    probabilities = bool(alone.min() >= 0 and alone.max() <= 1)
    limit = LIMIT if probabilities else _LIMIT_OF_SPREAD * float(alone.std())
    return {
        "neighbour": {"rows": count, "max_abs": changes, "limit": limit},
        "merge": all(change <= limit for change in changes.values()),
    }


def _of_batches(runtime: Runtime, holdout: Holdout, output: str, alone: Array, size: int) -> float:
    found = [
        _run(runtime, holdout.take(size, start), output)[: len(alone) - start] for start in range(0, len(alone), size)
    ]
    return _change(alone, np.concatenate(found))


def _of_extreme(runtime: Runtime, holdout: Holdout, output: str, alone: Array) -> float:
    found = []
    for row in range(len(alone)):
        # Both at once, so that they are padded alike.
        rows = holdout.at(np.array([row, len(alone) % holdout.rows]))
        pair = {name: np.concatenate([array[:1], _times(array[1:])]) for name, array in rows.items()}
        found.append(_run(runtime, pair, output)[:1])
    return _change(alone, np.concatenate(found))


def _times(array: Array) -> Array:
    if array.dtype.kind != "f":
        return array
    largest = float(np.finfo(np.dtype(array.dtype.str)).max)
    return np.clip(array.astype(np.float64) * EXTREME, -largest, largest).astype(array.dtype)


def _run(runtime: Runtime, inputs: Arrays, output: str) -> Array:
    return runtime.run(inputs, [output])[output].astype(np.float64)


def _change(alone: Array, together: Array) -> float:
    """Return the largest difference; infinite where company turns a score into NaN."""
    change = np.abs(alone.astype(np.float64) - together.astype(np.float64)).max()
    return float(change) if np.isfinite(change) else float(np.finfo(np.float64).max)
