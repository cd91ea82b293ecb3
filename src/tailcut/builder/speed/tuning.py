"""Runtime settings of one variant, chosen by measurement on rows of the selection split.

Two tables, each measured in turn (see ``turns``): threads x executors first, then the runtime's own settings at the
threads and executors that won. A table is done when the choice would be the same without any one of its rounds. The
costs of batches of each size then decide whether large batches run in slices (see ``runtimes.sliced``).

A lone row is timed with a pause before it, because requests come with pauses: called back to back, threads that spin
are always awake, and what they burn between requests would not show.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import NamedTuple

import msgspec
import numpy as np

from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.records import Made, openable
from tailcut.builder.speed.interleaving import take_turns
from tailcut.common.fingerprint import uses_gpu
from tailcut.common.runtime_spec import spec_of
from tailcut.common.tensors import Arrays
from tailcut.errors import TailcutError
from tailcut.manifest import Manifest
from tailcut.models.runtimes import Runtime, open_runtime
from tailcut.models.runtimes.bucketed import powers
from tailcut.models.runtimes.live import source_of
from tailcut.models.runtimes.sliced import CLEAR, RUN_ROWS, best_run_rows
from tailcut.models.tuning import choose, choose_variation, grid, variations, without_tuned
from tailcut.registry.evidence import BatchCost, Setting, Timing, Tuning

BATCH_ROWS = 8
BUDGET_S = 3.0
"""Of one table; the least number of rounds is run however long it takes."""

SEED = 0
_ROUNDS = (3, 9)
_PAUSE_S = 0.001
_SAMPLES = 16
_LEAST_CALLS = (4, 1)
"""Of lone rows and of batches, where one call takes longer than a block should."""

_BLOCK_S = 0.1
_WARM_UP_CALLS = 2
_COST_CALLS = (3, 100)
"""Of each size at least, however long it takes, and at most."""

_FASTER_ROUNDS = 7
"""Slices are taken only if they win every one: by chance one pair of equals in 128 does."""

Block = tuple[float, float, float]
"""Of one setting in one round: milliseconds of a lone row, its processor time in milliseconds, rows per second."""

Decide = Callable[[Sequence[Timing]], Timing]


def tune(manifest: Manifest, made: Made, selection: Holdout, *, cores: int, budget_s: float = BUDGET_S) -> Tuning:
    """Choose the settings of one variant.

    Args:
        manifest: its SLO's rate decides how many executors there must be.
        made: the variant; where its rows run alone no batch of more is timed.
        selection: rows to run.
        cores: that this process may use.
        budget_s: of each of the two tables, and of the sizes' costs.

    Returns:
        its ``settings`` are to be merged into the variant's.

    Raises:
        TailcutError: the variant cannot be opened or run.
    """
    if not spec_of(made.runtime).tuned:
        return Tuning(why=f"runtime {made.runtime!r} takes no settings")
    if uses_gpu(made.runtime, made.settings):
        return Tuning(why="it runs on the GPU: CPU threads and executors have no effect")
    deployment = manifest.deployment
    source = source_of(manifest, made.runtime)
    kept = without_tuned(made.runtime, made.settings)

    def open_with(setting: Setting) -> Runtime:
        changed = msgspec.structs.replace(made, settings={**kept, **setting.more})
        return open_runtime(openable(changed, deployment), threads=setting.threads, source=source)

    samples = _samples(selection, 1 if made.rows_alone else BATCH_ROWS)
    bench = _Bench(open_with, made.runtime, samples, [deployment.judged], budget_s)
    first = bench.measured(grid(cores), lambda timings: choose(timings, deployment.slo.rate))
    best = choose(first, deployment.slo.rate)
    others = variations(made.runtime, best.setting)
    second = bench.measured([best.setting, *others], _vary) if others else []
    if second:
        best = _vary(second)
    max_rows = 1 if made.rows_alone else deployment.batching.max_rows
    setting, (costs, costs_failed) = best.setting, bench.costs(best.setting, selection, max_rows)
    # Batches of rows that differ in length are padded, more so the larger they are: that says nothing of slices.
    padded = any(-1 in tensor.shape[1:] for tensor in deployment.model.inputs)
    sliceable = deployment.batching.mode == "auto" and not padded and not kept.get("buckets")
    if sliceable and (rows := best_run_rows({each.rows: each.p50_ms for each in costs})):
        sliced = msgspec.structs.replace(setting, more={**setting.more, RUN_ROWS: rows})
        if bench.is_faster(sliced, setting, selection.take(costs[-1].rows)):
            setting, (costs, costs_failed) = sliced, bench.costs(sliced, selection, max_rows)
    return Tuning(
        settings=setting.plain,
        table=first,
        variations=second,
        rate=deployment.slo.rate,
        batch_rows=samples.rows,
        costs=costs,
        costs_failed=costs_failed,
    )


class _Bench(NamedTuple):
    """What settings of one variant are measured with."""

    open_with: Callable[[Setting], Runtime]
    runtime: str
    samples: _Timings
    outputs: Sequence[str]
    budget_s: float

    def measured(self, settings: Sequence[Setting], decide: Decide) -> list[Timing]:
        with ExitStack() as stack:
            opened = [stack.enter_context(closing(_Opened(setting, self))) for setting in settings]
            return measure(settings, [each.block for each in opened], decide, budget_s=self.budget_s)

    def is_faster(self, one: Setting, other: Setting, batch: Arrays) -> bool:
        """Tell whether one setting runs a batch in clearly less time in every round, the two in turns."""
        with closing(_Opened(one, self)) as first, closing(_Opened(other, self)) as second:
            blocks = {"one": lambda: first.batch_s(batch), "other": lambda: second.batch_s(batch)}
            found = take_turns(blocks, least=_FASTER_ROUNDS, most=_FASTER_ROUNDS, budget_s=self.budget_s)
        return all(mine * CLEAR < theirs for mine, theirs in zip(found["one"], found["other"], strict=True))

    def costs(self, setting: Setting, selection: Holdout, max_rows: int) -> tuple[list[BatchCost], str]:
        """Return what batches of each size take, or why it is not known."""
        try:
            with closing(_Opened(setting, self)) as opened:
                return opened.costs(selection, max_rows, self.budget_s), ""
        except TailcutError as error:  # the choice stands: such as where it runs no batch as large as may be served
            return [], error.message


def _vary(timings: Sequence[Timing]) -> Timing:
    return choose_variation(timings[0], timings[1:])


class _Timings(NamedTuple):
    lone: list[Arrays]
    batches: list[Arrays]
    rows: int  # of a batch


def _samples(selection: Holdout, rows: int) -> _Timings:
    """Rows of the real length mix: each batch is padded as far as its own rows need."""
    starts = np.random.default_rng(SEED).integers(0, selection.rows, size=_SAMPLES)
    return _Timings(
        [selection.take(1, int(start)) for start in starts],
        [selection.take(rows, int(start)) for start in starts],
        rows,
    )


class _Opened:
    """One setting with its executors open."""

    def __init__(self, setting: Setting, bench: _Bench) -> None:
        self.setting = setting
        self._samples = bench.samples
        self._outputs = bench.outputs
        self._torch = bench.runtime == "torch"
        self._threads = ThreadPoolExecutor(setting.executors)
        self._runtimes: list[Runtime] = []
        try:
            for _ in range(setting.executors):
                self._runtimes.append(bench.open_with(setting))
            self._calls, self._batch_calls = self._warm_up()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for runtime in self._runtimes:
            runtime.close()
        self._threads.shutdown()

    def _warm_up(self) -> tuple[int, int]:
        """Run every executor; say how many calls make a block."""
        self._select()
        counts = []
        for inputs, least in zip((self._samples.lone, self._samples.batches), _LEAST_CALLS, strict=True):
            taken_s = [_timed(runtime, inputs[:_WARM_UP_CALLS], self._outputs) for runtime in self._runtimes]
            counts.append(max(least, min(_SAMPLES, int(_BLOCK_S / max(min(taken_s[0]), 1e-6)))))
        return counts[0], counts[1]

    def _select(self) -> None:
        """Torch's threads are a setting of the process: the setting whose turn it is sets them anew."""
        if self._torch:
            import torch

            torch.set_num_threads(self.setting.threads)

    def block(self) -> Block:
        """Measure once."""
        self._select()
        taken_s = []
        used_s = time.process_time()
        for inputs in self._samples.lone[: self._calls]:
            time.sleep(_PAUSE_S)
            taken_s += _timed(self._runtimes[0], [inputs], self._outputs)
        used_s = time.process_time() - used_s
        return statistics.median(taken_s) * 1e3, used_s / self._calls * 1e3, self._rows_per_s()

    def costs(self, selection: Holdout, max_rows: int, budget_s: float) -> list[BatchCost]:
        """Time batches of each size, every executor busy with one: what others do to it belongs to what it takes.

        The sizes in turn, so that a slow moment is nobody's own; those that are too long for the budget are left out.
        """
        self._select()
        draw = np.random.default_rng(SEED)
        taken_s: dict[int, list[float]] = {}
        begun_s = time.perf_counter()
        for rows in powers(max_rows):
            if taken_s and time.perf_counter() - begun_s > budget_s:
                break
            self._at_once([selection.take(rows)])
            taken_s[rows] = []
        least, most = _COST_CALLS
        for number in range(most):
            if number >= least and time.perf_counter() - begun_s > budget_s:
                break
            for rows in taken_s:
                time.sleep(_PAUSE_S)
                taken_s[rows] += self._at_once([selection.take(rows, int(draw.integers(selection.rows)))])
        return [_cost(rows, taken) for rows, taken in taken_s.items()]

    def batch_s(self, inputs: Arrays) -> float:
        """Time one batch, every executor busy with it: the median of their seconds."""
        self._select()
        return statistics.median(self._at_once([inputs]))

    def _at_once(self, batches: Sequence[Arrays]) -> list[float]:
        """Run batches one after the other, in every executor at once; seconds of each."""
        if len(self._runtimes) == 1:
            return _timed(self._runtimes[0], batches, self._outputs)
        found = self._threads.map(lambda runtime: _timed(runtime, batches, self._outputs), self._runtimes)
        return [taken_s for each in found for taken_s in each]

    def _rows_per_s(self) -> float:
        batches = self._samples.batches[: self._batch_calls]
        begun_s = time.perf_counter()
        self._at_once(batches)
        took_s = time.perf_counter() - begun_s
        return len(batches) * self._samples.rows * len(self._runtimes) / took_s


