"""What the hypervisor took of the cores that are measured on."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

_STEAL = 8
"""Place of the steal time in a line of /proc/stat, in ticks of a hundredth of a second. Source: proc_stat(5)."""


class Taken:
    """When the hypervisor ran somebody else on these cores, as far as it says so.

    A p99 of some windows, or a refusal, may be no more than that; whether it is, nobody can tell afterwards.

    Args:
        cores: numbers of them.

    Attributes:
        found: when something had been taken (seconds), and how much of each core since the last look (ms).
    """

    def __init__(self, cores: Sequence[int]) -> None:
        self.found: list[tuple[float, ...]] = []
        self._names = [f"cpu{core}" for core in cores]
        self._last = self._steal_ms()

    def look(self) -> None:
        """Take notice of what was taken since the last look."""
        now = self._steal_ms()
        took = [after - before for before, after in zip(self._last, now, strict=True)]
        if any(took):
            self.found.append((time.perf_counter(), *took))
        self._last = now

    def _steal_ms(self) -> list[int]:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        ticks = {fields[0]: int(fields[_STEAL]) for fields in lines if fields[0] in self._names}
        return [ticks[name] * 1000 // os.sysconf("SC_CLK_TCK") for name in self._names]
