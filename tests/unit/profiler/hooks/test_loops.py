"""Both event loops that uvicorn takes: what holds them, and what they hand to threads."""

from __future__ import annotations

import asyncio
import gc
import importlib
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest
import uvloop
from tests.wait_kit import until

from tailcut.profiler.hooks import threads
from tailcut.profiler.recording import blocking, clocks
from tailcut.profiler.recording.middleware import Profiled
from tailcut.profiler.recording.tracing import Trace, current, tracer
from tailcut.profiler.records import Stage

Kind = Literal["asyncio", "uvloop"]
Run = Callable[[Coroutine[Any, Any, Any]], Any]
both = pytest.mark.parametrize("kind", ["asyncio", "uvloop"])


def on(kind: Kind) -> Run:
    def run(work: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if kind == "uvloop" else None) as runner:
            return runner.run(work)

    return run


@pytest.fixture
def run(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a coroutine on a loop that is watched."""
    monkeypatch.setattr(blocking.Handle, "_run", blocking.Handle._run)
    for name in (
        "call_soon", "call_soon_threadsafe", "call_later", "call_at", "add_reader", "add_writer",
        "create_connection", "create_unix_connection", "create_server", "create_unix_server",
    ):  # fmt: skip
        monkeypatch.setattr(uvloop.Loop, name, getattr(uvloop.Loop, name))
    blocking.watch_loop(kind)
    tracer.clear()
    return on(kind)


def spin() -> None:
    end = clocks.now() + 2 * blocking.BLOCKED_NS
    while clocks.now() < end:
        pass


def blocked() -> list[tuple[int, str]]:
    """Moments that lasted as long as ``spin``: others are those in which another process had the core."""
    found = [
        (one.request, one.label.rpartition(".")[2])
        for one in tracer.moments
        if one.stage is Stage.LOOP and one.end_ns - one.start_ns >= 2 * blocking.BLOCKED_NS
    ]
    tracer.clear()
    return found


@both
def test_what_holds_the_loop_is_known_by_its_request(run: Run) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        # In the callback that takes the request in, and in the one that finishes it.
        spin()
        await asyncio.sleep(0)
        spin()

    async def work() -> None:
        scope = {"type": "http", "headers": [(b"x-tailcut-profile", b"5")], "method": "GET", "path": "/"}
        await asyncio.create_task(Profiled(application)(scope, None, None))  # type: ignore[arg-type]
        spin()

    run(work())
    found = blocked()
    assert [each for each in found if each[0] == 5] == [(5, "application"), (5, "_traced")]
    # Where others have the core, its first callback may look blocked as well.
    assert found[-1] == (-1, "work")


@both
def test_what_holds_the_loop_in_nobodys_code_is_named_by_what_answers(run: Run) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        span = current.get()
        assert span is not None
        span.trace.endpoint = ("predict", "app.py:7")
        spin()

    async def work() -> None:
        scope = {"type": "http", "headers": [(b"x-tailcut-profile", b"5")], "method": "GET", "path": "/"}
        await asyncio.create_task(Profiled(application)(scope, None, None))  # type: ignore[arg-type]

    run(work())
    assert (5, "predict") in blocked()


@both
@pytest.mark.parametrize("way", ["soon", "at once", "later", "at", "from a thread", "read", "write"])
def test_each_way_to_the_loop_is_watched_once(run: Run, way: str) -> None:
    ours, theirs = socket.socketpair()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def callback(answer: str) -> None:
            loop.remove_reader(ours)
            loop.remove_writer(ours)
            spin()
            done.set_result(answer)

        theirs.send(b"x")
        {
            "soon": lambda: loop.call_soon(callback, "yes"),
            "at once": lambda: loop.call_later(0, callback, "yes"),
            "later": lambda: loop.call_later(0.001, callback, "yes"),
            "at": lambda: loop.call_at(loop.time() + 0.001, callback, "yes"),
            "from a thread": lambda: loop.call_soon_threadsafe(callback, "yes"),
            "read": lambda: loop.add_reader(ours, callback, "yes"),
            "write": lambda: loop.add_writer(ours, callback, "yes"),
        }[way]()
        assert await done == "yes"

    with ours, theirs:
        run(work())
    # Where others have the core, whatever runs meanwhile may look blocked as well.
    assert [each for each in blocked() if each[1] == "callback"] == [(-1, "callback")]


class Echo(asyncio.Protocol):
    """Holds the loop for what it reads, and says that it has read."""

    read: asyncio.Future[bytes]
    transport: Any

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        spin()
        self.read.set_result(data)


@both
@pytest.mark.parametrize("side", ["server", "client"])
def test_what_a_protocol_does_with_what_it_reads_is_seen(run: Run, side: str) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        theirs, ours = Echo(), Echo()
        theirs.read, ours.read = loop.create_future(), loop.create_future()
        server = await loop.create_server(lambda: theirs, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            transport, _ = await loop.create_connection(protocol_factory=lambda: ours, host="127.0.0.1", port=port)
            if side == "server":
                transport.write(b"x")
                assert await theirs.read == b"x"
            else:
                await until(lambda: hasattr(theirs, "transport"))
                theirs.transport.write(b"x")
                assert await ours.read == b"x"
            transport.close()

    run(work())
    assert reading() == [-1]


def reading() -> list[int]:
    """Whose the moments were in which something was read. To set up a connection may take long, too."""
    return [number for number, label in blocked() if label in {"data_received", "buffer_updated", "_read_ready"}]


@both
def test_a_protocol_that_serves_many_connections_is_timed_once(run: Run) -> None:
    shared = Echo()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: shared, "127.0.0.1", 0)
        async with server:
            for _ in range(3):
                shared.read = loop.create_future()
                _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                writer.write(b"x")
                await shared.read
                writer.close()

    run(work())
    assert reading() == [-1, -1, -1]


@both
def test_a_protocol_goes_with_its_connection(run: Run) -> None:
    """And is not left to the garbage collection, which is timed, too."""
    gone: list[str] = []

    class Brief(Echo):
        def __del__(self) -> None:
            gone.append("yes")

    async def work() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        transport, protocol = await loop.create_connection(Brief, sock=ours)
        protocol.read = loop.create_future()
        theirs.send(b"x")
        await protocol.read
        transport.close()
        theirs.close()
        del transport, protocol
        await until(lambda: gone)

    gc.collect()
    gc.disable()
    try:
        run(work())
        assert gone == ["yes"]
    finally:
        gc.enable()


@both
def test_what_a_connection_reads_later_is_not_its_first_requests(run: Run) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        made: list[Echo] = []

        async def application(scope: Any, receive: Any, send: Any) -> None:
            _, protocol = await loop.create_connection(Echo, sock=ours)
            made.append(protocol)
            await asked()

        async def asked() -> None:
            made[0].read = loop.create_future()
            theirs.send(b"x")
            await made[0].read

        scope = {"type": "http", "headers": [(b"x-tailcut-profile", b"5")], "method": "GET", "path": "/"}
        await asyncio.create_task(Profiled(application)(scope, None, None))  # type: ignore[arg-type]
        await asked()
        theirs.close()

    run(work())
    assert reading() == [5, -1]


class Filled(asyncio.BufferedProtocol):
    """Holds the loop for what it reads into a buffer of its own."""

    __slots__ = ("read",)
    read: asyncio.Future[int]

    def get_buffer(self, sizehint: int) -> bytearray:
        return bytearray(64)

    def buffer_updated(self, nbytes: int) -> None:
        spin()
        self.read.set_result(nbytes)


@both
@pytest.mark.parametrize("slots", [False, True])
def test_protocols_with_buffers_are_seen_and_those_with_slots_work(
    run: Run, kind: Kind, tmp_path: Path, slots: bool
) -> None:
    class Usual(Filled):
        """One that takes any attribute."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        protocol = Filled() if slots else Usual()
        protocol.read = loop.create_future()
        server = await loop.create_unix_server(lambda: protocol, str(tmp_path / "socket"))
        async with server:
            transport, _ = await loop.create_unix_connection(asyncio.Protocol, str(tmp_path / "socket"))
            transport.write(b"abc")
            assert await protocol.read == 3
            transport.close()

    run(work())
    assert reading() == ([] if slots and kind == "uvloop" else [-1])


@both
def test_arguments_may_have_names(run: Run) -> None:
    ours, theirs = socket.socketpair()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        first, second = loop.create_future(), loop.create_future()
        loop.call_later(delay=0.001, callback=lambda: first.set_result(None))
        if isinstance(loop, uvloop.Loop):
            loop.add_reader(fileobj=ours, callback=lambda: (loop.remove_reader(ours), second.set_result(None)))  # type: ignore[call-arg]
        else:
            loop.add_reader(ours, lambda: (loop.remove_reader(ours), second.set_result(None)))
        theirs.send(b"x")
        await asyncio.gather(first, second)

    with ours, theirs:
        run(work())


@both
def test_what_the_loop_says_of_a_callback_names_it(run: Run) -> None:
    told: list[str] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(f"{context['message']} {context['handle']!r}"))

        def as_planned() -> None:
            raise ValueError

        loop.call_soon(as_planned)
        await asyncio.sleep(0)

    run(work())
    assert len(told) == 1
    assert told[0].count("as_planned") >= 1
    assert "_Timed" not in told[0]


