"""What advice has to see: writes, what holds the event loop or the interpreter, levers that win nothing."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.unit.profiler import profile_sample
from tests.unit.profiler.levers.test_levers import advice, pilot, reasons

from tailcut.common.slo import Finding, parse_objectives
from tailcut.profiler.attribution.blocking import blocking_code
from tailcut.profiler.attribution.budget import make_budget
from tailcut.profiler.attribution.calls import is_fetch, is_write
from tailcut.profiler.attribution.overhead_adjustment import note_cost
from tailcut.profiler.attribution.span_table import Name
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.forecast.forecast import Forecast, capacity, forecast
from tailcut.profiler.forecast.phases import HANDLING, Part
from tailcut.profiler.forecast.state import Known, LeverName, State
from tailcut.profiler.forecast.work import read_work
from tailcut.profiler.levers import ordering
from tailcut.profiler.levers.inapplicable import Facts
from tailcut.profiler.levers.levers import begin, pull
from tailcut.profiler.levers.ordering import Step, order_levers
from tailcut.profiler.overhead_records import Added, Everyone, Overhead
from tailcut.profiler.records import Moment, Pilot, Recording, Request, Span, Stage
from tailcut.report.profile.words import bottleneck

pytestmark = pytest.mark.slow

few_requests = profile_sample.few_requests(400, 150)

_MS = 1_000_000
_COUNT = 400


def asking(recording: Recording, *statements: str) -> Recording:
    """The same with other statements: of each request's queries the first has the first of these, and so on."""

    def named(one: Request) -> Request:
        left = list(statements)
        spans = tuple(
            msgspec.structs.replace(span, label=left.pop(0)) if span.stage == Stage.SQL and left else span
            for span in one.spans
        )
        return msgspec.structs.replace(one, spans=spans)

    return msgspec.structs.replace(recording, requests=tuple(map(named, recording.requests)))


def test_what_a_request_writes_no_cache_answers() -> None:
    """Neither its answer, nor the write and its COMMIT; the query before them is another thing."""
    writes = asking(pilot(queries=3), "SELECT a FROM b WHERE c = 1", "INSERT INTO events VALUES (1)", "COMMIT")
    found = advice(writes)
    said = reasons(found)
    assert said["prediction cache"].startswith("not safe: requests write (INSERT INTO events")
    assert said["concurrent I/O"] == "not worth it: no request fetches more than once"
    known = Known(feature_hits=dict.fromkeys(range(_COUNT), 1.0))
    before = begin(read_work(writes, attribute(writes)), known)
    for bound in (False, True):
        after = pull(before, "feature cache", bound=bound).work
        left = [[after.names[part.name].label for part in job if part.stage is Stage.SQL] for job in after.jobs]
        assert all(labels == ["INSERT INTO events VALUES (1)", "COMMIT"] for labels in left)
    reads = asking(pilot(queries=3), "SELECT a FROM b WHERE c = 1", "SELECT 1", "COMMIT")
    gone = pull(begin(read_work(reads, attribute(reads)), known), "feature cache").work
    assert gone.wait_of(Stage.SQL) == 0.0, "what stands around fetches goes with them"


def test_what_is_written_is_not_sent_at_once() -> None:
    writes = asking(pilot(queries=3), "SELECT a FROM b", "SELECT d FROM e", "UPDATE b SET a = 1")
    before = begin(read_work(writes, attribute(writes)), Known())
    assert pull(before, "concurrent I/O").work.jobs == before.work.jobs


@pytest.mark.whole
def test_one_in_a_thousand_that_writes_forbids_no_cache() -> None:
    requests = pilot().requests
    writer = asking(msgspec.structs.replace(pilot(), requests=requests[:1]), "DELETE FROM b").requests
    rare = msgspec.structs.replace(pilot(), requests=(*writer, *requests[1:]))
    assert "not safe" not in reasons(advice(rare))["prediction cache"]
    some = asking(msgspec.structs.replace(pilot(), requests=requests[:20]), "DELETE FROM b").requests
    often = msgspec.structs.replace(pilot(), requests=(*some, *requests[20:]))
    assert "not safe" in reasons(advice(often))["prediction cache"], "one in twenty"


