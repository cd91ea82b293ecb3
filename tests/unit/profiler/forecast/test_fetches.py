"""Fetches that run side by side, or could: what sending them out at once wins, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush

import msgspec
import numpy as np
import pytest
from tests.unit.profiler import profile_sample

from tailcut.common.slo import parse_objectives
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.forecast.calibration import calibrate
from tailcut.profiler.forecast.fetches import at_once, left_alone
from tailcut.profiler.forecast.forecast import capacity, forecast
from tailcut.profiler.forecast.phases import Part
from tailcut.profiler.forecast.state import Known, State
from tailcut.profiler.forecast.work import Work, read_work
from tailcut.profiler.levers.advice import LeverAdvice, advise
from tailcut.profiler.levers.levers import begin, pull
from tailcut.profiler.records import Pilot, Recording, Request, Span, Stage

pytestmark = pytest.mark.slow

_MS = 1_000_000


few_requests = profile_sample.few_requests(500, 250)


def recorded(requests: list[Request], rate: float) -> Recording:
    return Recording(
        target="app:app", rate=rate, duration_s=len(requests) / rate, requests=tuple(requests),
        machine={"cores": "2"}, pilot=Pilot(loop="asyncio", watched=True),
    )  # fmt: skip


def request(number: int, at: int, end: int, spans: list[Span]) -> Request:
    """A handler with spans of its own, children of the second; it ends where it is told to."""
    around = [
        Span(stage=Stage.FRAMEWORK, label="fastapi", start_ns=at + _MS // 10, end_ns=end + _MS // 10),
        Span(
            stage=Stage.CODE, label="predict", place="app.py:7", start_ns=at + _MS // 5, end_ns=end, parent=0,
            cpu_ns=_MS // 2,
        ),
    ]  # fmt: skip
    return Request(
        number=number, intended_ns=at, sent_ns=at, entered_ns=at + _MS // 10, left_ns=end + _MS // 10,
        done_ns=end + _MS // 5, status=200, endpoint="predict (app.py:7)", spans=(*around, *spans),
    )  # fmt: skip


def fetching(*, queries: int = 4, together: float = 1.0, rate: float = 40.0, count: int = 400) -> Recording:
    """Each query takes about 10 ms; in a share of the requests all go out together, a tenth of a millisecond apart."""
    draw = np.random.default_rng(0)
    requests = []
    for number, at in enumerate(np.cumsum(draw.exponential(1e9 / rate, count)).astype(int).tolist()):
        now, spans = at + _MS // 2, []
        gathers = draw.random() < together
        for length in (draw.uniform(9.0, 11.0, queries) * _MS).astype(int).tolist():
            spans.append(Span(stage=Stage.SQL, label="q", start_ns=now, end_ns=now + length, parent=1))
            now += _MS // 10 if gathers else length
        end = max([now, *(span.end_ns for span in spans)]) + _MS // 5
        requests.append(request(number, at, end, spans))
    return recorded(requests, rate)


def beside_a_model(after_ms: tuple[float, ...], *, model_ms: float = 10.0, count: int = 400) -> Recording:
    """A query of 10 ms, then others one after the other; a model runs beside them, in a thread."""
    draw = np.random.default_rng(0)
    requests = []
    for number, at in enumerate(np.cumsum(draw.exponential(1e9 / 20.0, count)).astype(int).tolist()):
        now = at + _MS // 2
        model_end = now + int(model_ms * _MS)
        spans = [
            Span(
                stage=Stage.MODEL, label="Net", start_ns=now, end_ns=model_end, parent=1, thread=1,
                cpu_ns=model_end - now,
            )
        ]  # fmt: skip
        for place, length_ms in enumerate((10.0, *after_ms)):
            begin, now = now, now + int(length_ms * _MS)
            spans.append(Span(stage=Stage.SQL, label=f"q{place}", start_ns=begin, end_ns=now, parent=1))
        requests.append(request(number, at, max(now, model_end) + _MS // 5, spans))
    return recorded(requests, 20.0)


def pooled(rate: float = 220.0, *, at_once: int = 5, count: int = 1500) -> Recording:
    """Two queries of 10 ms, one after the other, on one connection of a pool, with code of its own around them."""
    draw = np.random.default_rng(0)
    free = [0] * at_once
    requests = []
    for number, at in enumerate(np.cumsum(draw.exponential(1e9 / rate, count)).astype(int).tolist()):
        asked = at + _MS // 2
        got = max(asked + 30_000, heappop(free))
        done = got + 20 * _MS
        heappush(free, done)
        spans = [
            Span(stage=Stage.WAIT, label="psycopg_pool", place="app.py:9", start_ns=asked, end_ns=got, parent=1),
            *(
                Span(
                    stage=Stage.SQL, label=f"q{one}", place=f"app.py:{10 + one}", start_ns=got + one * 10 * _MS,
                    end_ns=got + (one + 1) * 10 * _MS, parent=1,
                )
                for one in range(2)
            ),
        ]  # fmt: skip
        requests.append(request(number, at, done + _MS // 5, spans))
    return recorded(requests, rate)


def work_of(recording: Recording) -> Work:
    return read_work(recording, attribute(recording))


def state_of(recording: Recording, known: Known | None = None) -> State:
    return calibrate(begin(work_of(recording), known or Known(cores=2)))[0]


def concurrent(recording: Recording) -> LeverAdvice:
    found = advise(recording, known=Known(cores=2), slo=parse_objectives("p95=8ms"))
    assert found is not None
    assert not found.doubts  # or what is foretold says nothing
    return {one.lever: one for one in found.levers}["concurrent I/O"]


def test_fetches_that_go_out_at_once_already_win_nothing_by_it() -> None:
    """Four that share 10 ms wait for 10 ms, not for a quarter of that; nor is the bound any lower."""
    state = state_of(fetching())
    now, after = (forecast(one, 40.0).p95_ms for one in (state, pull(state, "concurrent I/O")))
    assert after == pytest.approx(now, rel=0.02)
    assert forecast(pull(state, "concurrent I/O", bound=True), 40.0).p95_ms > 8.0
    found = concurrent(fetching())
    assert found.order == 0
    assert found.reason == "not worth it: each request's fetches already run concurrently"


@pytest.mark.parametrize(("places", "waits_ms"), [(1, 20.0), (2, 10.0)])
def test_fetches_of_one_request_wait_for_one_another_at_a_lock(places: int, waits_ms: float) -> None:
    """Two of 10 ms that hold the same lock take twenty whenever they go out."""
    fetch = Part(Stage.SQL, 0, 0.0, 10.0 * _MS, False, (0,), full_ns=10.0 * _MS)
    assert sum(part.wait_ns for part in at_once((fetch, fetch), (places,))) == waits_ms * _MS


def test_fetches_one_after_the_other_still_win_by_it() -> None:
    found = concurrent(fetching(together=0.0))
    assert found.order == 1
    assert found.p95_ms == pytest.approx(12.0, abs=1.5)


@pytest.mark.whole
def test_a_fetch_beside_a_model_is_beside_no_other_fetch() -> None:
    """What is fetched after it goes out one by one, whatever the request does beside the first: at once, they win."""
    recording = beside_a_model((2.0, 2.0, 2.0, 2.0))
    assert concurrent(recording).order == 1
    work = begin(work_of(recording), Known(cores=2)).work
    assert work.wait_of(Stage.SQL) == pytest.approx(13.0 * _MS, rel=0.01)
    after = pull(begin(work, Known(cores=2)), "concurrent I/O")
    assert after.work.wait_of(Stage.SQL) == pytest.approx(10.0 * _MS, rel=0.01)


def test_fetches_at_once_are_no_quicker_than_what_runs_beside_all_of_them() -> None:
    """Five queries beside a model of 50 ms: without them it takes those 50 ms as well."""
    state = begin(work_of(beside_a_model((10.0, 10.0, 10.0, 10.0), model_ms=50.0)), Known(cores=2))
    taken = state.work.mean_ns(Stage.SQL, Stage.MODEL)
    assert taken == pytest.approx(50.0 * _MS, rel=0.01)
    assert pull(state, "concurrent I/O").work.mean_ns(Stage.SQL, Stage.MODEL) == pytest.approx(taken, rel=0.01)


def test_a_fetch_beside_a_model_waits_no_longer_because_another_one_is_cached() -> None:
    """The second query hits; the first shares its time with the model as before."""
    work = work_of(beside_a_model((10.0,), count=40))
    first = next(number for number, name in enumerate(work.names) if name.label == "q0")
    for job in work.jobs:
        kept = tuple(part for part in job if part.stage is not Stage.SQL or part.name == first)
        assert left_alone(job, kept) == kept


def test_what_a_cache_leaves_of_fetches_sent_at_once_waits_as_long_as_it_did() -> None:
    """Also where it was recorded one after the other, and its own waiting is in the one wait for all."""
    fetches = tuple(
        Part(Stage.SQL, number, 0.0, 10.0 * _MS, False, full_ns=10.0 * _MS, from_ns=number * 10.0 * _MS)
        for number in range(3)
    )
    job = at_once(fetches)
    for gone in range(3):
        kept = tuple(part for part in job if part.name != gone)
        assert sum(part.wait_ns for part in left_alone(job, kept)) == 10.0 * _MS


def test_the_requests_that_fetch_one_after_the_other_are_those_that_win() -> None:
    """A tenth of all, and the slow ones."""
    recording = fetching(together=0.9, rate=20.0)
    assert concurrent(recording).order == 1
    state = state_of(recording)
    after = pull(state, "concurrent I/O")
    for before, job in zip(state.work.jobs, after.work.jobs, strict=True):
        waits = [sum(part.wait_ns for part in one if part.stage is Stage.SQL) for one in (before, job)]
        assert waits[1] == pytest.approx(min(waits[0], 10.0 * _MS), rel=0.15)


def test_a_fetch_beside_others_that_a_cache_answers_waits_as_long_as_before() -> None:
    """Of two that run at once one hits: the other takes its 10 ms all the same."""
    hits = {number: 0.5 for number in range(400)}
    state = pull(begin(work_of(fetching(queries=2)), Known(feature_hits=hits)), "feature cache")
    waits = np.array([sum(part.wait_ns for part in job if part.stage is Stage.SQL) for job in state.work.jobs]) / _MS
    assert 60 < np.count_nonzero(waits == 0.0) < 140
    assert waits[waits > 0].min() > 8.9
    assert waits.max() < 11.2


def test_a_request_that_fetches_nothing_is_no_quicker_for_a_feature_cache() -> None:
    """It waits for a thread and its way back as before; who fetched and hits does not."""
    recording = fetching(count=40)
    plain = []
    for one in recording.requests:
        kept = tuple(span for span in one.spans if span.stage is not Stage.SQL or one.number % 2)
        at = one.entered_ns
        wait = Span(stage=Stage.WAIT, label="thread pool", start_ns=at, end_ns=at + 50_000, parent=0, cpu_ns=0)
        plain.append(msgspec.structs.replace(one, spans=(*kept, wait)))
    known = Known(feature_hits={number: 1.0 for number in range(40)})
    state = begin(work_of(msgspec.structs.replace(recording, requests=tuple(plain))), known)
    after = pull(state, "feature cache")
    assert all(any(part.stage is Stage.WAIT for part in job) for job in state.work.jobs)  # or this test asks nothing
    for number, before, job in zip(state.work.numbers.tolist(), state.work.jobs, after.work.jobs, strict=True):
        assert job == before if number % 2 == 0 else not any(part.stage is Stage.WAIT for part in job)


def test_two_queries_at_once_ask_a_pool_for_as_much_as_one_after_the_other() -> None:
    """Five connections, 20 ms of one per request: 250 requests a second, however they are sent."""
    state = state_of(pooled())
    assert [(hold.label, hold.at_once) for hold in state.work.holds.found] == [("psycopg_pool", 5)]
    assert 150.0 < capacity(state, 200.0) <= 250.0 * 1.06
    for bound in (False, True):
        after = pull(state, "concurrent I/O", bound=bound)
        assert after.work.wait_of(Stage.SQL) == pytest.approx(state.work.wait_of(Stage.SQL) / 2, rel=0.01)
        assert after.work.held_ns(0) == pytest.approx(state.work.held_ns(0), rel=0.01)
        assert 150.0 < capacity(after, 200.0) <= 250.0 * 1.06
        assert forecast(after, 50.0).p50_ms < forecast(state, 50.0).p50_ms - 9.0
        assert forecast(after, 350.0).p95_ms > 200.0


def test_a_short_query_holds_a_connection_no_longer_for_a_long_fetch_beside_it() -> None:
    """The pool is asked for 10 ms of each request: what waits beside that for an address holds nothing."""
    work = work_of(pooled())
    second = next(number for number, name in enumerate(work.names) if name.label == "q1")

    def asks_an_address(part: Part) -> Part:
        return part._replace(stage=Stage.HTTP, wait_ns=30.0 * _MS, full_ns=30.0 * _MS, held=())

    jobs = tuple(tuple(asks_an_address(part) if part.name == second else part for part in job) for job in work.jobs)
    state = begin(replace(work, jobs=jobs), Known(cores=2))
    after = pull(state, "concurrent I/O")
    assert after.work.held_ns(0) == pytest.approx(state.work.held_ns(0), rel=0.01)
    assert after.work.mean_ns(Stage.SQL, Stage.HTTP) == pytest.approx(30.0 * _MS, rel=0.01)
    assert forecast(after, 400.0).p95_ms < 60.0
    assert forecast(after, 600.0).p95_ms > 100.0  # the request waits for its connection, though not for its query
