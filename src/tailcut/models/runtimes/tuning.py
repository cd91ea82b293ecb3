"""Which runtime settings a variant should have: what can be tried on a machine, and the choice from what was measured.

First threads and executors, then what the runtime itself offers (see ``variations``). Latency of a lone request comes
first; within ``NEAR`` of the best the setting that takes fewer threads wins, because every thread costs processor time
that another request, or another process, could have used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from statistics import median
from typing import Any

import msgspec

from tailcut.common.runtime_spec import spec_of
from tailcut.models.runtimes.sliced import RUN_ROWS

NEAR = 1.1
"""Latencies within this factor count as equal: fewer threads, or the runtime's plain settings, are preferred."""

SAVES = 0.9
"""A variation that is no faster must need at most this part of the processor time."""

_NO_SLOWER = 1.02

_P95_SIGMAS = 1.645
"""A normal distribution's 95th percentile, in standard deviations from its middle."""

_MOST_SPREAD = 1.0
"""Beyond it a slow moment of the machine was timed, or lengths, and no noise."""

BUSY = 0.7
"""Share of what the executors can do at most that the SLO's rate may take up: above it requests wait for each other."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run a variant.

    Attributes:
        threads: of the runtime inside one executor.
        executors: each of which runs one batch at a time.
        more: settings of the runtime.
    """

    threads: int
    executors: int = 1
    more: dict[str, Any] = {}

    @property
    def plain(self) -> dict[str, Any]:
        """As they stand in a variant's settings."""
        return {"threads": self.threads, "executors": self.executors, **self.more}

    @property
    def cores(self) -> int:
        """That it keeps busy at most."""
        return self.threads * self.executors


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one setting.

    Attributes:
        ms: of a lone row, nothing else running, with a pause before each as between requests.
        cpu_ms: processor time of the same, all threads, spinning included.
        rows_per_s: with every executor busy with batches.
    """

    setting: Setting
    ms: float
    cpu_ms: float
    rows_per_s: float


def grid(cores: int) -> list[Setting]:
    """Threads of 1, 2, 4 and so on up to the cores, each with one executor and with as many as there is room for."""
    threads = sorted({*(1 << power for power in range(cores.bit_length()) if 1 << power <= cores), cores})
    return [
        Setting(threads=each, executors=count)
        for each in threads
        for count in dict.fromkeys((1, max(1, cores // each)))
    ]


def variations(runtime: str, setting: Setting) -> list[Setting]:
    """Return what else a runtime offers at the same threads and executors; see its ``RuntimeSpec``."""
    return [
        msgspec.structs.replace(setting, more={**setting.more, **each.settings})
        for each in spec_of(runtime).variations
        if (setting.threads > 1 or not each.threaded) and (setting.executors == 1 or not each.alone)
    ]


def choose(timings: Sequence[Timing], rate: float) -> Timing:
    """Choose threads and executors.

    Of the settings that carry ``rate`` rows a second with ``BUSY`` to spare (where none does: of those that carry
    most), the ones within ``NEAR`` of the best latency; of these the one that keeps the fewest cores busy, then the
    one with the least processor time.
    """
    able = [each for each in timings if each.rows_per_s * BUSY >= rate]
    if not able:
        most = max(each.rows_per_s for each in timings)
        able = [each for each in timings if each.rows_per_s * NEAR >= most]
    best_ms = min(each.ms for each in able)
    near = [each for each in able if each.ms <= best_ms * NEAR]
    return min(near, key=lambda each: (each.setting.cores, each.cpu_ms, each.ms))


def choose_variation(plain: Timing, others: Sequence[Timing]) -> Timing:
    """Choose among a setting and its variations: plain, unless one is clearly faster, or cheaper."""
    faster = [each for each in others if each.ms * NEAR < plain.ms]
    if faster:
        return min(faster, key=lambda each: each.ms)
    cheaper = [each for each in others if each.ms <= plain.ms * _NO_SLOWER and each.cpu_ms <= plain.cpu_ms * SAVES]
    return min(cheaper, key=lambda each: each.cpu_ms, default=plain)


def without_tuned(runtime: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what ``Setting.plain`` may hold, so that a variant can be tuned anew."""
    tuned = {
        "threads",
        "executors",
        RUN_ROWS,
        *(name for each in spec_of(runtime).variations for name in each.settings),
    }
    return {name: value for name, value in settings.items() if name not in tuned}


def tuned_points(evidence: Mapping[str, Any]) -> dict[int, float]:
    """Read what batches took when the build tuned the variant: rows -> nanoseconds, means; empty if it did not.

    Args:
        evidence: of a variant in the registry; of an earlier build it says it of a lone row and of one size only.
    """
    tuning = evidence.get("tuning") or {}
    if costs := tuning.get("costs"):
        return {int(cost["rows"]): cost["mean_ms"] * 1e6 for cost in costs}
    settings = tuning.get("settings") or {}
    chosen = (settings.get("threads"), settings.get("executors", 1))
    for timing in tuning.get("table") or ():
        setting = timing.get("setting", {})
        if (setting.get("threads"), setting.get("executors", 1)) == chosen:
            batch_rows = int(tuning["batch_rows"])
            batch_s = batch_rows * setting.get("executors", 1) / timing["rows_per_s"]
            return {1: timing["ms"] * 1e6, batch_rows: max(batch_s * 1e9, timing["ms"] * 1e6)}
    return {}


def tuned_median(evidence: Mapping[str, Any], rows: int) -> float | None:
    """Read what half of the batches of so many rows took at most when the build tuned the variant, in nanoseconds.

    Returns:
        None where the build timed no batch of this size.
    """
    costs = (evidence.get("tuning") or {}).get("costs") or ()
    return next((cost["p50_ms"] * 1e6 for cost in costs if cost["rows"] == rows), None)


def tuned_spread(evidence: Mapping[str, Any]) -> float | None:
    """Read how much batches of one size differ: the standard deviation of the logarithm; None where it is not known.

    It is what a lognormal distribution has with the p95 and the median that were measured, the median over the sizes.
    """
    costs = (evidence.get("tuning") or {}).get("costs") or ()
    found = [log(max(cost["p95_ms"] / cost["p50_ms"], 1.0)) / _P95_SIGMAS for cost in costs if cost["p50_ms"] > 0.0]
    return min(median(found), _MOST_SPREAD) if found else None
