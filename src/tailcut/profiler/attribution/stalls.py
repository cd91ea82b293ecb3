"""What stopped the process: collections of garbage all of it, a request's work on the event loop the other requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tailcut.profiler.attribution.span_table import Ints
from tailcut.profiler.records import Moment, Stage


@dataclass(frozen=True)
class Cover:
    """Intervals that do not overlap, ascending, and what they sum to up to each; the first one is empty."""

    start: Ints
    end: Ints
    before: Ints

    @staticmethod
    def of(intervals: Iterable[tuple[int, int]]) -> Cover:
        """Join intervals that touch."""
        merged: list[list[int]] = []
        for start, end in sorted(intervals):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            elif end > start:
                merged.append([start, end])
        least = merged[0][0] if merged else 0
        found = np.array([[least, least], *merged], dtype=np.int64)
        length = found[:, 1] - found[:, 0]
        return Cover(found[:, 0], found[:, 1], np.cumsum(length) - length)

    def within(self, start: Ints, end: Ints) -> Ints:
        """What of each interval is covered, shape [n]."""
        return self._up_to(end) - self._up_to(start)

    def minus(self, start: int, end: int) -> list[tuple[int, int]]:
        """What of an interval is not covered."""
        pieces: list[tuple[int, int]] = []
        place = int(np.searchsorted(self.end, start, side="right"))
        while place < len(self.start) and self.start[place] < end:
            if self.end[place] > self.start[place]:
                pieces.append((start, int(self.start[place])))
                start = int(self.end[place])
            place += 1
        return [(low, high) for low, high in [*pieces, (start, end)] if high > low]

    def _up_to(self, at: Ints) -> Ints:
        place = np.maximum(np.searchsorted(self.start, at, side="right") - 1, 0)
        found: Ints = self.before[place] + np.clip(at, self.start[place], self.end[place]) - self.start[place]
        return found


@dataclass(frozen=True)
class Stalls:
    """Tells how long each of many intervals was held up, and by what.

    ``own`` holds each request's own work on the loop in a time of its own: request * ``stride`` + time - ``origin``.
    """

    stopped: Cover
    held: Cover
    own: Cover
    origin_ns: int
    stride_ns: int

    @staticmethod
    def of(moments: Iterable[Moment], place_of: Mapping[int, int], wall_ns: tuple[int, int]) -> Stalls:
        """Read the process's moments.

        Args:
            place_of: number of a request -> its index.
            wall_ns: from the first request's begin to the last one's end.
        """
        found = list(moments)
        stopped = Cover.of((one.start_ns, one.end_ns) for one in found if one.stage == Stage.GC)
        loops = [
            (piece, place_of.get(one.request, -1))
            for one in found
            if one.stage == Stage.LOOP
            for piece in stopped.minus(max(one.start_ns, wall_ns[0]), min(one.end_ns, wall_ns[1]))
        ]
        origin_ns, stride_ns = wall_ns[0], wall_ns[1] - wall_ns[0] + 1
        own = Cover.of(
            (place * stride_ns + start - origin_ns, place * stride_ns + end - origin_ns)
            for (start, end), place in loops
            if place >= 0
        )
        return Stalls(stopped, Cover.of(piece for piece, _ in loops), own, origin_ns, stride_ns)

    def gc_ns(self, start: Ints, end: Ints) -> Ints:
        """How long collections stopped every thread, shape [n]."""
        return self.stopped.within(start, end)

    def loop_ns(self, request: Ints, start: Ints, end: Ints) -> Ints:
        """How long others' work held the event loop, collections left out, shape [n]."""
        return self.held.within(start, end) - self.own_ns(request, start, end)

    def own_ns(self, request: Ints, start: Ints, end: Ints) -> Ints:
        """How long its own work held the event loop, collections left out, shape [n]."""
        shift = request * self.stride_ns - self.origin_ns
        return self.own.within(start + shift, end + shift)
