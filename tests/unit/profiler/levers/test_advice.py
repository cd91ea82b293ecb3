"""What advice has to see: writes, what holds the event loop, levers that win nothing."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.unit.profiler.levers.test_levers import advice, pilot, reasons

from tailcut.common.slo import parse_objectives
from tailcut.profiler.attribution.budget import make_budget
from tailcut.profiler.attribution.calls import is_fetch, is_write
from tailcut.profiler.attribution.span_table import Name
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.levers.advice import blocking_code
from tailcut.profiler.levers.known import LeverAssumptions
from tailcut.profiler.levers.work import pull, read_work
from tailcut.profiler.records import Moment, ProfiledProcess, RecordedRequest, RecordedSpan, Recording, Stage
from tailcut.report.profile.document import bottleneck

_MS = 1_000_000
_COUNT = 400


def asking(recording: Recording, *statements: str) -> Recording:
    """The same with other statements: of each request's queries the first has the first of these, and so on."""

    def named(one: RecordedRequest) -> RecordedRequest:
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
    known = LeverAssumptions(feature_hits=dict.fromkeys(range(_COUNT), 1.0))
    share = read_work(writes, attribute(writes), known).cached_share
    assert share == pytest.approx(1 / 3), "the INSERT and its COMMIT stay"
    reads = asking(pilot(queries=3), "SELECT a FROM b WHERE c = 1", "SELECT 1", "COMMIT")
    share = read_work(reads, attribute(reads), known).cached_share
    assert share == pytest.approx(2 / 3), "what stands around fetches goes with them; a ping is no fetch"


def test_what_is_written_is_not_sent_at_once() -> None:
    writes = asking(pilot(queries=3), "SELECT a FROM b", "SELECT d FROM e", "UPDATE b SET a = 1")
    before = read_work(writes, attribute(writes), LeverAssumptions())
    assert (pull(before, "concurrent I/O", LeverAssumptions(), "bound").stage_ns == before.stage_ns).all()


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
            RecordedSpan(stage=Stage.FRAMEWORK, label="fastapi", start_ns=start, end_ns=end + 10_000),
            RecordedSpan(stage=Stage.CODE, label="slow", place="app.py:9", start_ns=start, end_ns=end, parent=0),
        )
        moments.append(Moment(
            stage=Stage.LOOP, start_ns=start, end_ns=end, label="slow", place="app.py:11", request=number,
        ))  # fmt: skip
        requests.append(
            RecordedRequest(
                number=number, intended_ns=due, sent_ns=due, entered_ns=start, left_ns=end + 10_000, status=200,
                done_ns=end + 20_000, spans=spans,
            )
        )  # fmt: skip
    return Recording(
        target="app:app", rate=rate, duration_s=_COUNT / rate, requests=tuple(requests), moments=tuple(moments),
        machine={"cores": "2"}, pilot=ProfiledProcess(loop="asyncio", watched=True, cpu_s=0.1, window_s=_COUNT / rate),
    )  # fmt: skip


def test_who_sleeps_on_the_event_loop_lets_nobody_else_through() -> None:
    """Ten milliseconds: a hundred a second, whatever little it computes; and the report says where, and what to do."""
    recording = sleeping()
    work = read_work(recording, attribute(recording), LeverAssumptions(cores=2))
    assert work.capacity == pytest.approx(100.0, rel=0.01)
    assert work.limit == "the event loop's thread"
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


def test_synchronous_queries_on_the_loop_can_still_be_sent_at_once() -> None:
    """They wait, whatever else waits for them."""
    recording = sleeping(30.0, 10.0)
    requests = []
    for one in recording.requests:
        begins = one.entered_ns
        queries = [
            RecordedSpan(
                stage=Stage.SQL, label=f"SELECT {letter} FROM t", parent=1, cpu_ns=1000,
                start_ns=begins + turn * 10 * _MS, end_ns=begins + (turn + 1) * 10 * _MS,
            )
            for turn, letter in enumerate("abc")
        ]  # fmt: skip
        requests.append(msgspec.structs.replace(one, spans=(*one.spans, *queries)))
    recording = msgspec.structs.replace(recording, requests=tuple(requests))
    known = LeverAssumptions(cores=2)
    work = read_work(recording, attribute(recording), known)
    assert work.capacity == pytest.approx(1e3 / 30, rel=0.02), "they hold the loop"
    after = pull(work, "concurrent I/O", known, "best")
    assert after.percentile_ms(0.5) == pytest.approx(10.0, rel=0.02)


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


def test_without_payloads_nobody_knows_what_repeats() -> None:
    found = reasons(advice_without_payloads(pilot()))
    for lever in ("feature cache", "prediction cache"):
        assert found[lever] == "not known: what repeats: give payloads"


def advice_without_payloads(recording: Recording):  # type: ignore[no-untyped-def]
    from tailcut.profiler.levers.advice import advise

    return advise(recording, known=LeverAssumptions(), slo=parse_objectives("p95=1ms"))
