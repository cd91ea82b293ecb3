"""Time that no span covers: on the way, held up by the process, or not known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tailcut.core.profiling.flat import STAGE_AT, STAGES, Flat, Ints
from tailcut.core.profiling.records import Moment, Recording, Sample, Stage

_GC, _LOOP, _ACCEPT = STAGE_AT[Stage.GC], STAGE_AT[Stage.LOOP], STAGE_AT[Stage.ACCEPT]
_NETWORK, _CODE, _UNKNOWN = STAGE_AT[Stage.NETWORK], STAGE_AT[Stage.CODE], STAGE_AT[Stage.UNATTRIBUTED]


@dataclass
class Gaps:
    """Intervals within requests: ``request`` is an index into the flat requests; each shape [gaps].

    ``code`` is what samples say of them: (request's index, function) -> nanoseconds.
    """

    request: Ints
    start_ns: Ints
    end_ns: Ints
    code: dict[tuple[int, str], int] = field(default_factory=dict)

    @staticmethod
    def between(flat: Flat, roots: Ints, requests: Ints) -> Gaps:
        """Find what lies before, between and after root spans that do not overlap.

        Args:
            roots: indices of the root spans, by request and start.
            requests: indices of the requests that they belong to; some may have none.
        """
        # Every gap ends where a root span starts, or with its request; it starts where the root before ended.
        request = np.concatenate([flat.request[roots], requests])
        end_ns = np.concatenate([flat.start_ns[roots], flat.done_ns[requests]])
        after_ns = np.concatenate([flat.end_ns[roots], flat.done_ns[requests]])
        last = np.concatenate([np.zeros(len(roots), bool), np.ones(len(requests), bool)])
        order = np.lexsort((after_ns, end_ns, last, request))
        request, end_ns, after_ns = request[order], end_ns[order], after_ns[order]
        begins = np.ones(len(request), dtype=bool)
        begins[1:] = request[1:] != request[:-1]
        start_ns = np.where(begins, flat.intended_ns[request], np.concatenate([np.zeros(1, np.int64), after_ns])[:-1])
        some = end_ns > start_ns
        return Gaps(request[some], start_ns[some], end_ns[some])

    def add(self, gaps: Sequence[tuple[int, int, int]]) -> None:
        """Take in (request, start, end)."""
        found = np.array(gaps, dtype=np.int64).reshape(len(gaps), 3)
        self.request = np.concatenate([self.request, found[:, 0]])
        self.start_ns = np.concatenate([self.start_ns, found[:, 1]])
        self.end_ns = np.concatenate([self.end_ns, found[:, 2]])


def attribute_gaps(flat: Flat, gaps: Gaps, recording: Recording) -> Ints:
    """Say what the gaps were, shape [n, stages]; ``gaps.code`` is filled."""
    stage_ns = np.zeros((len(flat.requests), len(STAGES)), dtype=np.int64)
    stopped = _Cover.of((one.start_ns, one.end_ns) for one in recording.moments if one.stage == Stage.GC)
    held = _Cover.of((one.start_ns, one.end_ns) for one in recording.moments if one.stage == Stage.LOOP)
    held = held.without(stopped)
    number_at = {one.number: place for place, one in enumerate(flat.requests)}
    own = _own_moments(recording.moments, number_at)
    nobody = np.where(flat.seen, flat.entered_ns, flat.sent_ns)  # on its way; the server never told of the others
    parts = (
        (flat.intended_ns, flat.sent_ns, None, _NETWORK),
        (flat.sent_ns, nobody, _ACCEPT, _NETWORK),
        (nobody, flat.left_ns, _LOOP, _UNKNOWN),
        (flat.left_ns, flat.done_ns, None, _NETWORK),
    )
    for low, high, busy, rest in parts:
        start = np.maximum(gaps.start_ns, low[gaps.request])
        end = np.minimum(gaps.end_ns, high[gaps.request])
        some = end > start
        request, start, end = gaps.request[some], start[some], end[some]
        left = end - start
        if busy is not None:
            gc_ns = stopped.within(start, end)
            busy_ns = held.within(start, end) - _own_within(own, held, request, start, end)
            _put(stage_ns, request, _GC, gc_ns)
            _put(stage_ns, request, busy, busy_ns)
            left = left - gc_ns - busy_ns
        _put(stage_ns, request, rest, left)
    _read_samples(flat, gaps, recording.samples, number_at, stage_ns)
    return stage_ns


def _put(stage_ns: Ints, request: Ints, stage: int, took_ns: Ints) -> None:
    np.add.at(stage_ns[:, stage], request, took_ns)


@dataclass(frozen=True)
class _Cover:
    """Intervals that do not overlap, ascending, and what they sum to up to each; a first one at 0 is empty."""

    start: Ints
    end: Ints
    before: Ints

    @staticmethod
    def of(intervals: Iterable[tuple[int, int]]) -> _Cover:
        merged: list[list[int]] = []
        for start, end in sorted(intervals):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            elif end > start:
                merged.append([start, end])
        found = np.array([[0, 0], *merged], dtype=np.int64)
        length = found[:, 1] - found[:, 0]
        return _Cover(found[:, 0], found[:, 1], np.cumsum(length) - length)

    def up_to(self, at: Ints) -> Ints:
        """Sum of what lies before each moment."""
        place = np.maximum(np.searchsorted(self.start, at, side="right") - 1, 0)
        result: Ints = self.before[place] + np.minimum(at, self.end[place]) - self.start[place]
        return result

    def within(self, start: Ints, end: Ints) -> Ints:
        return self.up_to(end) - self.up_to(start)

    def without(self, other: _Cover) -> _Cover:
        """What of it the other does not cover."""
        pieces: list[tuple[int, int]] = []
        place = 1
        for start, end in zip(self.start[1:].tolist(), self.end[1:].tolist(), strict=True):
            while place < len(other.end) and other.end[place] <= start:
                place += 1
            at, seen = start, place
            while seen < len(other.end) and other.start[seen] < end:
                pieces.append((at, int(other.start[seen])))
                at = int(other.end[seen])
                seen += 1
            pieces.append((at, end))
        return _Cover.of((start, end) for start, end in pieces if end > start)


def _own_moments(moments: Iterable[Moment], number_at: dict[int, int]) -> dict[int, list[tuple[int, int]]]:
    own: dict[int, list[tuple[int, int]]] = {}
    for one in moments:
        if one.stage == Stage.LOOP and one.request in number_at:
            own.setdefault(number_at[one.request], []).append((one.start_ns, one.end_ns))
    return {
        place: list(zip(c.start.tolist(), c.end.tolist(), strict=True))
        for place, c in ((place, _Cover.of(found)) for place, found in own.items())
    }


def _own_within(
    own: dict[int, list[tuple[int, int]]], held: _Cover, request: Ints, start: Ints, end: Ints
) -> npt.NDArray[np.int64]:
    """What of the held-up time was the request's own work: that is no wait."""
    found = np.zeros(len(request), dtype=np.int64)
    for place in np.flatnonzero(np.isin(request, list(own))).tolist() if own else []:
        for low, high in own[int(request[place])]:
            low_, high_ = max(low, int(start[place])), min(high, int(end[place]))
            if high_ > low_:
                found[place] += int(held.within(np.array([low_]), np.array([high_]))[0])
    return found


def _read_samples(flat: Flat, gaps: Gaps, samples: Iterable[Sample], number_at: dict[int, int], stage_ns: Ints) -> None:
    """Give to the user's code what samples saw of it where no span was, at most what is unattributed."""
    seen = [one for one in samples if one.place and one.request in number_at]
    if not seen:
        return
    order = np.lexsort((gaps.start_ns, gaps.request))
    begins = np.searchsorted(gaps.request[order], np.arange(len(flat.requests) + 1))
    reached: dict[int, int] = {}
    for one in sorted(seen, key=lambda sample: sample.at_ns):
        request = number_at[one.request]
        for gap in order[begins[request] : begins[request + 1]].tolist():
            if not gaps.start_ns[gap] <= one.at_ns < gaps.end_ns[gap]:
                continue
            low = max(int(gaps.start_ns[gap]), one.at_ns - one.weight_ns, reached.get(request, 0))
            took = min(max(one.at_ns - low, 0), int(stage_ns[request, _UNKNOWN]))
            reached[request] = one.at_ns
            stage_ns[request, _UNKNOWN] -= took
            stage_ns[request, _CODE] += took
            gaps.code[request, one.place] = gaps.code.get((request, one.place), 0) + took
