"""Hooks on drivers, in this process: what they record, and that the user's own classes stay what they are."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from tailcut.profiler.attribution.calls import normalise_query
from tailcut.profiler.hooks import sqlite
from tailcut.profiler.hooks.wrapping import awaited, called, wrap
from tailcut.profiler.recording.app_server import unhooked
from tailcut.profiler.recording.background_calls import background_calls
from tailcut.profiler.recording.spans import one_line, requests_of
from tailcut.profiler.recording.tracing import Trace, current, open_root, tracer
from tailcut.profiler.records import RecordedSpan, Stage


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's module, for one test."""
    monkeypatch.setattr(sqlite3, "connect", sqlite3.connect)
    monkeypatch.setattr(tracer, "notes", [])
    sqlite._hook_sqlite(sqlite3)


def labels(trace: Trace) -> list[str]:
    return [one_line(span.label) for span in trace.spans[1:]]


def queries(trace: Trace) -> list[RecordedSpan]:
    """As they are written down."""
    return [span for span in requests_of(tracer)[0].spans if span.stage is Stage.SQL]


def test_what_a_connection_class_does_itself_comes_first(request_: Trace, hooked: None) -> None:
    asked: list[str] = []

    class Mine(sqlite3.Connection):
        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            asked.append(sql)
            return super().execute(sql, *args)

    connection = sqlite3.connect(":memory:", factory=Mine)
    assert isinstance(connection, Mine)
    assert type(connection).__qualname__ == Mine.__qualname__
    assert connection.execute("SELECT 1").fetchall() == [(1,)]
    assert asked == ["SELECT 1"]
    assert "SELECT 1" in labels(request_)
    connection.close()


def test_a_cursor_method_without_arguments_is_called_without(request_: Trace, hooked: None) -> None:
    class Mine(sqlite3.Connection):
        def cursor(self) -> sqlite3.Cursor:  # type: ignore[override]
            return super().cursor()

    connection = sqlite3.connect(":memory:", factory=Mine)
    assert connection.execute("SELECT 1").fetchall() == [(1,)]
    assert connection.cursor().execute("SELECT 2").fetchall() == [(2,)]
    assert {"SELECT 1", "SELECT 2"} <= set(labels(request_))
    connection.close()


def test_a_cursor_class_of_ones_own_stays_what_it_is(request_: Trace, hooked: None) -> None:
    class Row(sqlite3.Cursor):
        _sql = "mine"

        def fetchone(self) -> Any:
            return {"row": super().fetchone()}

    class Mine(sqlite3.Connection):
        def cursor(self, factory: Any = Row) -> Any:
            return super().cursor(factory)

    connection = sqlite3.connect(":memory:", factory=Mine)
    cursor = connection.cursor()
    assert isinstance(cursor, Row)
    assert cursor.execute("SELECT 1").fetchone() == {"row": (1,)}
    assert cursor._sql == "mine"
    assert "SELECT 1" in labels(request_)
    given = sqlite3.connect(":memory:").cursor(Row)
    assert given.execute("SELECT 3").fetchone() == {"row": (3,)}
    assert "SELECT 3" in labels(request_)
    connection.close()
    given.connection.close()


def test_a_class_that_cannot_be_hooked_is_left_alone_and_named(request_: Trace, hooked: None) -> None:
    class Final(sqlite3.Connection):
        def __init_subclass__(cls) -> None:
            raise TypeError("it is final")

    connection = sqlite3.connect(":memory:", factory=Final)
    assert type(connection) is Final
    (note,) = tracer.notes
    assert "Final could not be hooked (it is final)" in note

    def make(connection: sqlite3.Connection) -> sqlite3.Cursor:
        return sqlite3.Cursor(connection)

    made = sqlite3.connect(":memory:").cursor(make)
    assert type(made) is sqlite3.Cursor
    assert len(tracer.notes) == 2
    connection.close()
    made.connection.close()


def test_a_with_block_commits_or_rolls_back(request_: Trace, hooked: None) -> None:
    connection = sqlite3.connect(":memory:")
    with connection:
        connection.execute("CREATE TABLE t (x INTEGER UNIQUE)")
        connection.execute("INSERT INTO t VALUES (1)")
    assert labels(request_)[-1] == "COMMIT"
    with pytest.raises(sqlite3.IntegrityError), connection:
        connection.executemany("INSERT INTO t VALUES (?)", [(2,), (1,)])
    assert labels(request_)[-1] == "ROLLBACK"
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (1,)
    connection.close()


