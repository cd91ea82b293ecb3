"""Rows of SQLite that are read one by one: those that follow one another are one span."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator

import pytest

from tailcut.profiler.hooks import sqlite
from tailcut.profiler.hooks.wrapping import called
from tailcut.profiler.recording import clocks, tracing
from tailcut.profiler.recording.spans import requests_of
from tailcut.profiler.recording.tracing import Trace, tracer
from tailcut.profiler.records import RecordedSpan, Stage

_ROW_NS, _LONG_NS = 1_000, 20_000_000


class Clock:
    """Time that passes only where it is said."""

    def __init__(self) -> None:
        self.at_ns, self.rows_ns = clocks.now(), 0

    def now(self) -> int:
        return self.at_ns

    def row(self, took_ns: int) -> int:
        self.at_ns += took_ns
        self.rows_ns += took_ns
        return 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(sqlite, "now", made.now)
    monkeypatch.setattr(tracing, "now", lambda: made.at_ns)
    return made


@pytest.fixture
def rows(clock: Clock, request_: Trace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., sqlite3.Cursor]]:
    """Asks for rows of which each takes what it is given, in nanoseconds; those of -1 are looked at and passed over."""
    monkeypatch.setattr(sqlite3, "connect", sqlite3.connect)
    sqlite._hook_sqlite(sqlite3)
    connection = sqlite3.connect(":memory:")
    connection.create_function("row", 1, clock.row)
    connection.execute("CREATE TABLE t (took INTEGER, kept INTEGER)")

    def ask(*took_ns: int, searched_ns: int = 0) -> sqlite3.Cursor:
        connection.executemany("INSERT INTO t VALUES (?, 1)", [(one,) for one in took_ns])
        connection.execute("INSERT INTO t VALUES (?, 0)", (searched_ns,))
        return connection.execute("SELECT took FROM t WHERE row(took) AND kept")

    yield ask
    connection.close()


def reads(trace: Trace) -> list[RecordedSpan]:
    return [span for span in requests_of(tracer)[0].spans if span.label.startswith("SELECT took")]


def took_ns(trace: Trace) -> int:
    return sum(span.end_ns - span.start_ns for span in reads(trace))


def test_many_rows_are_one_span(clock: Clock, rows: Callable[..., sqlite3.Cursor], request_: Trace) -> None:
    assert sum(1 for _ in rows(*[_ROW_NS] * 1000)) == 1000
    (span,) = reads(request_)
    assert span.end_ns - span.start_ns == span.cpu_ns == clock.rows_ns == 1000 * _ROW_NS


def test_what_is_searched_after_the_last_row_is_the_querys(
    clock: Clock, rows: Callable[..., sqlite3.Cursor], request_: Trace
) -> None:
    assert len(list(rows(*[_ROW_NS] * 30, searched_ns=_LONG_NS))) == 30
    assert took_ns(request_) == clock.rows_ns > _LONG_NS


def test_a_row_among_many_that_takes_long_is_the_querys(
    clock: Clock, rows: Callable[..., sqlite3.Cursor], request_: Trace
) -> None:
    for _ in rows(*[_LONG_NS if place % 100 == 99 else _ROW_NS for place in range(1000)]):
        clock.at_ns += 100
    assert took_ns(request_) == pytest.approx(clock.rows_ns, rel=0.001)


def test_what_is_done_with_rows_now_and_then_is_told_from_them(
    clock: Clock, rows: Callable[..., sqlite3.Cursor], request_: Trace
) -> None:
    """Long work with every hundredth."""
    for place, _ in enumerate(rows(*[_ROW_NS] * 3000)):
        clock.at_ns += _LONG_NS if place % 100 == 99 else 100
    assert clock.rows_ns <= took_ns(request_) <= clock.rows_ns + 3000 * 100


def test_what_is_done_between_two_loops_is_no_rows(
    clock: Clock, rows: Callable[..., sqlite3.Cursor], request_: Trace
) -> None:
    cursor = rows(*[_ROW_NS] * 200)
    for place, _ in enumerate(cursor):
        if place == 40:
            break
    clock.at_ns += _LONG_NS
    assert len(list(cursor)) == 159
    assert took_ns(request_) == clock.rows_ns


def test_what_is_called_between_rows_has_its_own_time(
    clock: Clock, rows: Callable[..., sqlite3.Cursor], request_: Trace
) -> None:
    def ask() -> None:
        clock.at_ns += _LONG_NS

    call = called(ask, Stage.HTTP, "GET")
    for place, _ in enumerate(rows(*[_ROW_NS] * 200)):
        if place > 20 and place % 10 == 0:
            call()
    found = reads(request_)
    other = [span for span in requests_of(tracer)[0].spans if span.label == "GET"]
    assert len(other) == 17
    for one in other:
        assert all(span.end_ns <= one.start_ns or span.start_ns >= one.end_ns for span in found)
    assert took_ns(request_) >= 0.9 * clock.rows_ns


def in_turn(clock: Clock, *took_ns: tuple[int, ...]) -> list[int]:
    """Step through cursors in turn, each of a query of its own; how long the rows of each took."""
    connection = sqlite3.connect(":memory:")
    connection.create_function("row", 1, clock.row)
    cursors = []
    for number, each in enumerate(took_ns):
        connection.execute(f"CREATE TABLE t{number} (took INTEGER)")
        connection.executemany(f"INSERT INTO t{number} VALUES (?)", [(one,) for one in each])
        cursors.append(connection.execute(f"SELECT took AS took{number} FROM t{number} WHERE row(took)"))
    for _ in zip(*cursors, strict=True):
        clock.at_ns += 100
    connection.close()
    return [sum(each) for each in took_ns]


def queries(trace: Trace) -> list[list[RecordedSpan]]:
    """The spans of each cursor that was stepped through, in the order of time."""
    spans = [span for span in requests_of(tracer)[0].spans if "AS took" in span.label]
    return [[span for span in spans if f"took{number}" in span.label] for number in range(3)]


def test_of_cursors_read_in_turn_no_time_is_two_queries(
    clock: Clock, rows: Callable[..., sqlite3.Cursor], request_: Trace
) -> None:
    """A span for each row: each query has the time of its own, once."""
    wanted = in_turn(clock, (4 * _ROW_NS,) * 100, (6 * _ROW_NS,) * 100, (5 * _ROW_NS,) * 100)
    found = queries(request_)
    spans = sorted((span for each in found for span in each), key=lambda span: span.start_ns)
    assert all(before.end_ns <= after.start_ns for before, after in itertools.pairwise(spans))
    for each, took in zip(found, wanted, strict=True):
        assert sum(span.end_ns - span.start_ns for span in each) == pytest.approx(took, rel=0.02)


def test_what_is_asked_for_with_each_row_is_not_the_rows(
    clock: Clock, rows: Callable[..., sqlite3.Cursor], request_: Trace
) -> None:
    """A query inside the loop over another one's rows, and quick."""
    cursor = rows(*[4 * _ROW_NS] * 50)
    other = sqlite3.connect(":memory:")
    other.create_function("row", 1, clock.row)
    for _ in cursor:
        assert other.execute("SELECT row(5000) AS inner").fetchall() == [(1,)]
    other.close()
    spans = [span for span in requests_of(tracer)[0].spans if span.label.startswith("SELECT")]
    spans.sort(key=lambda span: span.start_ns)
    assert all(before.end_ns <= after.start_ns for before, after in itertools.pairwise(spans))
    assert sum(span.end_ns - span.start_ns for span in spans) == clock.rows_ns


def test_rows_that_work_is_done_with_are_a_span_each(
    clock: Clock, rows: Callable[..., sqlite3.Cursor], request_: Trace
) -> None:
    for _ in rows(*[5 * _ROW_NS] * 100):
        clock.at_ns += 50_000
    assert took_ns(request_) == clock.rows_ns
    assert len(reads(request_)) == 99  # the first row is found with the query
