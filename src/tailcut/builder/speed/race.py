"""A first speed check: bare runtime latency of all variants, interleaved. The verdict under load comes on top."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Mapping
from itertools import cycle, islice

import numpy as np

from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.speed.interleaving import turn
from tailcut.common.tensors import Arrays
from tailcut.models.runtimes import Runtime

BATCH_ROWS = (1, 8)
ROUNDS = 7
SEED = 0
_BLOCK_S = 0.05
_CALLS = (3, 200)
_SAMPLES = 16
_WARM_UP_CALLS = 3


def run(
    runtimes: Mapping[str, Runtime],
    holdout: Holdout,
    output: str,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
    alone: Collection[str] = (),
) -> dict[str, dict[int, list[float]]]:
    """Time every runtime in turn, round after round, on the same rows.

    Each round runs a block of calls per variant, in the order of ``turn``, so that a slow spell of the machine meets
    all of them. Rows differ from call to call.

    Args:
        alone: variants that are served row by row: of a batch its rows are timed one after the other.

    Returns:
        variant -> batch rows -> median milliseconds of each round.
    """
    found: dict[str, dict[int, list[float]]] = {name: {} for name in runtimes}
    for rows in BATCH_ROWS:
        whole, apart = _samples(holdout, rows)
        samples = {name: apart if name in alone else whole for name in runtimes}
        calls = {
            name: _calls(_block(runtime, samples[name], output, _WARM_UP_CALLS, clock_ns))
            for name, runtime in runtimes.items()
        }
        for number in range(ROUNDS):
            for name in turn(list(runtimes), number):
                ms = _block(runtimes[name], samples[name], output, calls[name], clock_ns)
                found[name].setdefault(rows, []).append(ms)
    return found


def _samples(holdout: Holdout, rows: int) -> tuple[list[list[Arrays]], list[list[Arrays]]]:
    """Return batches, each as one run of the model, and the same rows with a run each."""
    starts = np.random.default_rng(SEED).integers(0, holdout.rows, size=_SAMPLES).tolist()
    whole = [[holdout.take(rows, start)] for start in starts]
    return whole, [[holdout.take(1, start + row) for row in range(rows)] for start in starts]


def _calls(ms: float) -> int:
    least, most = _CALLS
    return max(least, min(most, int(_BLOCK_S * 1000.0 / max(ms, 1e-6))))


def _block(
    runtime: Runtime, samples: list[list[Arrays]], output: str, calls: int, clock_ns: Callable[[], int]
) -> float:
    taken = []
    for runs in islice(cycle(samples), calls):
        begun = clock_ns()
        for inputs in runs:
            runtime.run(inputs, [output])
        taken.append(clock_ns() - begun)
    return statistics.median(taken) / 1e6
