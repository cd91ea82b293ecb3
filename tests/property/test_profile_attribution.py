"""Attribution of wall time: exact, never negative, whatever the order; arrays and sweep agree."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tailcut.core.profiling import attribution as subject
from tailcut.core.profiling.attribution import attribute
from tailcut.core.profiling.flat import STAGES, Name
from tailcut.core.profiling.records import Moment, Recording, Request, Sample, Span, Stage
from tailcut.core.profiling.sweep import sweep

_STAGES = st.sampled_from([Stage.SQL, Stage.MODEL, Stage.CODE, Stage.CACHE])
_TIME = st.integers(0, 60)


@st.composite
def spans(draw: st.DrawFn) -> tuple[Span, ...]:
    found: list[Span] = []
    for number in range(draw(st.integers(0, 7))):
        start = draw(_TIME)
        found.append(
            Span(
                stage=draw(_STAGES),
                label=draw(st.sampled_from("ab")),
                start_ns=start,
                end_ns=start + draw(st.integers(0, 30)),
                parent=draw(st.integers(-1, number - 1)),
            )
        )
    return tuple(found)


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    requests = []
    for number in range(draw(st.integers(1, 4))):
        edges = sorted(draw(st.lists(_TIME, min_size=5, max_size=5)))
        entered, left = (edges[2], edges[3]) if draw(st.booleans()) else (-1, -1)
        requests.append(
            Request(
                number=number + 7,
                intended_ns=edges[0],
                sent_ns=edges[1],
                entered_ns=entered,
                left_ns=left,
                done_ns=edges[4],
                status=200,
                spans=draw(spans()),
            )
        )
    moments = []
    for _ in range(draw(st.integers(0, 4))):
        start = draw(_TIME)
        stage = draw(st.sampled_from([Stage.GC, Stage.LOOP]))
        end = start + draw(st.integers(0, 20))
        moments.append(Moment(stage=stage, start_ns=start, end_ns=end, request=draw(st.integers(-1, 11))))
    samples = [
        Sample(stack=("f",), at_ns=draw(_TIME), weight_ns=draw(st.integers(0, 20)), request=8, place="f (a.py:1)")
        for _ in range(draw(st.integers(0, 4)))
    ]
    return Recording(
        target="a:b", rate=1.0, duration_s=1.0, requests=tuple(requests), moments=tuple(moments), samples=tuple(samples)
    )


@given(recordings())
@settings(max_examples=300, deadline=None)
def test_stages_sum_to_the_wall_time_and_none_is_negative(recording: Recording) -> None:
    """Whatever spans, moments and samples there are."""
    found = attribute(recording)
    assert (found.stage_ns.sum(axis=1) == found.flat.wall_ns).all()
    assert (found.stage_ns >= 0).all()
    assert (found.self_ns >= 0).all()
    assert sum(found.gaps.code.values()) <= found.stage_ns[:, STAGES.index(Stage.CODE)].sum()


@given(recordings(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_order_does_not_matter(recording: Recording, random: object) -> None:
    """Neither that of requests, nor of spans, moments or samples."""
    requests = [_reordered(one, random) for one in recording.requests]
    order = list(range(len(requests)))
    random.shuffle(order)  # type: ignore[attr-defined]
    moments, samples = list(recording.moments), list(recording.samples)
    random.shuffle(moments)  # type: ignore[attr-defined]
    random.shuffle(samples)  # type: ignore[attr-defined]
    other = msgspec.structs.replace(
        recording,
        requests=tuple(requests[place] for place in order),
        moments=tuple(moments),
        samples=tuple(samples),
    )
    assert (attribute(other).stage_ns == attribute(recording).stage_ns[order]).all()


@given(recordings())
@settings(max_examples=200, deadline=None)
def test_arrays_and_sweep_agree(recording: Recording) -> None:
    """What is done at once for requests without overlaps is what the sweep finds for each."""
    found = attribute(recording)
    flat = found.flat
    for number, request in enumerate(flat.requests):
        low, high = int(flat.first[number]), int(flat.first[number + 1])
        swept = sweep(
            flat.start_ns[low:high].tolist(),
            flat.end_ns[low:high].tolist(),
            [span.parent for span in request.spans],
            [Name(span.stage, span.label, span.place) for span in request.spans],
            (int(flat.intended_ns[number]), int(flat.done_ns[number])),
        )
        assert swept.self_ns == found.self_ns[low:high].tolist()
        mine = found.gaps.request == number
        gaps = zip(found.gaps.start_ns[mine].tolist(), found.gaps.end_ns[mine].tolist(), strict=True)
        assert _merged(sorted(gaps)) == _merged(swept.gaps)


@given(spans())
@settings(max_examples=200, deadline=None)
def test_a_moment_belongs_to_innermost_spans_only(found: tuple[Span, ...]) -> None:
    """Nanosecond by nanosecond: those that cover it and of whose inner spans none does share it."""
    starts, ends = [span.start_ns for span in found], [span.end_ns for span in found]
    names = [Name(span.stage, span.label, span.place) for span in found]
    swept = sweep(starts, ends, [span.parent for span in found], names, (0, 100))
    expected = np.zeros(len(found))
    for at in range(100):
        active = [number for number, span in enumerate(found) if span.start_ns <= at < span.end_ns]
        covered = {above for number in active for above in _ancestors(found, number)}
        leaves = [number for number in active if number not in covered]
        for number in leaves:
            expected[number] += 1 / len(leaves)
    assert np.abs(expected - swept.self_ns).max(initial=0) <= 2 * len(found) + 1
    assert sum(swept.self_ns) == round(expected.sum())


def test_overlapping_requests_take_the_sweep() -> None:
    """Both ways are really taken by the tests above: one request of each kind."""
    wall = {"intended_ns": 0, "sent_ns": 0, "entered_ns": 0, "left_ns": 10, "done_ns": 10, "status": 200}
    one = Span(stage=Stage.SQL, label="a", start_ns=0, end_ns=6)
    two = Span(stage=Stage.CACHE, label="b", start_ns=3, end_ns=9)
    after = Span(stage=Stage.CACHE, label="b", start_ns=6, end_ns=9)
    requests = (Request(number=0, spans=(one, two), **wall), Request(number=1, spans=(one, after), **wall))
    found = attribute(Recording(target="", rate=1, duration_s=1, requests=requests))
    _, plain = subject._plain(found.flat)
    assert plain.tolist() == [False, True]
    assert found.self_ns.tolist() == [4, 5, 6, 3]  # the odd nanosecond of three goes to the first by name


def _ancestors(found: tuple[Span, ...], number: int) -> list[int]:
    above = []
    while (number := found[number].parent) >= 0:
        above.append(number)
    return above


def _merged(intervals: list[tuple[int, int]]) -> list[list[int]]:
    merged: list[list[int]] = []
    for start, end in intervals:
        if merged and merged[-1][1] == start:
            merged[-1][1] = end
        else:
            merged.append([start, end])
    return merged


def _reordered(request: Request, random: object) -> Request:
    """Shuffle the spans, parents still before children."""
    left = list(range(len(request.spans)))
    placed: list[int] = []
    while left:
        ready = [number for number in left if request.spans[number].parent in (-1, *placed)]
        chosen = random.choice(ready)  # type: ignore[attr-defined]
        left.remove(chosen)
        placed.append(chosen)
    place_of = {number: place for place, number in enumerate(placed)}
    spans = [
        msgspec.structs.replace(
            request.spans[number],
            parent=place_of[request.spans[number].parent] if request.spans[number].parent >= 0 else -1,
        )
        for number in placed
    ]
    return msgspec.structs.replace(request, spans=tuple(spans))