def test_connecting_is_the_databases_time(request_: Trace, hooked: None) -> None:
    sqlite3.connect(":memory:").close()
    sqlite3.connect(":memory:", 5.0, 0, None, True, sqlite3.Connection).close()
    assert [(span.stage, span.label) for span in request_.spans[1:]] == [(Stage.SQL, "connect (sqlite3)")] * 2


def test_rows_that_are_read_are_more_of_their_query(request_: Trace, hooked: None) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (x INTEGER)")
    connection.executemany("INSERT INTO t VALUES (?)", [(number,) for number in range(1000)])
    cursor = connection.execute("SELECT a.x FROM t a, t b WHERE a.x + b.x = 900")
    while cursor.fetchone():
        sum(range(2000))  # long enough between two rows for a span each
    found = [span for span in request_.spans if str(span.label).startswith("SELECT")]
    assert len(found) > 3
    assert [span.more for span in found] == [False] + [True] * (len(found) - 1)
    assert [span.more for span in queries(request_) if span.label.startswith("SELECT")] == [False] + [True] * (
        len([span for span in queries(request_) if span.label.startswith("SELECT")]) - 1
    )
    connection.close()


def test_rows_of_a_query_that_another_hook_saw_have_its_name(request_: Trace, hooked: None) -> None:
    """SQLAlchemy's is around ``execute``, and not around what reads the rows."""
    query = "SELECT a.x FROM t a, t b, t c WHERE a.x + b.x + c.x > 40"
    connection = sqlite3.connect(":memory:")
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE t (x INTEGER)")
    cursor.executemany("INSERT INTO t VALUES (?)", [(number,) for number in range(30)])
    cursor = connection.cursor()
    called(lambda: cursor.execute(query), Stage.SQL, query)()
    assert len(cursor.fetchall()) > 1000
    assert not [label for label in labels(request_) if not label]
    found = [span for span in request_.spans if span.label == query]
    # What joins the other hook's span is part of it.
    assert [span.more for span in found] in ([False], [False, True])
    connection.close()


def test_rows_read_in_a_request_of_a_query_before_it_have_a_name(hooked: None) -> None:
    connection = sqlite3.connect(":memory:")
    cursor = connection.execute(
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 9999) SELECT x FROM n"
    )
    tracer.clear()
    trace = tracer.enter(1, "GET", "/")
    assert trace is not None
    open_root(trace, Stage.CODE, "app", "")
    assert len(cursor.fetchall()) == 9999
    current.set(None)
    assert [one.partition(" ")[0] for one in labels(trace)] == ["WITH"]
    tracer.clear()
    connection.close()


def test_a_class_method_stays_one(request_: Trace) -> None:
    class Base:
        made = "base"

        @classmethod
        def connect(cls, name: str) -> str:
            return f"{cls.made} {name}"

    class Derived(Base):
        made = "derived"

    wrap(Base, "connect", Stage.SQL, "connect (it)")
    wrap(Base, "connect", Stage.SQL, "connect (it)")
    assert (Base.connect("a"), Derived.connect("b"), Base().connect("c")) == ("base a", "derived b", "base c")
    assert labels(request_) == ["connect (it)"] * 3


def test_an_awaited_function_below_a_decorator_is_awaited(request_: Trace) -> None:
    """asyncpg's cursors and prepared statements check something first, in a function that awaits nothing."""
    import asyncio
    import functools

    async def unchecked(self: Any) -> int:
        await asyncio.sleep(0.002)  # takes time: the span must be as long
        return 1

    class Statement:
        @functools.wraps(unchecked)
        def fetch(self) -> Any:
            return unchecked(self)

    wrap(Statement, "fetch", Stage.SQL, "SELECT 1")
    statement: Any = Statement()
    assert asyncio.run(statement.fetch()) == 1
    (span,) = request_.spans[1:]
    assert span.end_ns - span.start_ns >= 2_000_000


