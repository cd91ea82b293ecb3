"""Locks, semaphores and connection pools: what is held, for how long, and what that means for levers and capacity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush

import msgspec
import numpy as np
import pytest
from tests.unit.profiler import profile_sample

from tailcut.common.slo import parse_objectives
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.forecast.calibration import calibrate
from tailcut.profiler.forecast.forecast import capacity, forecast, phases_of
from tailcut.profiler.forecast.service_model import At
from tailcut.profiler.forecast.state import Known, State
from tailcut.profiler.forecast.work import Work, read_work
from tailcut.profiler.levers.advice import Advice, advise
from tailcut.profiler.levers.levers import begin, pull
from tailcut.profiler.levers.priors import measured
from tailcut.profiler.records import Pilot, Recording, Request, Span, Stage

pytestmark = pytest.mark.slow

_MS = 1_000_000
_LOCK = "threading.Lock of app.py:5"


few_requests = profile_sample.few_requests(500, 250)


def locked(
    rate: float = 80.0,
    *,
    held_ms: float = 8.0,
    odd: float = 1.0,
    at_once: int = 1,
    keys: int = 1,
    label: str = _LOCK,
    inside: Stage = Stage.SQL,
    handed_over_ms: float = 0.0,
    count: int = 800,
) -> Recording:
    """A handler that takes what only so many hold, calls something while it has it, then does 1 ms of its own.

    Args:
        odd: so many times as long it is held by every other request.
        keys: so many of it, of one name, of which each request takes one.
        inside: what is called; code: it computes, which makes no span.
        handed_over_ms: until who waited runs, while the one before goes on to its reply.
    """
    draw = np.random.default_rng(0)
    pool = label.endswith("_pool")
    free = [[0] * at_once for _ in range(keys)]
    requests = []
    for number, at in enumerate(np.cumsum(draw.exponential(1e9 / rate, count)).astype(int).tolist()):
        mine = free[int(draw.integers(keys))]
        asked, had = at + _MS // 5, heappop(mine)
        got = max(asked + (30_000 if pool else 0), had + int(handed_over_ms * _MS))
        holds_ms = held_ms * (odd if number % 2 else 1.0)
        done = got + int(holds_ms * _MS)
        heappush(mine, done)
        end = done + _MS
        computes, replies = inside is Stage.CODE, handed_over_ms > 0
        cpu = int((1 + (holds_ms if computes else 0)) * _MS)
        spans = [
            Span(stage=Stage.FRAMEWORK, label="fastapi", start_ns=at + _MS // 10, end_ns=end + _MS // 10),
            Span(
                stage=Stage.CODE, label="predict", place="app.py:7", start_ns=asked, parent=0, thread=1,
                end_ns=done if replies else end, cpu_ns=0 if replies else cpu,
            ),
        ]  # fmt: skip
        if replies:
            spans.append(Span(stage=Stage.ENCODE, label="json", start_ns=done, end_ns=end, parent=0))
        if got > asked:
            stage = Stage.WAIT if pool else Stage.LOCK
            spans.append(
                Span(stage=stage, label=label, place="app.py:9", start_ns=asked, end_ns=got, parent=1, thread=1)
            )
        if not computes:
            called = Span(stage=inside, label="q", place="app.py:10", start_ns=got, end_ns=done, parent=1, thread=1)
            spans.append(called)
        requests.append(
            Request(
                number=number, intended_ns=at, sent_ns=at, entered_ns=at + _MS // 10, left_ns=end + _MS // 10,
                done_ns=end + _MS // 5, status=200, endpoint="predict (app.py:7)", spans=tuple(spans),
            )
        )  # fmt: skip
    return Recording(
        target="app:app", rate=rate, duration_s=count / rate, requests=tuple(requests), machine={"cores": "2"},
        pilot=Pilot(threads=40),
    )  # fmt: skip


def work_of(recording: Recording) -> Work:
    return read_work(recording, attribute(recording))


def state_of(recording: Recording, cores: int = 2) -> State:
    return calibrate(begin(work_of(recording), Known(cores=cores)))[0]


def advice(recording: Recording, slo: str = "p95=100ms", rate: float | None = None) -> Advice:
    found = advise(recording, known=Known(cores=2), slo=parse_objectives(slo), rate=rate)
    assert found is not None
    return found


def test_a_lock_is_held_for_as_long_as_it_goes_from_one_to_the_next() -> None:
    """Of those too that found it free, and made no span of it."""
    work = work_of(locked())
    assert [(hold.label, hold.at_once) for hold in work.holds.found] == [(_LOCK, 1)]
    assert work.held_ns(0) == pytest.approx(8.0 * _MS, rel=0.05)
    assert all(any(part.held and part.stage is Stage.SQL for part in job) for job in work.jobs)
    assert not any(part.held for job in work.jobs for part in job if part.stage is Stage.FRAMEWORK)


def test_code_that_computes_with_a_lock_holds_it() -> None:
    """Eight of its nine milliseconds, though no span says which."""
    work = work_of(locked(inside=Stage.CODE, rate=60.0))
    assert work.held_ns(0) == pytest.approx(8.0 * _MS, rel=0.1)
    assert work.cpu_of(Stage.CODE) == pytest.approx(9.0 * _MS, rel=0.01)


def test_what_is_done_until_the_next_one_runs_is_not_done_with_the_lock() -> None:
    """A thread that waits needs a moment to wake up: nobody takes the lock again for the reply."""
    recording = locked(handed_over_ms=0.4)
    state = begin(work_of(recording), Known(cores=2))
    taken = [phases_of(job, state.service).count((At.TAKE, 1.0)) for job in state.work.jobs]
    assert set(taken) == {1}
    assert not any(part.held for job in state.work.jobs for part in job if part.stage is Stage.ENCODE)


def test_waiting_for_a_lock_comes_back_when_it_is_played() -> None:
    """As long as it was at the rate of the recording, without end where it lets no more through."""
    recording = locked()
    state, calibration = calibrate(begin(work_of(recording), Known(cores=2)))
    assert abs(calibration.p95_error) < 0.25
    assert forecast(state, 20.0).p95_ms < 20.0
    assert forecast(state, 135.0).p95_ms > 300.0
    assert 85.0 < capacity(state, 100.0) <= 125.0 * 1.05


def test_the_report_says_what_a_lock_lets_through() -> None:
    """Not thousands of requests a second, because there is CPU for them."""
    found = advice(locked(), rate=105.0)
    said = next(line for line in found.summary if _LOCK in line)
    assert said.startswith(f"as it is, {_LOCK} lets ")
    assert said.endswith(" requests/s through")
    assert float(said.removeprefix(f"as it is, {_LOCK} lets ").split()[0]) == pytest.approx(125.0, rel=0.06)
    assert (found.now.capacity or 0.0) <= 125.0 * 1.06
    assert any(note.startswith(f"{_LOCK}: held by 1 at once, for ") for note in found.notes)
    assert not found.doubts
    for one in found.levers:
        if one.lever in ("runtime", "INT8", "batching", "concurrent I/O", "serving path"):
            assert one.capacity <= 125.0 * 1.06


def test_processes_have_locks_of_their_own() -> None:
    """Two let twice as many through."""
    state = state_of(locked())
    assert capacity(pull(state, "more executors"), 100.0) > 1.7 * capacity(state, 100.0)


def test_who_fetches_nothing_needs_no_lock_for_it() -> None:
    """At best, a feature cache."""
    state = state_of(locked())
    assert capacity(pull(state, "feature cache", bound=True), 100.0) > 1000.0


def test_a_lock_around_a_model_is_what_an_executor_does_anyway() -> None:
    """In tailcut it is not held; around a query it is."""
    model, query = (pull(state_of(locked(inside=stage)), "serving path") for stage in (Stage.MODEL, Stage.SQL))
    assert not any(part.held for job in model.work.jobs for part in job)
    assert any(part.held for job in query.work.jobs for part in job)


def test_a_lock_lets_enough_through_where_nothing_needs_doing() -> None:
    """What the report says of it is for those who need more."""
    found = advice(locked(), slo="p95=1000ms")
    assert found.summary[0].endswith("nothing needs doing")  # or this test asks nothing
    assert not any(_LOCK in line for line in found.summary)


def test_batches_take_the_place_of_a_lock_around_a_model() -> None:
    """As long as it is held no batch ever forms; one around a query is none of theirs."""
    model, query = (state_of(locked(inside=stage)) for stage in (Stage.MODEL, Stage.SQL))
    assert capacity(pull(model, "batching"), 100.0) > 1.2 * capacity(model, 100.0)
    assert capacity(pull(query, "batching"), 100.0) == pytest.approx(capacity(query, 100.0), rel=0.1)
    for bound in (False, True):
        assert not any(part.held for job in pull(model, "batching", bound=bound).work.jobs for part in job)
        assert any(part.held for job in pull(query, "batching", bound=bound).work.jobs for part in job)


def test_a_lock_is_a_models_whatever_made_that_quicker_before() -> None:
    """Eight of nine milliseconds as recorded, two of three with a runtime four times as quick: it goes all the same."""
    work = work_of(locked(inside=Stage.MODEL))
    inside = (Stage.MODEL, Stage.CODE)
    jobs = tuple(tuple(part._replace(held=(0,) if part.stage in inside else ()) for part in job) for job in work.jobs)
    state = begin(replace(work, jobs=jobs), Known(cores=2, runtime=measured(4.0)))
    for bound in (False, True):
        quick = pull(state, "runtime", bound=bound)
        assert any(part.held for job in quick.work.jobs for part in job)
        for lever in ("serving path", "batching"):
            after = pull(quick, lever)
            assert not any(part.held for job in after.work.jobs for part in job)


@pytest.mark.parametrize(
    ("label", "inside"),
    [("psycopg_pool", Stage.SQL), pytest.param("asyncio.Semaphore", Stage.HTTP, marks=pytest.mark.whole)],
)
def test_how_many_a_pool_has_is_seen_by_who_waits(label: str, inside: Stage) -> None:
    """Four of it, held for 8 ms: 500 a second are all."""
    recording = locked(rate=450.0, at_once=4, label=label, inside=inside, count=2000)
    work = work_of(recording)
    assert [hold.at_once for hold in work.holds.found] == [4]
    state = state_of(recording, cores=16)
    assert capacity(pull(state, "more executors"), 200.0) > capacity(state, 200.0)
    assert 300.0 < capacity(state, 200.0) <= 500.0 * 1.06


def test_a_pool_that_is_never_empty_is_none_of_what_is_waited_for() -> None:
    """That getting a connection takes a moment says nothing of how many there are."""
    work = work_of(locked(rate=20.0, at_once=40, label="psycopg_pool"))
    assert work.holds.found == ()


def test_a_lock_per_key_is_not_taken_for_one() -> None:
    """They have one name, but those that came first are not served first."""
    found = work_of(locked(rate=600.0, keys=8, count=3000)).holds
    assert found.found == ()
    assert list(found.unknown) == [_LOCK]


def test_a_lock_of_which_too_little_was_seen_is_said_to_be_left_out() -> None:
    """And that nothing needs doing is not."""
    found = advice(locked(rate=12.0, count=300))
    assert any(f"is a wait for {_LOCK}, of which too little was seen" in line for line in found.doubts)
    assert not any("nothing needs doing" in line for line in found.summary)
    assert any(line.endswith("how much more is borne cannot be told") for line in found.summary)


def with_spans(recording: Recording, change: Callable[[Span], list[Span]]) -> Recording:
    requests = [
        msgspec.structs.replace(one, spans=tuple(made for span in one.spans for made in change(span)))
        for one in recording.requests
    ]
    return msgspec.structs.replace(recording, requests=tuple(requests))


@pytest.mark.parametrize("label", ["Redis's connection pool", "executor", "anyio.CapacityLimiter"])
def test_what_comes_back_in_no_simulation_is_said_to_be_left_out(label: str) -> None:
    waits = with_spans(
        locked(rate=110.0, label="psycopg_pool"),
        lambda span: [msgspec.structs.replace(span, label=label)] if span.stage is Stage.WAIT else [span],
    )
    assert work_of(waits).holds.found == ()
    found = advice(waits)
    assert any(f"is a wait for {label}, which is not simulated" in line for line in found.doubts)
    assert not any("nothing needs doing" in line for line in found.summary)


def test_a_lock_that_a_request_takes_again_and_again_is_not_said_to_let_more_through_than_it_does() -> None:
    """Of two takings one waits in two parts; how long it is held where nobody was seen to wait is not known."""

    def halves(span: Span) -> list[Span]:
        if span.stage is not Stage.LOCK:
            return [span]
        middle_ns = (span.start_ns + span.end_ns) // 2
        return [
            msgspec.structs.replace(span, end_ns=middle_ns),
            msgspec.structs.replace(span, start_ns=middle_ns),
        ]

    found = work_of(with_spans(locked(rate=110.0), halves)).holds
    assert found.found == ()
    assert list(found.unknown) == [_LOCK]


def test_a_lock_of_a_quick_endpoint_is_seen_beside_a_slow_one() -> None:
    quick = locked(rate=90.0)
    slow = [
        Request(
            number=10_000 + number, intended_ns=at, sent_ns=at, entered_ns=at, left_ns=at + 900 * _MS,
            done_ns=at + 900 * _MS, status=200, endpoint="report (app.py:90)",
            spans=(Span(stage=Stage.HTTP, label="GET", start_ns=at, end_ns=at + 899 * _MS),),
        )
        for number in range(100)
        for at in [quick.requests[8 * number].intended_ns]
    ]  # fmt: skip
    both = msgspec.structs.replace(quick, requests=(*quick.requests, *slow), rate=quick.rate * 9 / 8)
    assert [hold.label for hold in work_of(both).holds.found] == [_LOCK]


def test_two_that_take_two_locks_in_either_order_do_not_wait_for_ever() -> None:
    """What was found out may be wrong; what is played ends."""
    work = work_of(locked(count=60))
    turned = tuple(
        tuple(part._replace(held=(number % 2,) if place < 2 else (0, 1)) for place, part in enumerate(job))
        for number, job in enumerate(work.jobs)
    )
    state = begin(work, Known(cores=2))
    state = replace(state, work=replace(work, jobs=turned), service=replace(state.service, held=(1, 1)))
    assert forecast(state, 50.0).p50_ms > 0.0
