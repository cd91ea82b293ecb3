"""Runs every batch size of an opened variant before it serves, and decides by the times where its batches run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np

from tailcut.core.buckets import powers
from tailcut.core.placement import INLINE_LIMIT_NS
from tailcut.core.tensors import Array, Arrays
from tailcut.core.validation import InputSpec
from tailcut.engine.ticket import run_rows
from tailcut.errors import StartError, TailcutError
from tailcut.manifest import Deployment
from tailcut.runtimes.base import Runtime

WARM_UP_RUNS = 5
_ENOUGH_NS = 20_000_000
_LEAST_RUNS = 2
FREE_DIMENSION = 8
"""Size that warm-up gives to a free dimension that is not the batch."""


class Warmth(NamedTuple):
    """How thoroughly each batch size is run before anything is served.

    Attributes:
        typical: makes one figure of the runs of a size.
        enough_ns: a size that took so long is run no more, once it ran twice.
    """

    typical: Callable[[Sequence[int]], float]
    enough_ns: float


THOROUGH = Warmth(median, float("inf"))
"""Where nobody is served meanwhile."""

BRIEF = Warmth(min, _ENOUGH_NS)
"""In the background: others take the processor, and are kept from it; a size whose runs are long has few."""


def example_inputs(specs: Sequence[InputSpec], rows: int) -> Arrays:
    """Return zeros and empty texts of the right form, or what the inputs' limits allow where that is something else.

    Indexes into embeddings are valid then, encoders know the categories, and kernels do the same work.
    """
    return {spec.name: _example(spec, rows) for spec in specs}


def _example(spec: InputSpec, rows: int) -> Array:
    free = FREE_DIMENSION if spec.limits is None else min(FREE_DIMENSION, spec.limits.longest)
    shape = (rows, *(free if size == -1 else size for size in spec.tail))
    found: Array = np.full(shape, "", object) if spec.datatype == "BYTES" else np.zeros(shape, spec.dtype)
    if spec.limits is not None:
        spec.limits.settle(found)
    return found


def warm_up(
    runtime: Runtime,
    specs: Sequence[InputSpec],
    outputs: Sequence[str],
    max_rows: int,
    warmth: Warmth = THOROUGH,
    clock_ns: Callable[[], int] = perf_counter_ns,
) -> dict[int, int]:
    """Run every bucket; return the nanoseconds of each.

    Args:
        clock_ns: what runs are timed with.

    Raises:
        StartError: the model fails on a bucket.
    """
    found: dict[int, int] = {}
    for rows in powers(max_rows):
        inputs = example_inputs(specs, rows)
        durations: list[int] = []
        while len(durations) < _LEAST_RUNS or (len(durations) < WARM_UP_RUNS and sum(durations) < warmth.enough_ns):
            started_ns = clock_ns()
            try:
                run_rows(runtime, inputs, rows, outputs)
            except TailcutError as error:
                raise StartError(
                    f"warm-up failed at {rows} rows: {error.explained}",
                    hint="the model must run every batch size up to batching.max_rows: lower it, or export the model "
                    "anew; where it takes no zeros or empty texts, give its inputs min and max, or values",
                ) from error
            durations.append(clock_ns() - started_ns)
        found[rows] = int(warmth.typical(durations))
    return found


def choose_executor(deployment: Deployment, warm_up_ns: dict[int, int], executors: int) -> str:
    """Return "inline" or "thread": inline only where the largest batch stays under a millisecond.

    Raises:
        StartError: the manifest asks for inline and the model is too slow for it, or wants several executors.
    """
    wanted = deployment.pool.executor
    if wanted == "inline" and executors > 1:
        raise StartError(
            f'pool.executor = "inline" with a variant that was measured with {executors} executors',
            hint='set pool.executor = "auto", or pool.executors = 1',
        )
    slowest_ns = max(warm_up_ns.values())
    if wanted == "inline" and slowest_ns > INLINE_LIMIT_NS:
        raise StartError(
            f'pool.executor = "inline" with a batch that takes {slowest_ns / 1e6:.1f} ms; the limit is '
            f"{INLINE_LIMIT_NS / 1e6:.0f} ms, because the server answers nothing else meanwhile",
            hint='set pool.executor = "thread" (or "auto"), or lower batching.max_rows',
        )
    if wanted == "auto":
        return "inline" if slowest_ns <= INLINE_LIMIT_NS and executors == 1 else "thread"
    return wanted
