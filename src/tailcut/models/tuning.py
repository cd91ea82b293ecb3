"""Which runtime settings a variant should have: what can be tried on a machine, and the choice from what was measured.

First threads and executors, then what the runtime itself offers (see ``variations``). Latency of a lone request comes
first; within ``NEAR`` of the best the setting that takes fewer threads wins, because every thread costs processor time
that another request, or another process, could have used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tailcut.common.runtime_spec import spec_of
from tailcut.models.runtimes.sliced import RUN_ROWS
from tailcut.registry.evidence import Setting, Timing

NEAR = 1.1
"""Latencies within this factor count as equal: fewer threads, or the runtime's plain settings, are preferred."""

SAVES = 0.9
"""A variation that is no faster must need at most this part of the processor time."""

_NO_SLOWER = 1.02

BUSY = 0.7
"""Share of what the executors can do at most that the SLO's rate may take up: above it requests wait for each other."""


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
