"""Runs every batch size of an opened variant before it serves, and decides by the times where its batches run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import NamedTuple

from tailcut.common.tensors import Arrays
from tailcut.errors import StartError, TailcutError
from tailcut.manifest import Deployment
from tailcut.models.batch_item import run_rows
from tailcut.models.example_rows import Examples
from tailcut.models.runtimes.base import Runtime
from tailcut.models.runtimes.bucketed import powers
from tailcut.scheduler.executor_placement import INLINE_LIMIT_NS, BatchTime

WARM_UP_RUNS = 5
_ENOUGH_NS = 20_000_000
_LONG_NS = 1_000_000_000
_LEAST_RUNS = 2

_DECIDING_LEAST, _DECIDING_RUNS = 8, 24
_DECIDING_NS = 40_000_000
_HOPELESS_NS = 20 * INLINE_LIMIT_NS


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

    The buckets take turns, so that a slow moment of the machine is no single bucket's.

    Args:
        clock_ns: what runs are timed with.

    Raises:
        StartError: the model fails on a bucket, or on a row of the holdout.
        Unanswered: it refuses an invented row.
    """
    durations: dict[int, list[int]] = {rows: [] for rows in powers(max_rows)}
    while waiting := [rows for rows, each in durations.items() if _wants_more(each, warmth)]:
        for rows in waiting:
            inputs = examples.batch(rows, len(durations[rows]))
            started_ns = clock_ns()
            _run(runtime, inputs, rows, outputs, examples)
            durations[rows].append(clock_ns() - started_ns)
    for inputs in examples.longer():
        _run(runtime, inputs, 1, outputs, examples)
    return {rows: int(warmth.typical(each)) for rows, each in durations.items()}


def _wants_more(durations: Sequence[int], warmth: Warmth) -> bool:
    enough = len(durations) >= WARM_UP_RUNS or sum(durations) >= warmth.enough_ns
    return len(durations) < _LEAST_RUNS or not enough


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
_TOO_MANY = "the model must run every batch size up to batching.max_rows: lower it, or export the model again"


def undisturbed_ns() -> int:
    """Read a clock that stands still while this thread is ready and other processes have its core.

    Source: the kernel's Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat". Where the kernel keeps none
    it is the plain clock.
    """
    waited_ns = _waited_ns()
    while True:
        now_ns = perf_counter_ns()
        before_ns, waited_ns = waited_ns, _waited_ns()
        if waited_ns == before_ns:  # else it lost the core between the two
            return now_ns - waited_ns


def _waited_ns() -> int:
    try:
        return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def timed_again(
    time: BatchTime, runtime: Runtime, examples: Examples, outputs: Sequence[str], clock_ns: Callable[[], int]
) -> BatchTime:
    """Time the largest batch again as long as it looks too long for the event loop; keep the fastest run.

    Other processes can only make a run longer, so that more runs can only speak for the event loop. There are at most
    24, and no more after 40 ms.
    """
    spent_ns = 0
    for number in range(_DECIDING_RUNS):
        is_long = number and time.here_ns > _HOPELESS_NS
        if time.runs_inline or is_long or (number >= _DECIDING_LEAST and spent_ns > _DECIDING_NS):
            break
        inputs = examples.batch(time.rows, number)
        started_ns = clock_ns()
        _run(runtime, inputs, time.rows, outputs, examples)
        took_ns = clock_ns() - started_ns
        spent_ns += took_ns
        time = time._replace(here_ns=min(time.here_ns, took_ns))
    return time


class ExecutorChoice(NamedTuple):
    """A kind of executor, "inline", "thread" or "process", and the reason for it."""

    executor: str
    reason: str


def choose_executor(deployment: Deployment, executors: int, measured: Callable[[], BatchTime | None]) -> ExecutorChoice:
    """Choose inline or threads where the manifest says "auto": inline only where the largest batch is surely short.

    Args:
        executors: how many are asked for.
        measured: times the largest batch; None where nothing can be timed, which makes it a thread.

    Raises:
        StartError: the manifest asks for inline and the model is too slow for it, or wants several executors.
    """
    wanted = deployment.pool.executor
    if wanted not in {"inline", "auto"}:
        return ExecutorChoice(wanted, "as pool.executor says")
    if executors > 1:
        if wanted == "auto":
            return ExecutorChoice("thread", f"{executors} executors")
        raise StartError(
            f'pool.executor = "inline" but the build measured the variant with {executors} executors',
            hint='set pool.executor = "auto", or pool.executors = 1',
        )
    time = measured()
    if wanted == "auto":
        if time is None:
            return ExecutorChoice("thread", "no batch was timed")
        return ExecutorChoice("inline" if time.runs_inline else "thread", str(time))
    if time is not None and time.expected_ns > INLINE_LIMIT_NS:
        raise StartError(
            f'pool.executor = "inline" with a batch that takes {time.expected_ns / 1e6:.1f} ms; the limit is '
            f"{INLINE_LIMIT_NS / 1e6:.0f} ms, because the server answers no other request meanwhile",
            hint='set pool.executor = "thread" (or "auto"), or lower batching.max_rows',
        )
    return ExecutorChoice(wanted, "as pool.executor says")