def sleeping(held_ms: float = 10.0, rate: float = 30.0) -> Recording:
    """An asynchronous handler that sleeps without awaiting, as ``time.sleep`` does."""
    requests, moments = [], []
    at = np.cumsum(np.random.default_rng(0).exponential(1e9 / rate, _COUNT)).astype(int).tolist()
    free = 0
    for number, due in enumerate(at):
        start, end = max(due, free), max(due, free) + round(held_ms * _MS)
        free = end
        spans = (
            Span(stage=Stage.FRAMEWORK, label="fastapi", start_ns=start, end_ns=end + 10_000),
            Span(stage=Stage.CODE, label="slow", place="app.py:9", start_ns=start, end_ns=end, parent=0),
        )
        moments.append(Moment(
            stage=Stage.LOOP, start_ns=start, end_ns=end, label="slow", place="app.py:11", request=number,
        ))  # fmt: skip
        requests.append(
            Request(
                number=number, intended_ns=due, sent_ns=due, entered_ns=start, left_ns=end + 10_000, status=200,
                done_ns=end + 20_000, spans=spans,
            )
        )  # fmt: skip
    return Recording(
        target="app:app", rate=rate, duration_s=_COUNT / rate, requests=tuple(requests), moments=tuple(moments),
        machine={"cores": "2"}, pilot=Pilot(loop="asyncio", watched=True, cpu_s=0.1, window_s=_COUNT / rate),
    )  # fmt: skip


def test_who_sleeps_on_the_event_loop_lets_nobody_else_through() -> None:
    """Ten milliseconds: a hundred a second, whatever little it computes; and the report says where, and what to do."""
    recording = sleeping()
    found = capacity(begin(read_work(recording, attribute(recording)), Known(cores=2)), 1000.0)
    assert 80.0 < found <= 101.0
    # And in turn: of a fixed service time at 0.6 of its rate, Poisson, the p95 is 3.8 times as long (M/D/1).
    busy = sleeping(rate=60.0)
    asked = forecast(begin(read_work(busy, attribute(busy)), Known(cores=2)), 60.0).p95_ms
    assert asked == pytest.approx(38.2, rel=0.15)
    (line,) = blocking_code(recording, attribute(recording).flat)
    assert line.startswith("slow (app.py:11) holds the event loop for 10 ms at a time, 30% of all time, ")
    assert line in advice(recording, slo="p95=5ms").summary


def test_the_bottleneck_of_requests_that_are_not_accepted_is_who_holds_the_loop() -> None:
    busy = sleeping(rate=85.0)
    said = bottleneck(make_budget(busy))
    assert "waiting to be accepted" in said
    assert said.endswith("Its event loop was held by slow (app.py:11) (100 % of the time that it was).")


@pytest.mark.parametrize(("held_ms", "rate"), [(1.5, 100.0), (10.0, 4.0)])
def test_who_holds_it_shortly_or_seldom_is_not_named(held_ms: float, rate: float) -> None:
    recording = sleeping(held_ms, rate)
    assert blocking_code(recording, attribute(recording).flat) == ()


def test_what_a_framework_does_for_an_endpoint_in_a_thread_is_not_its_code() -> None:
    """Encoding a large reply holds the loop, and has the endpoint's name there."""
    recording = sleeping()
    threaded = [
        msgspec.structs.replace(one, spans=tuple(
            msgspec.structs.replace(span, thread=1, place="app.py:11") if span.stage is Stage.CODE else span
            for span in one.spans
        ))
        for one in recording.requests
    ]  # fmt: skip
    recording = msgspec.structs.replace(recording, requests=tuple(threaded))
    assert blocking_code(recording, attribute(recording).flat) == ()


