"""Threads of the pool: a request has one while its own code runs there, and none while it awaits."""

from __future__ import annotations

from heapq import heappop, heappush

import msgspec
import numpy as np
import pytest
from tests.unit.profiler import profile_sample

from tailcut.common.slo import parse_objectives
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.forecast.calibration import calibrate
from tailcut.profiler.forecast.forecast import Forecast, capacity, forecast, phases_of
from tailcut.profiler.forecast.service_model import THREAD, At
from tailcut.profiler.forecast.state import Known, LeverName
from tailcut.profiler.forecast.work import Work, read_work
from tailcut.profiler.levers.advice import Advice, advise
from tailcut.profiler.levers.advice_inputs import _limits
from tailcut.profiler.levers.levers import begin, pull
from tailcut.profiler.records import Pilot, Recording, Request, Span, Stage

pytestmark = pytest.mark.slow

_MS = 1_000_000
_EXECUTOR = "executor of app.py:5"


few_requests = profile_sample.few_requests(500, 250)


def awaiting(parts: list[tuple[Stage, int, float]], rate: float = 120.0, count: int = 300) -> Work:
    """Requests of an asynchronous endpoint: stage, thread and milliseconds of what it does, one after the other."""
    requests = []
    for number, at in enumerate(
        np.cumsum(np.random.default_rng(0).exponential(1e9 / rate, count)).astype(int).tolist()
    ):
        now, spans = at, []
        for stage, thread, took_ms in parts:
            end = now + int(took_ms * _MS)
            cpu_ns = -1 if stage is Stage.HTTP else end - now
            spans.append(
                Span(stage=stage, label="it", parent=0, thread=thread, start_ns=now, end_ns=end, cpu_ns=cpu_ns)
            )
            now = end
        root = Span(stage=Stage.FRAMEWORK, label="fastapi", start_ns=at, end_ns=now)
        requests.append(
            Request(
                number=number, intended_ns=at, sent_ns=at, entered_ns=at, left_ns=now, done_ns=now, status=200,
                spans=(root, *spans),
            )
        )  # fmt: skip
    recording = Recording(
        target="app:app", rate=rate, duration_s=count / rate, requests=tuple(requests), machine={"cores": "2"},
        pilot=Pilot(threads=40),
    )  # fmt: skip
    return read_work(recording, attribute(recording))


def test_a_thread_goes_back_to_the_pool_while_the_request_awaits() -> None:
    """Sixty requests await an answer at any time; of forty threads hardly one is ever in use."""
    work = awaiting([(Stage.CODE, 1, 1.0), (Stage.HTTP, 0, 500.0), (Stage.CODE, 2, 1.0)])
    state, calibration = calibrate(begin(work, Known(cores=2)))
    assert calibration.wait_scale == pytest.approx(1.0, abs=0.05)
    assert forecast(state, 120.0).p95_ms == pytest.approx(504.0, rel=0.03)
    assert forecast(state, 300.0).p95_ms == pytest.approx(505.0, rel=0.05)


def test_a_drivers_own_thread_is_none_of_the_pools() -> None:
    """As aiosqlite's: the event loop awaits what it fetches. Code that is handed over has a thread of the pool."""
    state = begin(awaiting([(Stage.WAIT, 1, 0.1), (Stage.SQL, 1, 5.0)]), Known(cores=2))
    assert not any(part.thread for job in state.work.jobs for part in job)
    state = begin(awaiting([(Stage.CODE, 1, 1.0), (Stage.MODEL, 1, 1.0)]), Known(cores=2))
    taken = [phases_of(job, state.service).count((At.TAKE, float(THREAD))) for job in state.work.jobs]
    assert set(taken) == {1}, "what follows in the same pool has the thread still"


