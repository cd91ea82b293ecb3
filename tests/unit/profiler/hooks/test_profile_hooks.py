"""Hooks of the profile, in this process: what they record of a request, and that they leave everything else alone."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import os
import sqlite3
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tailcut.profiler.hooks import sqlite, threads
from tailcut.profiler.hooks.caches import _command, _pipeline
from tailcut.profiler.hooks.http import _short
from tailcut.profiler.hooks.imports import ImportHooks
from tailcut.profiler.hooks.locks import _TracedLock, _waiting
from tailcut.profiler.hooks.wrapping import awaited, called, wrap
from tailcut.profiler.recording import clocks, tracing
from tailcut.profiler.recording.middleware import Profiled
from tailcut.profiler.recording.places import Places
from tailcut.profiler.recording.spans import one_line, requests_of
from tailcut.profiler.recording.tracing import OpenSpan, Trace, close_span, current, open_timed, open_under, tracer
from tailcut.profiler.records import RecordedSpan, Stage


def spans(trace: Trace) -> tuple[RecordedSpan, ...]:
    """As they are written down, without what took next to nothing."""
    return requests_of(tracer)[0].spans


def kept(trace: Trace) -> list[tuple[str, str]]:
    return [(span.stage.value, one_line(span.label)) for span in trace.spans[1:]]


def place_of(span: OpenSpan) -> str:
    return span.place if isinstance(span.place, str) else tracer.places.at(span.place, span.at)


def test_a_call_outside_of_any_request_is_the_plain_call() -> None:
    assert called(lambda x: x + 1, Stage.SQL, "never")(1) == 2


def test_the_outermost_of_calls_of_one_kind_is_kept(request_: Trace) -> None:
    inner = called(lambda: 1, Stage.HTTP, "urllib3")
    other = called(lambda: inner() + 1, Stage.LOCK, "lock")
    outer = called(lambda: inner() + other(), Stage.HTTP, "requests")
    assert outer() == 3
    assert kept(request_) == [("http", "requests"), ("lock", "lock"), ("http", "urllib3")]
    assert request_.spans[2].parent is request_.spans[1]
    assert current.get() is request_.spans[0]


def test_a_call_that_raises_ends_its_span(request_: Trace) -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        called(fail, Stage.CODE, "fail")()
    assert current.get() is request_.spans[0]
    assert request_.spans[1].end_ns >= request_.spans[1].start_ns
    assert request_.spans[1].cpu_ns >= 0


def test_tasks_inherit_the_request_and_lie_side_by_side(request_: Trace) -> None:
    async def run() -> None:
        both = asyncio.Barrier(2)
        call = awaited(both.wait, Stage.HTTP, "GET")
        await asyncio.gather(call(), call())

    asyncio.run(run())
    one, other = request_.spans[1:]
    assert one.parent is other.parent is request_.spans[0]
    assert max(one.start_ns, other.start_ns) < min(one.end_ns, other.end_ns)


def test_wrapping_twice_wraps_once(request_: Trace) -> None:
    class Client:
        def send(self) -> int:
            return 1

    wrap(Client, "send", Stage.HTTP, "GET")
    wrap(Client, "send", Stage.HTTP, "GET")
    assert Client().send() == 1
    assert kept(request_) == [("http", "GET")]
    with pytest.raises(AttributeError):
        wrap(Client, "receive", Stage.HTTP, "GET")


def test_sqlite_connections_are_traced_with_their_rows(request_: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "connect", sqlite3.connect)
    sqlite._hook_sqlite(sqlite3)
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    connection.execute("CREATE TABLE t (x INTEGER)")
    connection.executemany("INSERT INTO t VALUES (?)", [(1,), (2,), (3,)])
    connection.commit()
    rows = [dict(row) for row in connection.execute("SELECT x\n  FROM t")]
    assert rows == [{"x": 1}, {"x": 2}, {"x": 3}]
    cursor = connection.cursor()
    assert cursor.execute("SELECT max(x) FROM t").fetchone()[0] == 3
    assert isinstance(cursor, sqlite3.Cursor)
    labels = [label for stage, label in kept(request_) if stage == "sql"]
    assert list(dict.fromkeys(labels)) == [
        "connect (sqlite3)", "CREATE TABLE t (x INTEGER)", "INSERT INTO t VALUES (?)", "COMMIT", "SELECT x FROM t",
        "SELECT max(x) FROM t",
    ]  # fmt: skip
    assert all(
        place_of(span).startswith("tests/unit/profiler/hooks/test_profile_hooks.py:") for span in request_.spans[1:]
    )
    connection.close()


def test_a_connection_class_of_ones_own_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(sqlite3.Connection):
        pass

    monkeypatch.setattr(sqlite3, "connect", sqlite3.connect)
    sqlite._hook_sqlite(sqlite3)
    connection = sqlite3.connect(":memory:", factory=Mine)
    assert isinstance(connection, Mine)
    assert connection.execute("SELECT 1").fetchall() == [(1,)]
    connection.close()


def test_a_lock_that_is_free_makes_no_span_and_one_that_is_held_does(request_: Trace) -> None:
    lock = _TracedLock(threading.Lock(), "threading.Lock of app.py:3")
    with lock:
        assert lock.locked()
        assert lock.acquire(blocking=False) is False
        assert kept(request_) == []
        assert lock.acquire(timeout=0.001) is False
    assert kept(request_) == [("lock", "threading.Lock of app.py:3")]
    condition = threading.Condition(_TracedLock(threading.RLock(), "x"))  # type: ignore[arg-type]
    with condition:
        condition.notify_all()


def test_waiting_inside_of_a_wait_is_one_wait(request_: Trace) -> None:
    inner = _waiting(lambda self: 1, Stage.WAIT, "another thread")
    outer = _waiting(inner, Stage.LOCK, "threading.Semaphore")
    assert outer(object()) == 1
    assert kept(request_) == [("lock", "threading.Semaphore")]


def test_work_in_an_executor_belongs_to_its_request(request_: Trace, hooked_threads: None) -> None:

    def work() -> int:
        return int(called(lambda: 2, Stage.SQL, "SELECT")())

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == 2
    assert asyncio.run(in_loop(work)) == 2
    stages = [stage for stage, _ in kept(request_)]
    assert stages == ["wait", "code", "sql", "wait", "code", "sql", "loop"]
    code = request_.spans[2]
    assert str(code.label).endswith("work")
    assert place_of(code).startswith("tests/unit/profiler/hooks/test_profile_hooks.py:")
    assert code.thread != request_.spans[0].thread
    assert request_.spans[3].parent is code
    assert code.cpu_ns >= 0


async def in_loop(work: Any) -> Any:
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(None, work)
    await loop.shutdown_default_executor()
    return found


def test_what_only_calls_is_named_by_what_it_calls() -> None:
    from functools import partial

    def work() -> None: ...

    assert threads._meant(partial(partial(work)), ()) is work
    generator = (number for number in range(3))
    assert threads._meant(next, (generator,)) is generator


def test_modules_are_hooked_when_they_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "driver_one.py").write_text("value = 1\n")
    (tmp_path / "driver_two.py").write_text("value = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    done: list[tuple[str, str]] = []

    def double(module: ModuleType) -> None:
        module.value *= 10  # type: ignore[attr-defined]

    def fail(module: ModuleType) -> None:
        raise AttributeError("no such function")

    hooks = ImportHooks(
        {"driver_one": double, "driver_two": fail}, {}, lambda name, error: done.append((name, str(error or "")))
    )
    hooks.install()
    assert importlib.import_module("driver_one").value == 10
    two = importlib.import_module("driver_two")
    assert two.value == 2  # as it was made
    assert done == [("driver_one", ""), ("driver_two", "no such function")]
    assert type(two.__spec__.loader).__name__ == "SourceFileLoader"  # type: ignore[union-attr]
    for name in ("driver_one", "driver_two"):
        sys.modules.pop(name)


def test_requests_without_a_number_pass_untouched() -> None:
    seen: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append((receive, send, current.get()))

    async def receive() -> Any: ...

    async def send(message: Any) -> None: ...

    tracer.clear()
    profiled = Profiled(application)
    asyncio.run(profiled({"type": "http", "headers": [], "method": "GET", "path": "/"}, receive, send))
    asyncio.run(profiled({"type": "lifespan"}, receive, send))
    assert seen == [(receive, send, None), (receive, send, None)]
    assert tracer.traces == []


def test_a_request_is_entered_left_and_remembers_what_it_raised() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        raise ValueError("after the reply")

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None: ...

    tracer.clear()
    scope = {"type": "http", "headers": [(b"x-tailcut-profile", b"3")], "method": "GET", "path": "/a"}
    with pytest.raises(ValueError, match="after the reply"):
        asyncio.run(Profiled(application)(scope, receive, send))
    (one,) = requests_of(tracer)
    assert (one.number, one.method, one.path, one.status) == (3, "GET", "/a", 200)
    assert one.entered_ns <= one.left_ns
    assert tracer.failures[0].endswith("ValueError: after the reply")
    assert one.spans[0].stage is Stage.CODE  # a function of the user's is the application itself
    tracer.clear()


def test_short_spans_without_children_are_no_news(request_: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**9, 1000))
    monkeypatch.setattr(tracing, "now", lambda: next(clock))
    outer = open_under(request_.spans[0], Stage.CODE, "outer")
    inner = open_under(outer, Stage.SQL, "instant")
    close_span(inner)
    for _ in range(3):
        next(clock)
    close_span(outer)
    found = {span.label: span for span in spans(request_)}
    assert set(found) == {"fastapi", "outer"}


def test_labels_hold_what_is_the_same_from_request_to_request() -> None:
    assert _short("GET", "http://host:80/items?id=17") == "GET http://host:80/items"
    assert _command((None, b"GET", "user:17"), {}) == "GET"
    assert _command((None, "MGET", "a", "b", "c"), {}) == "MGET (3 arguments)"

    class Pipeline:
        command_stack: Any = (((("GET", "a")), {}), ((("GET", "b")), {}), ((("SET", "c", 1)), {}))

    assert _pipeline((Pipeline(),), {}) == "pipeline of 3 (GET, SET)"


def test_places_tell_the_users_files_from_libraries(tmp_path: Path) -> None:
    places = Places(str(tmp_path))
    assert places.is_user(str(tmp_path / "app.py"))
    assert not places.is_user(str(tmp_path / ".venv/lib/python3.11/site-packages/fastapi/routing.py"))
    assert not places.is_user(os.__file__)
    assert not places.is_user("<frozen importlib._bootstrap>")
    assert not places.is_user(tracing.__file__)
    assert places.name(str(tmp_path / "pkg" / "app.py")) == "pkg/app.py"
    assert places.name("/usr/lib/python3/site-packages/fastapi/routing.py") == "fastapi/routing.py"
    label, place, users = places.describe(test_places_tell_the_users_files_from_libraries)
    assert (label, users) == ("test_places_tell_the_users_files_from_libraries", True)
    assert place.endswith(
        f"test_profile_hooks.py:{test_places_tell_the_users_files_from_libraries.__code__.co_firstlineno}"
    )
    assert places.describe(len) == ("len", "", False)


def test_what_is_kept_of_a_request_is_nothing_to_the_garbage_collector(request_: Trace) -> None:
    called(lambda: 1, Stage.SQL, "SELECT 1")()
    assert not any(gc.is_tracked(one) for one in (request_, *request_.spans))


def test_what_is_forgotten_is_freed(request_: Trace) -> None:
    class Text(str):
        pass

    label = Text("SELECT 1")
    called(lambda: 1, Stage.SQL, label)()
    held = weakref.ref(label)
    del label
    assert held() is not None
    tracer.clear()
    assert held() is None


def test_a_call_is_placed_where_the_users_code_makes_it(request_: Trace) -> None:
    def library(call: Any) -> Any:
        return call()

    library.__code__ = library.__code__.replace(co_filename="/usr/lib/python3/site-packages/driver.py")
    call = called(lambda: [None] * 100_000, Stage.SQL, "SELECT\n 1")
    line = sys._getframe().f_lineno + 1
    library(call)
    (span,) = [one for one in spans(request_) if one.stage is Stage.SQL]
    assert (span.label, span.place) == ("SELECT 1", f"tests/unit/profiler/hooks/test_profile_hooks.py:{line}")


def test_a_span_that_is_open_when_the_recording_ends_has_no_cpu_time(request_: Trace) -> None:
    parent = current.get()
    assert parent is not None
    opened = open_timed(parent, Stage.SQL, "SELECT 1")
    for _ in range(1000):
        opened.label = "SELECT 2"
    assert [(one.label, one.cpu_ns, one.delay_ns) for one in spans(request_)[1:]] == [("SELECT 2", -1, -1)]


class Clocks:
    """A wall clock and a CPU clock that are set, and how often the latter was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cpu_ns, self.asked = 0, 0
        monkeypatch.setattr(clocks, "thread_time_ns", self.read)

    def read(self) -> int:
        self.asked += 1
        return self.cpu_ns