def measure(
    settings: Sequence[Setting], blocks: Sequence[Callable[[], Block]], decide: Decide, *, budget_s: float
) -> list[Timing]:
    """Measure settings in turn, until no single round decides the choice any more.

    Args:
        settings: what is compared.
        blocks: measures each of them once.
        decide: the choice that the timings are for.
        budget_s: of all rounds.

    Returns:
        medians over rounds, in the order of ``settings``.
    """

    def settled(found: Mapping[int, Sequence[Block]]) -> bool:
        count = len(found[0])
        chosen = decide(_medians(settings, found)).setting
        return all(decide(_medians(settings, found, without=left_out)).setting == chosen for left_out in range(count))

    least, most = _ROUNDS
    found = take_turns(dict(enumerate(blocks)), least=least, most=most, budget_s=budget_s, settled=settled)
    return _medians(settings, found)


def _medians(
    settings: Sequence[Setting], found: Mapping[int, Sequence[Block]], without: int | None = None
) -> list[Timing]:
    timings = []
    for place, setting in enumerate(settings):
        rounds = [block for number, block in enumerate(found[place]) if number != without]
        ms, cpu_ms, rows_per_s = (statistics.median(values) for values in zip(*rounds, strict=True))
        timings.append(Timing(setting=setting, ms=ms, cpu_ms=cpu_ms, rows_per_s=rows_per_s))
    return timings


def _cost(rows: int, taken_s: Sequence[float]) -> BatchCost:
    p50_s, p95_s = np.quantile(taken_s, (0.5, 0.95)).tolist()
    mean_ms = statistics.fmean(taken_s) * 1e3
    return BatchCost(rows=rows, mean_ms=mean_ms, p50_ms=p50_s * 1e3, p95_ms=p95_s * 1e3, calls=len(taken_s))


def _timed(runtime: Runtime, batches: Sequence[Arrays], outputs: Sequence[str]) -> list[float]:
    """Run batches one after the other; seconds of each."""
    taken = []
    for inputs in batches:
        begun_s = time.perf_counter()
        runtime.run(inputs, outputs)
        taken.append(time.perf_counter() - begun_s)
    return taken
