"""Attribution of wall time: exact, never negative, whatever the order; arrays and sweep agree."""

from __future__ import annotations

from unittest import mock

import msgspec
import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scale import sized

from tailcut.profiler.attribution import stages
from tailcut.profiler.attribution.span_table import STAGES, Flat, Ints
from tailcut.profiler.attribution.stages import attribute, sweep
from tailcut.profiler.records import Moment, ProfiledProcess, RecordedRequest, RecordedSpan, Recording, Stage

_STAGES = st.sampled_from([Stage.SQL, Stage.MODEL, Stage.CODE, Stage.FRAMEWORK, Stage.WAIT, Stage.LOCK])
_WAITS = (Stage.WAIT, Stage.LOCK)
_TIME = st.integers(0, 60)


@st.composite
def spans(draw: st.DrawFn) -> tuple[RecordedSpan, ...]:
    found: list[RecordedSpan] = []
    for number in range(draw(st.integers(0, 7))):
        start = draw(_TIME)
        found.append(
            RecordedSpan(
                stage=draw(_STAGES),
                label=draw(st.sampled_from("ab")),
                start_ns=start,
                end_ns=start + draw(st.integers(0, 30)),
                parent=draw(st.integers(-1, number - 1)),
                thread=draw(st.integers(0, 1)),
                cpu_ns=draw(st.sampled_from([-1, 5])),
                delay_ns=draw(st.integers(-1, 9)),
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
            RecordedRequest(
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
    # A pilot's way is a loopback, another's is not.
    pilot = ProfiledProcess(loop=draw(st.sampled_from(["", "asyncio"])), watched=draw(st.booleans()))
    return Recording(
        target="a:b", rate=1.0, duration_s=1.0, requests=tuple(requests), moments=tuple(moments), pilot=pilot
    )


@given(recordings())
@settings(max_examples=sized(100, 300), deadline=None)
def test_stages_sum_to_the_wall_time_and_none_is_negative(recording: Recording) -> None:
    """Whatever spans and moments there are."""
    found = attribute(recording)
    assert (found.stage_ns.sum(axis=1) == found.flat.wall_ns).all()
    assert (found.stage_ns >= 0).all()
    assert (found.self_ns >= 0).all()


@given(recordings(), st.randoms(use_true_random=False))
@settings(max_examples=sized(60, 150), deadline=None)
def test_order_does_not_matter(recording: Recording, random: object) -> None:
    """Neither that of requests, nor of spans or moments."""
    requests = [_reordered(one, random) for one in recording.requests]
    order = list(range(len(requests)))
    random.shuffle(order)  # type: ignore[attr-defined]
    moments = list(recording.moments)
    random.shuffle(moments)  # type: ignore[attr-defined]
    other = msgspec.structs.replace(
        recording,
        requests=tuple(requests[place] for place in order),
        moments=tuple(moments),
    )
    assert (attribute(other).stage_ns == attribute(recording).stage_ns[order]).all()


@given(recordings())
@settings(max_examples=sized(100, 300), deadline=None)
def test_arrays_and_sweep_agree(recording: Recording) -> None:
    """What is done at once for requests without overlaps is what the sweep finds for each."""
    at_once = attribute(recording)

    def none_is_plain(flat: Flat) -> tuple[Ints, npt.NDArray[np.bool_]]:
        order, plain = plain_of(flat)
        return order, np.zeros_like(plain)

    plain_of = stages._plain
    with mock.patch.object(stages, "_plain", none_is_plain):
        swept = attribute(recording)
    assert (at_once.stage_ns == swept.stage_ns).all()
    assert (at_once.self_ns == swept.self_ns).all()
    assert _intervals(at_once) == _intervals(swept)


@given(spans())
@settings(max_examples=sized(100, 200), deadline=None)
def test_a_moment_belongs_to_innermost_spans_only(found: tuple[RecordedSpan, ...]) -> None:
    """Nanosecond by nanosecond: those that cover it and of whose inner spans none does share it, waits come last.

    Of what computes only the inner spans on its own thread count.
    """
    starts, ends = [span.start_ns for span in found], [span.end_ns for span in found]
    names = [(span.stage, span.label, span.place) for span in found]
    waits = [span.stage in _WAITS for span in found]
    parents, threads = [span.parent for span in found], [span.thread for span in found]
    computes = [span.cpu_ns >= 0 for span in found]
    swept = sweep(starts, ends, parents, names, waits, threads, computes, (0, 100), {})
    expected = np.zeros(len(found))
    for at in range(100):
        active = [number for number, span in enumerate(found) if span.start_ns <= at < span.end_ns]
        covered = {above for number in active for above in _ancestors(found, number)}
        innermost = [number for number in active if number not in covered]
        leaves = [number for number in innermost if not waits[number]] or innermost
        for number in leaves:
            expected[number] += 1 / len(leaves)
    assert np.abs(expected - swept.self_ns).max(initial=0) <= 2 * len(found) + 1
    assert sum(swept.self_ns) == round(expected.sum())


def test_overlapping_requests_take_the_sweep() -> None:
    """Both ways are really taken by the tests above: one request of each kind."""
    wall = {"intended_ns": 0, "sent_ns": 0, "entered_ns": 0, "left_ns": 10, "done_ns": 10, "status": 200}
    one = RecordedSpan(stage=Stage.SQL, label="a", start_ns=0, end_ns=6)
    two = RecordedSpan(stage=Stage.CACHE, label="b", start_ns=3, end_ns=9)
    after = RecordedSpan(stage=Stage.CACHE, label="b", start_ns=6, end_ns=9)
    requests = (
        RecordedRequest(number=0, spans=(one, two), **wall),
        RecordedRequest(number=1, spans=(one, after), **wall),
    )
    found = attribute(Recording(target="", rate=1, duration_s=1, requests=requests))
    _, plain = stages._plain(found.flat)
    assert plain.tolist() == [False, True]
    assert found.self_ns.tolist() == [4, 5, 6, 3]  # the odd nanosecond of three goes to the first by name


def _ancestors(found: tuple[RecordedSpan, ...], number: int) -> list[int]:
    above, thread = [], found[number].thread
    while (number := found[number].parent) >= 0:
        if found[number].cpu_ns < 0 or found[number].thread == thread:
            above.append(number)
    return above


def _intervals(found: stages.Attribution) -> list[list[int]]:
    """The gaps, those that touch joined."""
    gaps = found.gaps
    joined: list[list[int]] = []
    for request, start, end in sorted(zip(gaps.request, gaps.start_ns, gaps.end_ns, strict=True)):
        if joined and joined[-1][0] == request and joined[-1][2] == start:
            joined[-1][2] = end
        else:
            joined.append([request, start, end])
    return joined


def _reordered(request: RecordedRequest, random: object) -> RecordedRequest:
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


_WALL = {"intended_ns": 0, "sent_ns": 10, "entered_ns": 30, "left_ns": 90, "done_ns": 100, "status": 200}


def _stages(request: RecordedRequest, *moments: Moment) -> dict[str, int]:
    found = attribute(Recording(target="", rate=1, duration_s=1, requests=(request,), moments=moments))
    return {str(stage): int(took) for stage, took in zip(STAGES, found.stage_ns[0], strict=True) if took}


def test_others_work_on_the_loop_is_a_wait() -> None:
    """For code on the loop and for what has not entered; not for a query under way, nor for a thread."""
    code = RecordedSpan(stage=Stage.CODE, label="f", start_ns=30, end_ns=90)
    query = RecordedSpan(stage=Stage.SQL, label="q", start_ns=50, end_ns=70, parent=0)
    others = Moment(stage=Stage.LOOP, start_ns=20, end_ns=60, request=9)
    found = _stages(RecordedRequest(number=1, spans=(code, query), **_WALL), others)
    assert found == {"network": 30, "accept": 10, "loop": 20, "sql": 20, "code": 20}
    in_thread = msgspec.structs.replace(code, thread=1)
    assert "loop" not in _stages(RecordedRequest(number=1, spans=(in_thread, query), **_WALL), others)
    mine = msgspec.structs.replace(others, request=1)
    assert _stages(RecordedRequest(number=1, spans=(code, query), **_WALL), mine) == {
        "network": 40,
        "sql": 20,
        "code": 40,
    }


def test_who_waits_for_its_own_work_is_busy_with_that_work() -> None:
    """A future's result: what takes the time is the query in the other thread; the way there and back is a wait."""
    handler = RecordedSpan(stage=Stage.CODE, label="f", start_ns=30, end_ns=90, thread=1)
    result = RecordedSpan(stage=Stage.WAIT, label="another thread", start_ns=35, end_ns=85, parent=0, thread=1)
    queued = RecordedSpan(stage=Stage.WAIT, label="executor", start_ns=35, end_ns=45, parent=0, thread=2)
    work = RecordedSpan(stage=Stage.CODE, label="g", start_ns=45, end_ns=80, parent=0, thread=2)
    query = RecordedSpan(stage=Stage.SQL, label="q", start_ns=50, end_ns=75, parent=3, thread=2)
    found = _stages(RecordedRequest(number=1, spans=(handler, result, queued, work, query), **_WALL))
    assert found == {"network": 40, "wait": 15, "sql": 25, "code": 20}


def _handed(*inside: RecordedSpan, stage: Stage = Stage.CODE) -> dict[str, int]:
    """A handler in a thread that never awaits, and what it has handed to others."""
    outer = RecordedSpan(stage=Stage.FRAMEWORK, label="fastapi", start_ns=30, end_ns=90)
    handler = RecordedSpan(stage=stage, label="f", start_ns=40, end_ns=80, parent=0, thread=1, cpu_ns=30)
    return _stages(RecordedRequest(number=1, spans=(outer, handler, *inside), **_WALL))


def test_code_that_computes_keeps_its_time_while_others_work_for_it() -> None:
    """It handed something over that it does not wait for, and that waits itself, or runs beside it."""
    queued = RecordedSpan(stage=Stage.WAIT, label="executor", start_ns=45, end_ns=75, parent=1, thread=2)
    assert _handed(queued) == {"network": 40, "framework": 20, "code": 40}
    query = RecordedSpan(stage=Stage.SQL, label="q", start_ns=50, end_ns=70, parent=1, thread=2, cpu_ns=1)
    assert _handed(query) == {"network": 40, "framework": 20, "code": 30, "sql": 10}


def test_what_code_calls_on_its_own_thread_has_its_time() -> None:
    """Also where something runs beside both, which goes on when the code is over."""
    called = RecordedSpan(stage=Stage.MODEL, label="m", start_ns=50, end_ns=70, parent=1, thread=1, cpu_ns=20)
    beside = RecordedSpan(stage=Stage.SQL, label="q", start_ns=60, end_ns=86, parent=1, thread=2)
    assert _handed(called, beside) == {"network": 40, "framework": 14, "code": 15, "model": 15, "sql": 16}


def test_a_drivers_call_is_what_it_waits_for() -> None:
    """Nobody looks for waits in it: what another thread does for it is what takes the time."""
    inside = RecordedSpan(stage=Stage.CODE, label="g", start_ns=50, end_ns=70, parent=1, thread=2, cpu_ns=20)
    assert _handed(inside, stage=Stage.HTTP) == {"network": 40, "framework": 20, "http": 20, "code": 20}


def test_a_collection_stops_whatever_runs() -> None:
    """Model and thread too; and waiting for a core is taken out of what waited."""
    model = RecordedSpan(stage=Stage.MODEL, label="m", start_ns=30, end_ns=90, thread=2, cpu_ns=20, delay_ns=15)
    found = _stages(RecordedRequest(number=1, spans=(model,), **_WALL), Moment(stage=Stage.GC, start_ns=40, end_ns=50))
    assert found == {"network": 40, "gc": 10, "wait": 15, "model": 35}


def test_delays_of_what_runs_side_by_side_overlap_as_it_does() -> None:
    """Four threads of 40 ns, each of which waited 12 for a core: so long the request waited, and the rest computed."""
    done = {"intended_ns": 0, "sent_ns": 0, "entered_ns": 10, "left_ns": 50, "done_ns": 60, "status": 200}
    spans = tuple(
        RecordedSpan(stage=Stage.CODE, label="f", start_ns=10, end_ns=50, thread=one, cpu_ns=28, delay_ns=12)
        for one in (1, 2, 3, 4)
    )
    found = _stages(RecordedRequest(number=1, spans=spans, **done))
    assert (found["wait"], found["code"]) == (12, 28)


def test_a_request_without_an_answer_has_no_time() -> None:
    """Nor has one that failed: its time is not comparable."""
    gone = RecordedRequest(number=0, intended_ns=0, sent_ns=1, done_ns=-1, status=-1)
    failed = RecordedRequest(number=1, **(_WALL | {"status": 500}))
    found = attribute(Recording(target="", rate=1, duration_s=1, requests=(gone, failed)))
    assert found.stage_ns.shape == (0, len(STAGES))
