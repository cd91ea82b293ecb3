"""A runtime that runs large batches as several smaller ones, where the build measured that this is faster.

A model may be fastest by the row in small runs: what one layer hands to the next then stays in the processor's cache.
Serving, though, is cheapest in large batches (one hand-over, one plan). So a batch may be large and yet run as slices,
one after the other (micro-batches: Y. Huang et al., "GPipe", NeurIPS 2019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tailcut.common.tensors import Arrays
from tailcut.models.runtimes.base import Runtime, StreamingRuntime

RUN_ROWS = "run_rows"
"""Setting of a variant: rows of the largest run of the model."""


class SlicedRuntime:
    """Runs at most so many rows at a time, for models that give every row the same answer in any batch.

    If an output of a slice does not have a row for each row of the slice, or slices do not fit together, the model
    looks at its whole batch: then that batch and all later ones run whole.

    Args:
        runtime: owned from now on.
        rows: of the largest run, at least 1.
    """

    def __init__(self, runtime: Runtime, rows: int) -> None:
        self._runtime = runtime
        self._rows = rows
        self._whole = False

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run one batch; see ``Runtime.run``."""
        rows = len(next(iter(inputs.values())))
        if rows > self._rows and not self._whole:
            found = self._run_slices(inputs, outputs, rows)
            if found is not None:
                return found
            self._whole = True
        return self._runtime.run(inputs, outputs)

    def close(self) -> None:
        """Close the runtime that it runs on."""
        self._runtime.close()

    def _run_slices(self, inputs: Arrays, outputs: Sequence[str], rows: int) -> Arrays | None:
        """Return the outputs of a batch; None where they do not fit together."""
        count = -(-rows // self._rows)
        edges = [rows * at // count for at in range(count + 1)]
        parts: list[Arrays] = []
        for start, end in pairwise(edges):
            part = self._runtime.run({name: array[start:end] for name, array in inputs.items()}, outputs)
            # Every output has a row for each row of the slice, and is otherwise shaped as in the first slice.
            for name, array in part.items():
                if not array.ndim or array.shape != (end - start, *(parts[0] if parts else part)[name].shape[1:]):
                    return None
            parts.append(part)
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def run_rows_of(settings: Mapping[str, Any]) -> int:
    """Read the setting ``run_rows``; 0 where batches run whole."""
    rows = settings.get(RUN_ROWS)
    return rows if type(rows) is int and rows > 0 else 0


def whole(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without ``run_rows``: batches run whole."""
    return {name: value for name, value in settings.items() if name != RUN_ROWS}


def sliced(runtime: Runtime, settings: Mapping[str, Any]) -> Runtime:
    """Return a runtime that slices batches where the settings name ``run_rows``; one that streams stays as it is."""
    rows = run_rows_of(settings)
    return SlicedRuntime(runtime, rows) if rows and not isinstance(runtime, StreamingRuntime) else runtime


def best_run_rows(p50_ms: Mapping[int, float]) -> int | None:
    """Choose the rows of a run from the costs of whole batches.

    Args:
        p50_ms: median of batches of each size, by rows.

    Returns:
        the size that is cheapest by the row (by medians, because noise only adds), the largest of those within
        ``_ALIKE`` of it; None where the largest batch is as cheap, or too short to be worth it.
    """
    largest = max(p50_ms, default=0)
    if not largest or p50_ms[largest] < _SHORT_MS:
        return None
    row_ms = {rows: each_ms / rows for rows, each_ms in p50_ms.items()}
    best = max(rows for rows, each_ms in row_ms.items() if each_ms <= _ALIKE * min(row_ms.values()))
    return best if row_ms[largest] > CLEAR * row_ms[best] else None


_SHORT_MS = 2.0
"""Batches up to this long are not sliced: the calls of the runtime are no longer small beside them."""

_ALIKE = 1.01
"""Sizes whose rows cost no more than this times the cheapest count as equal."""

CLEAR = 1.03
"""The largest batch must cost more than this by the row, or else noise would choose."""