@both
def test_what_raises_after_it_held_the_loop_is_told_to_both(run: Run) -> None:
    told: list[Any] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))

        def callback() -> None:
            spin()
            raise ValueError("as planned")

        loop.call_soon(callback)
        await asyncio.sleep(0)

    run(work())
    assert [str(one) for one in told] == ["as planned"]
    assert [each for each in blocked() if each[1] == "callback"] == [(-1, "callback")]


@both
def test_a_callbacks_context_is_the_one_that_was_given(run: Run) -> None:
    import contextvars

    variable = contextvars.ContextVar("variable", default="outside")

    async def work() -> str:
        loop = asyncio.get_running_loop()
        context, done = contextvars.copy_context(), loop.create_future()
        context.run(variable.set, "inside")
        loop.call_later(0, lambda: done.set_result(variable.get()), context=context)
        return str(await done)

    assert run(work()) == "inside"


@both
def test_the_loops_own_executor_is_known(kind: Kind, request_: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadPoolExecutor, "submit", ThreadPoolExecutor.submit)
    monkeypatch.setattr(ThreadPoolExecutor, "__init__", ThreadPoolExecutor.__init__)
    threads._hook_executor(importlib.import_module("concurrent.futures.thread"))
    if kind == "uvloop":
        monkeypatch.setattr(uvloop.Loop, "run_in_executor", uvloop.Loop.run_in_executor)
        threads._hook_uvloop(uvloop)
    else:
        monkeypatch.setattr(asyncio.BaseEventLoop, "run_in_executor", asyncio.BaseEventLoop.run_in_executor)
        threads._hook_asyncio(asyncio.base_events)

    async def work() -> int:
        found = await asyncio.to_thread(lambda: 2)
        await asyncio.get_running_loop().shutdown_default_executor()
        return found

    assert on(kind)(work()) == 2
    assert [(span.stage.value, span.label) for span in request_.spans[1:] if span.stage is not Stage.CODE] == [
        ("wait", "executor of asyncio"), ("loop", "back from a thread"),
    ]  # fmt: skip