def test_a_short_span_is_cpu_time_and_asks_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, clock = Clocks(monkeypatch), clocks.ThreadClock()
    begun = clock.cpu_at(10**9)
    assert clock.cpu_since(10**9, begun, 10**9 + 20_000) == 20_000
    after = clock.cpu_at(10**9 + 25_000)
    assert after == begun + 25_000
    assert clock.cpu_since(10**9 + 25_000, after, 10**9 + 35_000) == 10_000
    assert fake.asked == 1


def test_of_a_long_span_the_clock_says_how_much_was_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, clock = Clocks(monkeypatch), clocks.ThreadClock()
    begun = clock.cpu_at(10**9)
    fake.cpu_ns += 300_000
    assert clock.cpu_since(10**9, begun, 10**9 + 5_000_000) == 300_000
    # The next one, close to its end, begins with what it said.
    begun = clock.cpu_at(10**9 + 5_010_000)
    fake.cpu_ns += 10_000 + 70_000
    assert clock.cpu_since(10**9 + 5_010_000, begun, 10**9 + 6_000_000) == 70_000
    assert fake.asked == 3
    # And what encloses it ends with what it said.
    assert clock.cpu_since(10**9, 0, 10**9 + 6_020_000) == 400_000
    assert fake.asked == 3


def test_where_a_thread_slept_between_two_spans_the_clock_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, clock = Clocks(monkeypatch), clocks.ThreadClock()
    begun = clock.cpu_at(10**9)
    assert clock.cpu_since(10**9, begun, 10**9 + 10_000) == 10_000
    fake.cpu_ns = 12_000
    assert clock.cpu_at(10**9 + 3_000_000) == 12_000
    assert fake.asked == 2


