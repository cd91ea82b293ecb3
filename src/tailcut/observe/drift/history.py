"""Counts of the recent past, by time: the current window, and since when a column is different. Of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tailcut.common.tensors import Doubles
from tailcut.observe.drift.effect import Counts

_FINENESS = 16
"""Blocks are merged that together are so many times shorter than they are old: four a second give some 250 blocks."""
_WINDOWS = 8
"""What is older than so many windows is forgotten."""


@dataclass
class _Block:
    begin_s: float
    end_s: float
    counts: Counts


class History:
    """Counts per column and cell, in blocks that grow coarser with their age.

    Args:
        window_s: length of the current window.
        empty: (columns, cells) of zeros.
    """

    def __init__(self, window_s: float, empty: Counts) -> None:
        self._window_s = window_s
        self._empty = empty
        self._blocks: list[_Block] = []

    def add(self, begin_s: float, end_s: float, counts: Counts) -> None:
        """Add what was counted from one time to another, which is later than all before."""
        self._blocks.append(_Block(begin_s, end_s, counts))
        oldest_s = end_s - _WINDOWS * self._window_s
        self._blocks = list(self._merged(each for each in self._blocks if each.end_s > oldest_s))

    def current(self, now_s: float) -> Counts:
        """Return what was counted within the window before ``now_s``, (columns, cells)."""
        return sum((each.counts for each in self._blocks if each.end_s > now_s - self._window_s), start=self._empty)

    def since(self, column: int, gain: Callable[[Counts], float]) -> float | None:
        """Estimate when a column changed: the time from which on a bet on it has won the most.

        Args:
            column: its place.
            gain: of (cells,) of counts: the logarithm that they added to the bet.

        Returns:
            the time; None where nothing was counted or no span of the past has won.
        """
        gains: Doubles = np.array([gain(each.counts[column]) for each in self._blocks])
        if not len(gains):
            return None
        won = np.cumsum(gains[::-1])[::-1]
        best = int(np.argmax(won))
        return self._blocks[best].begin_s if won[best] > 0 else None

    def _merged(self, blocks: Iterable[_Block]) -> Iterator[_Block]:
        """Merge neighbours that are old enough for it, two by two."""
        now_s = self._blocks[-1].end_s
        before: _Block | None = None
        for block in blocks:
            if before is None:
                before = block
            elif _FINENESS * (block.end_s - before.begin_s) <= now_s - block.end_s:
                yield _Block(before.begin_s, block.end_s, before.counts + block.counts)
                before = None
            else:
                yield before
                before = block
        if before is not None:
            yield before
