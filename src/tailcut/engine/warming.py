"""Runs every batch size of an opened variant before it serves, and decides by the times where its batches run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter_ns
from typing import NamedTuple

from tailcut.core.buckets import powers
from tailcut.core.placement import INLINE_LIMIT_NS
from tailcut.core.tensors import Arrays
from tailcut.engine.examples import Examples
from tailcut.engine.ticket import run_rows
from tailcut.errors import StartError, TailcutError
from tailcut.manifest import Deployment
from tailcut.runtimes.base import Runtime

WARM_UP_RUNS = 5
_ENOUGH_NS = 20_000_000
_LONG_NS = 1_000_000_000
_LEAST_RUNS = 2


class Warmth(NamedTuple):
    """How thoroughly each batch size is run before anything is served.

    Attributes:
        typical: makes one figure of the runs of a size.
        enough_ns: a size that took so long is run no more, once it ran twice.
    """

    typical: Callable[[Sequence[int]], float]
    enough_ns: float


THOROUGH = Warmth(median, _LONG_NS)
"""At the start, before requests are served. Each size has a time limit, because rows of the holdout may be long."""

BRIEF = Warmth(min, _ENOUGH_NS)
"""In the background, while requests are served: a size with long runs has few of them."""


class Unanswered(Exception):
    """A variant refuses an invented row, which says nothing about the rows of requests.

    Attributes:
        error: of the run.
    """

    def __init__(self, error: TailcutError) -> None:
        super().__init__(error.explained)
        self.error = error


def warm_up(
    runtime: Runtime,
    examples: Examples,
    outputs: Sequence[str],
    max_rows: int,
    warmth: Warmth = THOROUGH,
    clock_ns: Callable[[], int] = perf_counter_ns,
) -> dict[int, int]:
    """Run every bucket, and one row of each further shape; return the nanoseconds of each bucket.

    Args:
        clock_ns: what runs are timed with.

    Raises:
        StartError: the model fails on a bucket, or on a row of the holdout.
        Unanswered: it refuses an invented row.
    """
    found: dict[int, int] = {}
    for rows in powers(max_rows):
        durations: list[int] = []
        while len(durations) < _LEAST_RUNS or (len(durations) < WARM_UP_RUNS and sum(durations) < warmth.enough_ns):
            inputs = examples.batch(rows, len(durations))
            started_ns = clock_ns()
            _run(runtime, inputs, rows, outputs, examples)
            durations.append(clock_ns() - started_ns)
        found[rows] = int(warmth.typical(durations))
    for inputs in examples.longer():
        _run(runtime, inputs, 1, outputs, examples)
    return found


def _run(runtime: Runtime, inputs: Arrays, rows: int, outputs: Sequence[str], examples: Examples) -> None:
    try:
        run_rows(runtime, inputs, rows, outputs)
    except TailcutError as error:
        alone = rows == 1
        if alone and not examples.are_real:
            raise Unanswered(error) from error
        raise StartError(
            f"warm-up failed at {rows} rows{' of the holdout' if examples.are_real else ''}: {error.explained}",
            hint=_NOT_ANSWERED if alone else _TOO_MANY,
        ) from error


_NOT_ANSWERED = (
    "the build's model answered this row: serve with the packages, the code and the hardware of the build, run "
    "`tailcut build` again, or promote another version"
)
_TOO_MANY = "the model must run every batch size up to batching.max_rows: lower it, or export the model anew"


def choose_executor(deployment: Deployment, warm_up_ns: dict[int, int], executors: int) -> str:
    """Return "inline" or "thread": inline only where the largest batch stays under a millisecond.

    Where nothing was measured it is a thread, unless the manifest says something else.

    Raises:
        StartError: the manifest asks for inline and the model is too slow for it, or wants several executors.
    """
    wanted = deployment.pool.executor
    if wanted == "inline" and executors > 1:
        raise StartError(
            f'pool.executor = "inline" with a variant that was measured with {executors} executors',
            hint='set pool.executor = "auto", or pool.executors = 1',
        )
    slowest_ns = max(warm_up_ns.values(), default=None)
    if wanted == "inline" and slowest_ns is not None and slowest_ns > INLINE_LIMIT_NS:
        raise StartError(
            f'pool.executor = "inline" with a batch that takes {slowest_ns / 1e6:.1f} ms; the limit is '
            f"{INLINE_LIMIT_NS / 1e6:.0f} ms, because the server answers nothing else meanwhile",
            hint='set pool.executor = "thread" (or "auto"), or lower batching.max_rows',
        )
    if wanted == "auto":
        is_quick = slowest_ns is not None and slowest_ns <= INLINE_LIMIT_NS
        return "inline" if is_quick and executors == 1 else "thread"
    return wanted