def test_times_that_are_added_up_are_read_again_before_their_errors_do(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, clock = Clocks(monkeypatch), clocks.ThreadClock()
    for number in range(200):
        at = 10**9 + number * 30_000
        clock.cpu_since(at, clock.cpu_at(at), at + 20_000)
    assert 10 <= fake.asked <= 20


def test_a_sleeping_thread_has_no_cpu_time_and_a_computing_one_has(request_: Trace) -> None:
    nothing = threading.Event()
    called(lambda: nothing.wait(0.02), Stage.HTTP, "asleep")()
    called(lambda: sum(range(300_000)), Stage.SQL, "busy")()
    found = {one.label: one for one in spans(request_)}
    assert 0 <= found["asleep"].cpu_ns < 5_000_000
    busy = found["busy"]
    assert busy.cpu_ns + max(busy.delay_ns, 0) <= busy.end_ns - busy.start_ns
    assert busy.cpu_ns > 1_000_000


def test_a_wait_for_a_core_is_what_the_kernel_counted_meanwhile(request_: Trace) -> None:
    ms = 1_000_000
    first, then, last = (b"%d %d 7\n" % (ms, waited) for waited in (3 * ms, 5 * ms, 6 * ms))

    def span(
        parent: OpenSpan, label: str, start_ms: int, end_ms: int, cpu_ms: int, before: bytes, after: bytes
    ) -> OpenSpan:
        return OpenSpan(
            request_, parent, Stage.SQL, label, "", 0, 1, start_ms * ms, end_ms * ms, cpu_ms * ms, before, after
        )

    outer = span(request_.spans[0], "predict", 0, 10, 2, first, last)
    request_.spans += [
        outer,
        span(outer, "SELECT 1", 1, 8, 1, first, then),
        span(outer, "none", 8, 9, 0, then, then),
        # What is counted after it was last read may be more than a span had time for.
        span(outer, "capped", 9, 10, 1, then, last),
        span(outer, "unknown", 9, 10, 1, b"", last),
        OpenSpan(request_, outer, Stage.HTTP, "awaited", "", 0, 0, 9 * ms, 10 * ms),
    ]
    found = {one.label: (one.cpu_ns, one.delay_ns) for one in spans(request_)}
    assert found["predict"] == (2 * ms, 3 * ms)
    assert found["SELECT 1"] == (1 * ms, 2 * ms)
    assert found["none"] == (0, 0)
    assert found["capped"] == (1 * ms, 0)
    assert found["unknown"] == (1 * ms, -1)
    assert found["awaited"] == found["fastapi"] == (-1, -1)
    # What is in others is not counted twice.
    assert requests_of(tracer)[0].cpu_ns == 2 * ms


def test_waits_for_a_core_are_asked_for_once_and_of_each_part_while_there_are_some(
    request_: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel says that each time that it is asked the thread has waited for longer."""
    step_ns, lines = 0, 0

    def pread(file: int, buffer: Any, *rest: int) -> int:
        nonlocal lines
        lines += 1
        line = b"0 %d 0\n\0" % (lines * step_ns)
        ctypes.memmove(buffer, line, len(line))
        return len(line)

    def asleep() -> Any:
        return called(lambda: threading.Event().wait(0.002), Stage.HTTP, "GET")()

    monkeypatch.setattr(clocks, "_pread", pread)
    monkeypatch.setattr(clocks, "of_thread", clocks._OfThread())
    monkeypatch.setattr(tracing, "of_thread", clocks.of_thread)
    monkeypatch.setattr(clocks.ThreadClock, "noted_until_ns", 0)
    monkeypatch.setattr(clocks, "_NOTED_NS", 60_000_000_000)
    outer = called(lambda: [asleep() for _ in range(3)], Stage.CODE, "predict")
    outer()
    assert lines == 2
    step_ns = 2_000_000
    outer()
    assert lines in (3, 4)  # it began a moment after the one before had ended
    begun = lines
    outer()
    assert lines >= begun + 4
    found = [one for one in spans(request_) if one.label == "GET"]
    assert [one.delay_ns for one in found[:3]] == [0, 0, 0]
    assert all(one.delay_ns >= 1_500_000 for one in found[-3:])