def executing(
    rate: float,
    *,
    threads: int = 2,
    tasks: int = 1,
    stage: Stage = Stage.CODE,
    waits_for_it: bool = True,
    named: bool = True,
    handler: int = 0,
    before_ms: int = 0,
    count: int = 800,
) -> Recording:
    """A handler that hands something to an executor, where it waits 20 ms for an answer that is not hooked.

    Args:
        threads: of the executor.
        tasks: so many go out at once.
        stage: what runs in there.
        named: it is the only one of its name.
        handler: thread that the handler runs in, and waits for the result; 0: on the event loop, and it awaits it.
        before_ms: of what runs in there is code, and the rest the ``stage``.
    """
    draw = np.random.default_rng(0)
    free = [(0, 100 + number) for number in range(threads)]
    requests = []
    for number, at in enumerate(np.cumsum(draw.exponential(1e9 / rate, count)).astype(int).tolist()):
        asked, spans, ends = at + _MS // 2, list[Span](), list[int]()
        for _ in range(tasks):
            had, thread = heappop(free)
            got = max(asked, had) + _MS // 20
            ends.append(got + 20 * _MS)
            heappush(free, (ends[-1], thread))
            spans += [
                Span(stage=Stage.WAIT, label=_EXECUTOR, start_ns=asked, end_ns=got, parent=1, thread=thread),
                Span(
                    stage=Stage.CODE, label="work", place="app.py:9", start_ns=got, end_ns=ends[-1], parent=1,
                    thread=thread, cpu_ns=20 * _MS if stage is Stage.MODEL else 0,
                ),
            ]  # fmt: skip
            if stage is not Stage.CODE:
                spans.append(
                    Span(
                        stage=stage, label="Net", start_ns=got + before_ms * _MS, end_ns=ends[-1],
                        parent=1 + len(spans), thread=thread, cpu_ns=(20 - before_ms) * _MS,
                    )
                )  # fmt: skip
        if handler:
            waits = Span(
                stage=Stage.WAIT, label="another thread", start_ns=asked, end_ns=max(ends), parent=1, thread=handler
            )
            spans.append(waits)
        end = (max(ends) if waits_for_it else asked) + _MS // 2
        around = [
            Span(stage=Stage.FRAMEWORK, label="fastapi", start_ns=at + _MS // 10, end_ns=end + _MS // 10),
            Span(
                stage=Stage.CODE, label="predict", place="app.py:7", start_ns=at + _MS // 5, end_ns=end, parent=0,
                thread=handler,
            ),
        ]  # fmt: skip
        requests.append(
            Request(
                number=number, intended_ns=at, sent_ns=at, entered_ns=at + _MS // 10, left_ns=end + _MS // 10,
                done_ns=end + _MS // 5, status=200, endpoint="predict (app.py:7)", spans=(*around, *spans),
            )
        )  # fmt: skip
    return Recording(
        target="app:app", rate=rate, duration_s=count / rate, requests=tuple(requests), machine={"cores": "4"},
        pilot=Pilot(threads=40, executors={_EXECUTOR: threads} if named else {}),
    )  # fmt: skip


def advice(recording: Recording, rate: float | None = None) -> Advice:
    found = advise(recording, known=Known(cores=4), slo=parse_objectives("p95=100ms"), rate=rate)
    assert found is not None
    return found


def test_an_executor_lets_as_many_through_as_it_has_threads() -> None:
    """Two of 20 ms: a hundred requests a second, also where it was recorded at a rate at which nobody waited."""
    for rate in (10.0, 70.0):
        recording = executing(rate)
        work = read_work(recording, attribute(recording))
        assert [(hold.label, hold.at_once) for hold in work.holds.found] == [(_EXECUTOR, 2)]
        assert not work.holds.unknown
        assert work.held_ns(0) == pytest.approx(20.0 * _MS, rel=0.01)
        state, calibration = calibrate(begin(work, Known(cores=4)))
        assert abs(calibration.p95_error) < 0.25
        assert 60.0 < capacity(state, 100.0) <= 100.0 * 1.06
        assert forecast(state, 20.0).p95_ms < 35.0
        assert forecast(state, 130.0).p95_ms > 200.0
        assert capacity(pull(state, "more executors"), 100.0) > 1.7 * capacity(state, 100.0)


def test_the_report_says_what_an_executor_lets_through() -> None:
    found = advice(executing(60.0), rate=95.0)
    assert not found.doubts
    said = next(line for line in found.summary if _EXECUTOR in line)
    assert float(said.removeprefix(f"as it is, {_EXECUTOR} lets ").split()[0]) == pytest.approx(100.0, rel=0.06)
    assert any(note.startswith(f"{_EXECUTOR}: held by 2 at once, for ") for note in found.notes)
    assert (found.now.capacity or 0.0) <= 100.0 * 1.06


def test_an_executors_threads_are_none_of_the_pools() -> None:
    """A handler on the event loop has one of them; one in the pool that waits for it has one of each."""
    for handler, wanted in ((0, {(At.TAKE, 1.0)}), (7, {(At.TAKE, float(THREAD)), (At.TAKE, 1.0)})):
        recording = executing(10.0, handler=handler, count=40)
        state = begin(read_work(recording, attribute(recording)), Known(cores=4))
        for job in state.work.jobs:
            phases = phases_of(job, state.service)
            assert {phase for phase in phases if phase[0] is At.TAKE} == wanted
            # While it waits for what it handed over.
            held = [phase for phase in phases if phase[0] in (At.TAKE, At.GIVE) or phase[1] > 10.0 * _MS]
            assert held[-1 - len(wanted)][0] is At.NOWHERE


@pytest.mark.whole
def test_who_waits_in_a_thread_for_an_executor_waits_for_no_other_thread() -> None:
    """A future's result: what nobody knows of threads is no doubt there; where the executor is not played, it is."""
    assert not advice(executing(80.0, handler=7)).doubts
    doubts = advice(executing(80.0, handler=7, named=False)).doubts
    assert any("is a wait for another thread, which is not simulated" in line for line in doubts)


def test_models_in_an_executors_threads_have_cores_of_their_own() -> None:
    """As those in the pool's."""
    recording = executing(40.0, stage=Stage.MODEL)
    state = begin(read_work(recording, attribute(recording)), Known(cores=4))
    assert state.service.executors == 4


def test_a_request_that_does_several_things_at_once_in_an_executor_has_several_of_its_threads() -> None:
    """Two each of four: two requests at once, a hundred a second."""
    recording = executing(10.0, threads=4, tasks=2)
    work = read_work(recording, attribute(recording))
    assert [(hold.label, hold.at_once) for hold in work.holds.found] == [(_EXECUTOR, 2)]
    assert capacity(begin(work, Known(cores=4)), 100.0) <= 100.0 * 1.06


def test_what_a_task_hands_over_to_its_own_executor_has_a_thread_more() -> None:
    """Four threads for tasks that wait for one of their own there: two requests at once, a hundred a second."""
    recording = executing(10.0, threads=4)
    requests = []
    for one in recording.requests:
        task = one.spans[3]
        inner = [msgspec.structs.replace(span, parent=3, thread=200 + task.thread) for span in one.spans[2:]]
        inner = [msgspec.structs.replace(span, start_ns=max(span.start_ns, task.start_ns)) for span in inner]
        requests.append(msgspec.structs.replace(one, spans=(*one.spans, *inner)))
    recording = msgspec.structs.replace(recording, requests=tuple(requests))
    work = read_work(recording, attribute(recording))
    assert [(hold.label, hold.at_once) for hold in work.holds.found] == [(_EXECUTOR, 2)]
    assert work.held_ns(0) == pytest.approx(20.0 * _MS, rel=0.01)


def test_a_model_has_no_thread_of_an_executor_where_tailcut_runs_it() -> None:
    """One thread, for 6 ms of code and then 14 ms of a model: without the model it lets three times as many through."""
    recording = executing(20.0, threads=1, stage=Stage.MODEL, before_ms=6)
    state = begin(read_work(recording, attribute(recording)), Known(cores=4))
    assert state.work.held_ns(0) == pytest.approx(20.0 * _MS, rel=0.01)
    levers: tuple[LeverName, ...] = ("serving path", "batching")
    for lever in levers:
        assert pull(state, lever).work.held_ns(0) == pytest.approx(6.0 * _MS, rel=0.01)


@pytest.mark.parametrize("lacks", ["waiting", "name"])
def test_an_executor_of_which_too_little_is_known_is_not_played(lacks: str) -> None:
    """Requests do not wait for what runs there, or there are others like it."""
    recording = executing(80.0, waits_for_it=lacks != "waiting", named=lacks != "name")
    found = read_work(recording, attribute(recording)).holds
    assert found.found == ()
    assert list(found.unknown) == [_EXECUTOR]
    assert any(f"is a wait for {_EXECUTOR}, which is not simulated" in line for line in advice(recording).doubts)


def test_a_recording_without_its_executors_has_none() -> None:
    """One of an earlier version."""
    recording = executing(10.0, count=40)
    before = msgspec.to_builtins(recording)
    del before["pilot"]["executors"]
    assert msgspec.convert(before, Recording).pilot.executors == {}


def test_what_an_executor_lets_through_is_told() -> None:
    """20 ms in each of two threads let 100 requests/s through."""
    recording = executing(60.0, stage=Stage.MODEL)
    ends = Forecast(
        rate=60.0, p50_ms=20.0, p95_ms=40.0, p95_low_ms=40.0, p95_high_ms=40.0, busy_share=0.5, capacity=120.0
    )
    (said,) = _limits(begin(read_work(recording, attribute(recording)), Known(cores=4)), ends)
    assert float(said.removeprefix(f"{_EXECUTOR} lets ").split()[0]) == pytest.approx(100.0, rel=0.06)
