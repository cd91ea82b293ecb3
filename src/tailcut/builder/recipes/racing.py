"""Files of one model, timed in turns on single rows of the selection split."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path

from tailcut.builder.recipes.base import Work
from tailcut.models.runtimes import Runtime

ROUNDS = 9
GAIN = 0.97
"""A file replaces the first one where its median ratio of times is below this."""

_CALLS = 8

Times = dict[str, dict[str, float]]
"""Name -> "ms", median over rounds, and "ratio", the median over rounds of the ratio to the first file's."""


def race(work: Work, files: Mapping[str, Path]) -> Times:
    """Time files of runtime onnxruntime with one thread, another one first in each round."""
    runtimes = {name: work.open_file(file, "onnxruntime") for name, file in files.items()}
    output = work.manifest.deployment.judged
    rounds: dict[str, list[float]] = {name: [] for name in files}
    for turn in range(ROUNDS + 1):
        names = list(files)[turn % len(files) :] + list(files)[: turn % len(files)]
        for name in names:
            taken = [timed(runtimes[name], work, place, output) for place in range(_CALLS)]
            if turn:  # the first turn warms up
                rounds[name].append(statistics.median(taken))
    for runtime in runtimes.values():
        runtime.close()
    first = rounds[next(iter(files))]
    return {
        name: {
            "ms": statistics.median(times),
            "ratio": statistics.median(mine / other for mine, other in zip(times, first, strict=True)),
        }
        for name, times in rounds.items()
    }


def fastest(times: Times) -> str:
    """Name the fastest file; the first one where none is faster than it by more than noise."""
    best = min(times, key=lambda name: times[name]["ratio"])
    return best if times[best]["ratio"] < GAIN else next(iter(times))


def timed(runtime: Runtime, work: Work, place: int, output: str) -> float:
    """Milliseconds of one call with the row at ``place``."""
    inputs = work.selection.take(1, place)
    begun_s = time.perf_counter()
    runtime.run(inputs, [output])
    return (time.perf_counter() - begun_s) * 1000.0
