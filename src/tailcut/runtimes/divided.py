"""A runtime whose large batches run as several small ones, where the model is faster so; it learns by itself which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns

import numpy as np

from tailcut.core.dividing import Division
from tailcut.core.learning import kind_of
from tailcut.core.tensors import Arrays
from tailcut.runtimes.base import Runtime, StreamingRuntime

_SOME = 7
"""Of batches too short to be divided, one in eight is looked at: they come fast enough."""


class DividedRuntime:
    """Runs batches whole or in parts, and learns what each size takes, by the length of rows. See ``core.dividing``.

    For models that give every row the same answer whatever it shares a batch with: what was given comes out in the same
    order, but a model that looks at the whole batch would see parts of it.

    Args:
        runtime: owned from now on.
        clock_ns: what runs are timed with.

    Attributes:
        inner: that runtime.
        run_rows: rows of the largest run of the last batch; 0 before the first.
    """

    def __init__(self, runtime: Runtime, clock_ns: Callable[[], int] = perf_counter_ns) -> None:
        self.inner = runtime
        self.run_rows = 0
        self._clock_ns = clock_ns
        self._divisions: dict[int, Division] = {}
        self._whole = False
        self._batches = 0

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run one batch; see ``Runtime.run``."""
        rows = len(next(iter(inputs.values())))
        self.run_rows = rows
        if self._whole or not rows:
            return self.inner.run(inputs, outputs)
        kind = kind_of(max([array.size for array in inputs.values()]) // rows)
        division = self._divisions.get(kind)
        if division is None:
            division = self._divisions[kind] = Division()
        self._batches += 1
        if self._batches & _SOME and division.is_short(rows):
            return self.inner.run(inputs, outputs)
        runs = division.runs(rows)
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
        if len(parts) == 1:
            return parts[0]
        if all(_fits(part, parts[0], size) for part, size in zip(parts, runs, strict=True)):
            self.run_rows = max(runs)
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        self._whole = True  # of other dimensions that depend on what shares the batch
        return self.inner.run(inputs, outputs)

    def close(self) -> None:
        """Close what it runs on."""
        self.inner.close()


def _fits(part: Arrays, first: Arrays, size: int) -> bool:
    """Whether a part has a row for each that it was given, and otherwise the shape of the first."""
    return all(
        array.ndim > 0 and len(array) == size and array.shape[1:] == first[name].shape[1:]
        for name, array in part.items()
    )


def dividing(runtime: Runtime) -> Runtime:
    """Return a runtime that divides batches; one that streams is left as it is."""
    return runtime if isinstance(runtime, StreamingRuntime) else DividedRuntime(runtime)


def undivided(runtime: Runtime) -> Runtime:
    """Return a runtime that does not divide batches: what ``dividing`` was given."""
    return runtime.inner if isinstance(runtime, DividedRuntime) else runtime