def test_whoever_comes_while_another_sleeps_on_the_loop_waits_for_him() -> None:
    """One in five sleeps for 50 ms, the others need half a millisecond: their p90 is a wait for those."""
    requests, moments, free = [], [], 0
    at = np.cumsum(np.random.default_rng(2).exponential(1e9 / 20.0, 2 * _COUNT)).astype(int).tolist()
    for number, due in enumerate(at):
        slow = number % 5 == 0
        start = max(due, free)
        free = end = start + (50 * _MS if slow else _MS // 2)
        label = "slow" if slow else "quick"
        root = Span(stage=Stage.FRAMEWORK, label="fastapi", start_ns=start, end_ns=end + 10_000)
        code = Span(stage=Stage.CODE, label=label, place="app.py:9", start_ns=start, end_ns=end, parent=0)
        if slow:
            moments.append(Moment(
                stage=Stage.LOOP, start_ns=start, end_ns=end, label=label, place="app.py:9", request=number,
            ))  # fmt: skip
        requests.append(
            Request(
                number=number, intended_ns=due, sent_ns=due, entered_ns=start, left_ns=end + 10_000, status=200,
                done_ns=end + 20_000, spans=(root, code),
            )
        )  # fmt: skip
    recording = Recording(
        target="app:app", rate=20.0, duration_s=2 * _COUNT / 20.0, requests=tuple(requests), moments=tuple(moments),
        machine={"cores": "2"}, pilot=Pilot(loop="asyncio", watched=True, cpu_s=0.5, window_s=2 * _COUNT / 20.0),
    )  # fmt: skip
    state = begin(read_work(recording, attribute(recording)), Known(cores=2))
    quick = tuple(job for job, one in zip(state.work.jobs, requests, strict=True) if one.number % 5)
    seen_ms = [(one.done_ns - one.intended_ns) / 1e6 for one in requests]
    found = forecast(state, 20.0, share=0.75)
    assert len(quick) == 8 * _COUNT // 5
    assert found.p95_ms == pytest.approx(float(np.quantile(seen_ms, 0.75)), rel=0.3)
    assert found.p95_ms > 10.0, "three quarters are quick ones"


def test_synchronous_queries_on_the_loop_can_still_be_sent_at_once() -> None:
    """They wait, whatever else waits for them."""
    recording = sleeping(30.0, 10.0)
    requests = []
    for one in recording.requests:
        begins = one.entered_ns
        queries = [
            Span(
                stage=Stage.SQL, label=f"SELECT {letter} FROM t", parent=1, cpu_ns=1000,
                start_ns=begins + turn * 10 * _MS, end_ns=begins + (turn + 1) * 10 * _MS,
            )
            for turn, letter in enumerate("abc")
        ]  # fmt: skip
        requests.append(msgspec.structs.replace(one, spans=(*one.spans, *queries)))
    recording = msgspec.structs.replace(recording, requests=tuple(requests))
    state = begin(read_work(recording, attribute(recording)), Known(cores=2))
    assert state.work.wait_of(Stage.SQL) == pytest.approx(30 * _MS, rel=0.01)
    assert state.work.blocking_ns == pytest.approx(30 * _MS, rel=0.01)
    assert 25.0 < capacity(state, 1000.0) <= 34.0
    assert pull(state, "concurrent I/O").work.wait_of(Stage.SQL) == pytest.approx(10 * _MS, rel=0.01)


@pytest.mark.parametrize(
    ("text", "writes"),
    [
        ("/* app */ INSERT INTO t VALUES (1)", True),
        ("-- name: CreateUser :one\nINSERT INTO t VALUES (1)", True),
        ("insert\n\tinto t values (1)", True),
        ("WITH x AS (DELETE FROM t WHERE a = 1 RETURNING *) SELECT * FROM x", True),
        ("with a as (select 1) update t set b = 2", True),
        ("CALL book(1)", True),
        ("SELECT nextval('ids')", True),
        ("COPY t FROM STDIN", True),
        ("TRUNCATE t;", True),
        ("SELECT * FROM updates WHERE deleted = 1", False),
        ("SELECT a FROM t FOR UPDATE", False),
        ("WITH x AS (SELECT 1) SELECT * FROM x", False),
        ("COPY t TO STDOUT", False),
        ("COMMIT", False),
    ],
)
def test_what_changes_a_database_is_told_by_its_words(text: str, writes: bool) -> None:
    name = Name(Stage.SQL, text, "")
    assert is_write(name) is writes
    assert not (writes and is_fetch(name))


def test_writes_with_many_texts_are_writes_of_many_requests() -> None:
    requests = pilot().requests
    each = [
        asking(msgspec.structs.replace(pilot(), requests=(one,)), f"INSERT INTO events_{number} VALUES (1)").requests[0]
        for number, one in enumerate(requests)
    ]
    found = advice(msgspec.structs.replace(pilot(), requests=tuple(each)))
    assert reasons(found)["prediction cache"].startswith("not safe: requests write (INSERT INTO events_")


def test_what_drivers_compute_stays_as_far_as_their_calls_do() -> None:
    """And draws no hit of its own."""
    part = Part(Stage.SQL, HANDLING, 600.0, 0.0, False)
    recording = asking(pilot(queries=3), "SELECT a FROM b", "SELECT c FROM d", "INSERT INTO e VALUES (1)")
    work = read_work(recording, attribute(recording))
    work = replace(work, jobs=tuple((part, *job) for job in work.jobs))
    known = Known(feature_hits=dict.fromkeys(range(_COUNT), 1.0))
    for job in pull(begin(work, known), "feature cache").work.jobs:
        assert [one.cpu_ns for one in job if one.name == HANDLING] == [pytest.approx(200.0)]


def test_a_forest_holds_the_interpreter_and_what_it_is_compiled_to_does_not() -> None:
    """Five milliseconds of scikit-learn in threads: two cores bear no more than one."""
    recording = msgspec.structs.replace(pilot(sql_ms=0.001, model_ms=5.0), machine={"cores": "2"})
    requests = []
    for one in recording.requests:
        spans = tuple(
            msgspec.structs.replace(span, thread=1) if span.stage is Stage.WAIT else span for span in one.spans
        )
        requests.append(msgspec.structs.replace(one, spans=spans))
    recording = msgspec.structs.replace(recording, requests=tuple(requests))
    work = read_work(recording, attribute(recording))
    forest, net = (begin(work, Known(family=family, cores=2)) for family in ("sklearn", "torch"))
    assert capacity(forest, 100.0) == pytest.approx(1e3 / 5.2, rel=0.1)
    assert capacity(net, 100.0) > 1.5 * capacity(forest, 100.0)
    compiled = pull(forest, "runtime")
    assert compiled.service.executors == net.service.executors > 0
    assert pull(pull(forest, "batching"), "runtime").service.executors == 1
    assert pull(pull(forest, "serving path"), "runtime").service.executors == 2


def test_a_drivers_own_thread_is_waited_for_whoever_serves() -> None:
    recording = pilot()
    waits = []
    for label in ("aiosqlite's thread", "thread pool"):
        requests = tuple(
            msgspec.structs.replace(one, spans=tuple(
                msgspec.structs.replace(span, label=label) if span.stage is Stage.WAIT else span for span in one.spans
            ))
            for one in recording.requests
        )  # fmt: skip
        changed = msgspec.structs.replace(recording, requests=requests)
        served = pull(begin(read_work(changed, attribute(changed)), Known()), "serving path").work
        named = [served.names[part.name].label for job in served.jobs for part in job if part.name >= 0]
        waits.append(named.count(label))
    assert waits == [_COUNT, 0]


def test_who_bears_enough_needs_no_lever_for_the_capacity_alone() -> None:
    """Of code that only computes two processes bear twice as much: at a tenth of the rate nobody needs them."""
    orders = []
    for rate in (20.0, 150.0):
        recording = msgspec.structs.replace(
            pilot(queries=0, sql_ms=0.001, model_ms=0.0, code_ms=5.0, rate=rate), machine={"cores": "2"}
        )
        found = advice(recording, slo="p95=1000ms" if rate < 50 else "p95=4ms", distinct=100_000)
        orders.append([one.lever for one in found.levers if one.order])
    assert orders[0] == []
    assert "more executors" in orders[1]


def foretold(
    monkeypatch: pytest.MonkeyPatch, found: dict[tuple[str, ...], tuple[float, float]], rate: float
) -> list[Step]:
    """Order two levers of which p95 and capacity are known, for what is pulled."""

    def told(state: State, *_: object, **__: object) -> Forecast:
        p95_ms, most = found[state.pulled]
        return Forecast(
            rate=rate, p50_ms=1.0, p95_ms=p95_ms, p95_low_ms=p95_ms, p95_high_ms=p95_ms, busy_share=0.1, capacity=most
        )

    monkeypatch.setattr(ordering, "pull", lambda state, lever: replace(state, pulled=(*state.pulled, lever)))
    monkeypatch.setattr(ordering, "forecast", told)
    monkeypatch.setattr(ordering, "capacity", lambda state, *_, **__: found[state.pulled][1])
    recording = pilot()
    state = begin(read_work(recording, attribute(recording)), Known())
    facts = Facts(
        met=False, within=False, missed=True, unmended=0, model_share=0.0, code_share=0.0, fetch_share=0.0, fetches=0,
        rows=1.0, aim="", limit_ms=20.0, now=told(state), measured_ms=0.0, seen_ms=0.0,
    )  # fmt: skip
    levers: tuple[LeverName, ...] = ("serving path", "more executors")
    alone = {lever: told(replace(state, pulled=(lever,))) for lever in levers}
    return order_levers(state, alone, facts, 0.95)


def test_levers_are_pulled_for_the_capacity_where_it_is_wanted_and_nothing_gets_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """First what is quicker; then twice the capacity, unless five times the rate is borne, or the p95 rises for it."""
    quicker = {(): (10.0, 100.0), ("serving path",): (5.0, 100.0), ("more executors",): (10.0, 200.0)}
    both = ("serving path", "more executors")
    steps = foretold(monkeypatch, {**quicker, both: (5.0, 200.0)}, 50.0)
    assert [(one.lever, one.for_capacity) for one in steps] == [("serving path", False), ("more executors", True)]
    for rate, p95_ms in ((20.0, 5.0), (50.0, 6.0)):
        steps = foretold(monkeypatch, {**quicker, both: (p95_ms, 200.0)}, rate)
        assert [one.lever for one in steps] == ["serving path"]


def test_a_lever_for_the_capacity_says_that_it_is_for_that() -> None:
    """Of code that computes for 4 ms at 20 requests/s two processes bear twice as much, and make nothing quicker."""
    recording = pilot(queries=0, sql_ms=0.001, model_ms=0.0, code_ms=4.0, rate=50.0)
    found = advice(msgspec.structs.replace(recording, machine={"cores": "2"}), slo="p95=6ms", distinct=100_000)
    said = {one.lever: one.reason for one in found.levers if one.order}
    before = found.now.p95_ms
    for one in [one for one in found.levers if one.order]:
        after = one.after_p95_ms or 0.0
        assert said[one.lever].startswith("for the capacity, ") == (after >= 0.95 * before)
        before = after
    assert said


def test_without_payloads_nobody_knows_what_repeats() -> None:
    found = reasons(advice_without_payloads(pilot()))
    for lever in ("feature cache", "prediction cache"):
        assert found[lever] == "not known: what repeats: give payloads"


def advice_without_payloads(recording: Recording):  # type: ignore[no-untyped-def]
    from tailcut.profiler.levers.advice import advise

    return advise(recording, known=Known(), slo=parse_objectives("p95=1ms"))


@pytest.mark.parametrize(
    ("objective", "seen", "limit", "note"),
    [
        ("p95", 10.5, 10.0, "9.545 ms, and met, without the overhead of profiling"),
        ("p50", 10.5, 10.0, "10 ms, and met, without the overhead of profiling"),
        ("p95", 10.8, 10.0, ""),
        ("p99", 10.5, 10.0, ""),
        ("p95", 9.5, 10.0, ""),
        ("max", 10.5, 10.0, ""),
    ],
)
def test_what_is_missed_by_what_profiling_cost_says_so(objective: str, seen: float, limit: float, note: str) -> None:
    everyone = Everyone(one_in=4, p50=Added(0.05, (0.05, 0.1)), p95=Added(0.1, (0.06, 0.2)))
    cost = Overhead(rate=1.0, rounds=(), p50_share=0.5, p95_share=0.5, everyone=everyone)
    finding = Finding(objective=objective, seen=seen, limit=limit, unit="ms", met=seen <= limit)
    some = msgspec.structs.replace(pilot(), untraced=pilot().requests, one_in=2, overhead=cost)
    assert [one.note for one in note_cost((finding,), some)] == [note]
    assert note_cost((finding,), pilot()) == (finding,)
    ranges = {"p50_range": (0.05, 0.06), "p95_range": (0.06, 0.2)}
    traced_only = msgspec.structs.replace(cost, everyone=None, p50_share=0.05, p95_share=0.1, **ranges)
    all_of_them = msgspec.structs.replace(pilot(), overhead=traced_only)
    assert [one.note for one in note_cost((finding,), all_of_them)] == [note]
    assert note_cost((finding,), msgspec.structs.replace(some, overhead=traced_only)) == (finding,), "of some only"
