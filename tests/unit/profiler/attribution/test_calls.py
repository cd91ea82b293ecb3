"""Queries and other calls: counted once, however many of the driver's functions they take."""

from __future__ import annotations

import pytest

from tailcut.profiler.attribution.calls import CallTotals, calls_of, most_fetches
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.records import RecordedRequest, RecordedSpan, Recording, Stage

_MS = 1_000_000
_QUERY = "SELECT * FROM t WHERE id = %s"


def request(number: int, *asked: tuple[str, float, bool, str]) -> RecordedRequest:
    """One that asks for these one after the other: label, milliseconds, more of the one before, and where."""
    start = number * 1000 * _MS
    spans, now = [RecordedSpan(stage=Stage.CODE, label="predict", start_ns=start, end_ns=start + 500 * _MS)], start
    for label, ms, more, place in asked:
        end = now + int(ms * _MS)
        spans.append(
            RecordedSpan(stage=Stage.SQL, label=label, place=place, start_ns=now, end_ns=end, parent=0, more=more)
        )
        now = end + _MS
    return RecordedRequest(
        number=number, intended_ns=start, sent_ns=start, entered_ns=start, left_ns=start + 500 * _MS,
        done_ns=start + 500 * _MS, status=200, spans=tuple(spans),
    )  # fmt: skip


def calls(*requests: RecordedRequest) -> tuple[CallTotals, ...]:
    return calls_of(attribute(Recording(target="app:app", rate=1.0, duration_s=1.0, requests=requests)))


def fetches(*requests: RecordedRequest) -> int:
    return most_fetches(attribute(Recording(target="app:app", rate=1.0, duration_s=1.0, requests=requests)))


def test_reading_the_rows_is_part_of_the_query() -> None:
    """psycopg: ``execute`` and ``fetchall``, in two lines, with the parameters in two ways."""
    one = [
        request(number, (_QUERY, 3.0, False, "app.py:1"), ("SELECT * FROM t WHERE id = $1", 1.0, True, "app.py:2"))
        for number in range(4)
    ]
    (call,) = calls(*one)
    assert (call.place, call.calls, call.per_request) == ("app.py:1", 4, 1.0)
    assert (call.total_ms, call.mean_ms, call.p95_ms) == pytest.approx((16.0, 4.0, 4.0))
    assert fetches(*one) == 1


def test_a_query_asked_forty_times_is_forty_queries() -> None:
    """One after the other, with parameters: nothing but the rows in between tells them apart."""
    asked = [(_QUERY, 1.0, False, "app.py:1"), ("SELECT * FROM t WHERE id = $1", 0.5, True, "app.py:1")] * 40
    (call,) = calls(request(0, *asked))
    assert call.calls == 40
    assert call.mean_ms == pytest.approx(1.5)
    assert fetches(request(0, *asked)) == 40


def test_rows_read_one_by_one_are_one_query() -> None:
    """SQLite computes them when they are asked for."""
    other = ("SELECT b FROM t", 7.0, False, "app.py:9")
    asked = [("SELECT a FROM t", 1.0, False, "app.py:1"), other, *[("SELECT a FROM t", 0.25, True, "app.py:1")] * 200]
    found = calls(request(0, *asked))
    assert [(call.text, call.calls) for call in found] == [("SELECT a FROM t", 1), ("SELECT b FROM t", 1)]
    assert [call.total_ms for call in found] == pytest.approx([51.0, 7.0])
    assert fetches(request(0, *asked)) == 2


def test_rows_without_their_query_count_once() -> None:
    """It was asked before the request began, or took no time."""
    (call,) = calls(request(0, ("SELECT 1", 1.0, True, "a.py:1"), ("SELECT 1", 2.0, True, "a.py:1")), request(1))
    assert (call.calls, call.per_request) == (1, 0.5)
    assert call.total_ms == pytest.approx(3.0)


def test_requests_do_not_mix() -> None:
    asked = ("SELECT 1", 1.0, False, "a.py:1"), ("SELECT 1", 1.0, True, "a.py:1")
    (call,) = calls(request(0, *asked), request(1, *asked[::-1]), request(2, asked[1]))
    assert call.calls == 4


def test_what_is_around_a_query_fetches_nothing() -> None:
    """A connection, a transaction: no two of these can go out together."""
    around = ("connect (psycopg)", "BEGIN", "commit", "ROLLBACK", 'SAVEPOINT "a"', "PREPARE SELECT 1")
    one = request(0, *((label, 1.0, False, "a.py:1") for label in (*around, _QUERY)))
    assert fetches(one) == 1
    assert len(calls(one)) == 7
    assert fetches(request(1)) == 0