def test_a_comment_ends_with_its_line() -> None:
    """What follows it is still the statement."""
    text = "SELECT  x -- the one\n  FROM t -- all\n\n WHERE y = 1"
    assert one_line(text) == "SELECT x -- the one\nFROM t -- all\nWHERE y = 1"
    assert normalise_query(one_line(text)) == "SELECT x FROM t WHERE y = ?"
    assert normalise_query(one_line(text.encode())) == "SELECT x FROM t WHERE y = ?"
    assert one_line("SELECT\n  1") == "SELECT 1"


def test_drivers_that_nobody_hooks_are_named_in_one_note() -> None:
    assert unhooked({"json", "fastapi", "sqlalchemy", "mysql"}) == ()
    (note,) = unhooked({"psycopg2", "psycopg2._psycopg", "tensorflow", "sqlalchemy"})
    assert note.startswith("imported, but not hooked: psycopg2, tensorflow.")
    assert note.endswith("seen is what goes through SQLAlchemy or an OpenTelemetry instrumentation")
    (note,) = unhooked({"mysql.connector", "pymongo"})
    assert "not hooked: mysql.connector, pymongo. Their calls count as the code that makes them" in note


def test_what_is_more_than_is_kept_is_said(request_: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    from tailcut.profiler.recording import tracing

    assert tracer.lost() == ()
    monkeypatch.setattr(tracing, "_MAX_SPANS", 4)
    monkeypatch.setattr(tracing, "_MAX_MOMENTS", 2)
    ask = called(lambda: 1, Stage.SQL, "SELECT 1")
    for _ in range(9):
        ask()
        tracer.moment(Stage.GC, 1, 2, "generation 0", "", -1)
    assert len(request_.spans) == 4
    spans, moments = tracer.lost()
    assert spans.startswith("1 requests made 4 calls or more that are timed")
    assert moments.startswith("the process was held up 2 times and more")


def test_calls_for_nobody_are_counted_once_each() -> None:
    """What they call of the same kind is part of them."""
    background_calls.clear()
    inner = called(lambda: 1, Stage.MODEL, "Linear")
    outer = called(lambda: inner() + inner(), Stage.MODEL, lambda args, kwargs: "Net")
    assert [outer() for _ in range(3)] == [2, 2, 2]
    assert current.get() is None
    (found,) = background_calls.found()
    assert (found.stage, found.label, found.calls) == (Stage.MODEL, "Net", 3)
    assert found.took_ns > 0
    background_calls.clear()
    assert background_calls.found() == ()


def test_what_a_request_started_and_left_behind_is_no_part_of_it(request_: Trace) -> None:
    """A worker that the first request starts keeps its context, and serves everybody."""
    import asyncio

    async def ask() -> int:
        return 1

    model, query = called(lambda: 1, Stage.MODEL, "Net"), awaited(ask, Stage.SQL, "SELECT 1")
    model()
    request_.over = True
    kept = len(request_.spans)
    background_calls.clear()
    assert model() + asyncio.run(query()) == 2
    assert len(request_.spans) == kept
    assert [(one.label, one.calls) for one in background_calls.found()] == [("Net", 1), ("SELECT 1", 1)]
    assert current.get() is request_.spans[0]
    background_calls.clear()


def test_a_call_for_nobody_that_raises_is_counted() -> None:
    def fail() -> None:
        raise ValueError("no")

    background_calls.clear()
    with pytest.raises(ValueError, match="no"):
        called(fail, Stage.HTTP, "GET http://h/")()
    assert [one.calls for one in background_calls.found()] == [1]
    assert current.get() is None
    background_calls.clear()


def test_statements_for_nobody_that_differ_in_values_are_few(monkeypatch: pytest.MonkeyPatch, hooked: None) -> None:
    from tailcut.profiler.recording import background_calls as module

    monkeypatch.setattr(module, "_MOST", 5)
    background_calls.clear()
    connection = sqlite3.connect(":memory:")
    for number in range(20):
        assert connection.execute(f"SELECT {number}").fetchall() == [(number,)]
    found = {one.label: one.calls for one in background_calls.found()}
    assert len(found) == 6
    assert sum(found.values()) == 21  # with the connection; reading the rows is no call of its own
    background_calls.clear()
    connection.close()
