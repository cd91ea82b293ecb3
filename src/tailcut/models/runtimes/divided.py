"""A runtime whose large batches run as several small ones, where the model is faster so; it learns by itself which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns

import numpy as np

from tailcut.common.tensors import Arrays
from tailcut.models.runtimes.base import Runtime, StreamingRuntime
from tailcut.scheduler.latency_learner import kind_of
from tailcut.scheduler.micro_batching import Division

Tails = tuple[tuple[int, ...], ...]

_MOST_TAILS = 1024
"""Kinds of rows, and of what they give, that are remembered."""

_SOME = 7
"""Of batches too short to be divided, one in eight is looked at: they come fast enough."""


class DividedRuntime:
    """Runs batches whole or in parts, and learns what each size takes, by the length of rows.

    See ``scheduler.micro_batching``.

    For models that give every row the same answer whatever it shares a batch with: what was given comes out in the same
    order, but a model that looks at the whole batch would see parts of it. Where an output's shape says so, no batch is
    divided any more. A batch larger than any before runs whole, so that warm-up does what it says. So does the first of
    rows of a new shape, because by what it gives the parts of others are judged.

    Args:
        runtime: owned from now on.
        clock_ns: what runs are timed with.

    Attributes:
        inner: that runtime.
        run_rows: rows of the largest run of the last batch that ended; 0 before the first.
    """

    def __init__(self, runtime: Runtime, clock_ns: Callable[[], int] = perf_counter_ns) -> None:
        self.inner = runtime
        self.run_rows = 0
        self._clock_ns = clock_ns
        self._divisions: dict[int, Division] = {}
        self._tails_of: dict[tuple[tuple[str, ...], Tails], Tails] = {}
        self._whole = False
        self._largest = 0
        self._batches = 0

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run one batch; see ``Runtime.run``."""
        rows = len(next(iter(inputs.values())))
        if rows and not self._whole:
            kind = kind_of(max([array.size for array in inputs.values()]) // rows)
            division = self._divisions.get(kind)
            if division is None:
                division = self._divisions[kind] = Division()
            self._batches += 1
            if not self._batches & _SOME or not division.is_short(rows):
                found = self._run(inputs, outputs, rows, division)
                if found is not None:
                    return found
        found = self.inner.run(inputs, outputs)
        self.run_rows = rows
        return found

    def close(self) -> None:
        """Close what it runs on."""
        self.inner.close()

    def _run(self, inputs: Arrays, outputs: Sequence[str], rows: int, division: Division) -> Arrays | None:
        """Run a batch, divided where that is faster; None where what the parts give depends on the batch."""
        kind = (tuple(outputs), _tails(inputs))
        runs = division.runs(rows) if rows <= self._largest and kind in self._tails_of else [rows]
        parts: list[Arrays] = []
        took_ns: list[int] = []
        at = 0
        for size in runs:
            part = inputs if size == rows else {name: array[at : at + size] for name, array in inputs.items()}
            started_ns = self._clock_ns()
            parts.append(self.inner.run(part, outputs))
            took_ns.append(self._clock_ns() - started_ns)
            at += size
        division.learn(runs, took_ns)
        if not self._fit(kind, parts, runs):
            self._whole = True
            self.run_rows = rows
            return parts[0] if len(parts) == 1 else None
        self._largest = max(self._largest, rows)
        self.run_rows = max(runs)
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _fit(self, kind: tuple[tuple[str, ...], Tails], parts: Sequence[Arrays], runs: Sequence[int]) -> bool:
        """Whether each part has a row for each that it was given, and otherwise the shape that such rows had before."""
        tails = self._tails_of.pop(kind) if kind in self._tails_of else _tails(parts[0])
        self._tails_of[kind] = tails  # the last used is the last
        if len(self._tails_of) > _MOST_TAILS:
            del self._tails_of[next(iter(self._tails_of))]
        return all(
            _tails(part) == tails and all(array.ndim and len(array) == size for array in part.values())
            for part, size in zip(parts, runs, strict=True)
        )


def _tails(arrays: Arrays) -> Tails:
    """Return each array's shape but for its rows."""
    return tuple([array.shape[1:] for array in arrays.values()])


def dividing(runtime: Runtime) -> Runtime:
    """Return a runtime that divides batches; one that streams is left as it is."""
    return runtime if isinstance(runtime, StreamingRuntime) else DividedRuntime(runtime)


def undivided(runtime: Runtime) -> Runtime:
    """Return a runtime that does not divide batches: what ``dividing`` was given."""
    return runtime.inner if isinstance(runtime, DividedRuntime) else runtime
