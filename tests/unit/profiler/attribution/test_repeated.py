"""N+1 queries: named with how often a request runs them, unless they run side by side or take little."""

from __future__ import annotations

import re

import msgspec
import pytest
from tests.unit.profiler.levers.test_levers import advice, pilot

from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.levers.advice import repeated_fetches
from tailcut.profiler.records import Recording, Stage

_MS = 1_000_000


def with_queries(recording: Recording, label: str, *, at_once: bool = False) -> Recording:
    """Every query by another value, that stands in its text."""
    requests = []
    for one in recording.requests:
        first = min(span.start_ns for span in one.spans if span.stage == Stage.SQL)
        spans = [
            msgspec.structs.replace(
                span, label=label.format(number), place="shop.py:7", start_ns=first if at_once else span.start_ns
            )
            if span.stage == Stage.SQL
            else span
            for number, span in enumerate(one.spans)
        ]
        requests.append(msgspec.structs.replace(one, spans=tuple(spans)))
    return msgspec.structs.replace(recording, requests=tuple(requests))


def test_a_query_that_a_request_runs_again_and_again_is_named_with_its_line() -> None:
    recording = with_queries(pilot(queries=6), "SELECT price FROM items WHERE id = {}")
    (line,) = repeated_fetches(attribute(recording))
    assert line.startswith("SELECT price FROM items WHERE id = ? (shop.py:7) runs 6 times a request, one after the oth")
    assert line in advice(recording).summary


def test_what_runs_between_them_is_told_too() -> None:
    """An ORM's work for each row: the queries are a twentieth, all from the first to the last is half."""
    recording = with_queries(pilot(queries=6, sql_ms=0.4, code_ms=1.0, model_ms=3.0), "SELECT a FROM b WHERE id = {}")
    requests = []
    for one in recording.requests:
        # Each query a fifth of a millisecond later than that before it ended.
        queries = [place for place, span in enumerate(one.spans) if span.stage == Stage.SQL]
        spans = list(one.spans)
        for turn, place in enumerate(queries):
            later = turn * _MS // 5
            spans[place] = msgspec.structs.replace(
                spans[place], start_ns=spans[place].start_ns + later, end_ns=spans[place].end_ns + later
            )
        requests.append(msgspec.structs.replace(one, spans=tuple(spans)))
    found = attribute(msgspec.structs.replace(recording, requests=tuple(requests)))
    (line,) = repeated_fetches(found)
    share, around = (float(part) for part in re.findall(r"([0-9]+)% (?:of the time and|with the code)", line))
    assert 5 < share < 12
    assert 25 < around < 40


@pytest.mark.parametrize(
    ("queries", "label", "sql_ms", "at_once"),
    [
        (2, "SELECT 1 WHERE id = {}", 6.0, False),
        (6, "COMMIT", 6.0, False),
        (6, "INSERT INTO log VALUES ({})", 6.0, False),
        (6, "SELECT 1 WHERE id = {}", 0.05, False),
        (6, "SELECT 1 WHERE id = {}", 6.0, True),
    ],
)
def test_twice_is_not_often_and_what_is_little_or_runs_at_once_is_left(
    queries: int, label: str, sql_ms: float, at_once: bool
) -> None:
    recording = with_queries(pilot(queries=queries, sql_ms=sql_ms), label, at_once=at_once)
    assert repeated_fetches(attribute(recording)) == ()


def test_where_the_slo_is_met_nothing_is_said_of_it() -> None:
    recording = with_queries(pilot(queries=6, rate=5.0), "SELECT price FROM items WHERE id = {}")
    assert not any("times a request" in line for line in advice(recording, slo="p95=500ms").summary)
