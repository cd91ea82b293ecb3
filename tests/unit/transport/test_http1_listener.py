"""Accepting connections and ending them, on real sockets of the loopback and uvloop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from tests.app_kit import deployment
from tests.integration.test_serve_secure import make_certificate
from tests.wait_kit import until

from tailcut.pipeline.request_context import Arrivals
from tailcut.protocol.http import Body, HeaderMap, Reply
from tailcut.transport.http1 import listener
from tailcut.transport.http1.connection import Site
from tailcut.transport.http1.listener import Listener
from tailcut.transport.tls import Tls, context_of

pytestmark = pytest.mark.slow

GET = b"GET / HTTP/1.1\r\nhost: h\r\n\r\n"


class Server:
    """A listener whose routes wait for a gate."""

    def __init__(self, directory: Path, settings: list[str], context: ssl.SSLContext | None) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = 0
        self.writers: list[asyncio.StreamWriter] = []

        async def handle(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
            self.begun += 1
            await self.gate.wait()
            return Reply(200, [], b"ok" if path == "/" else b"z" * 20_000_000)

        worker: Any = SimpleNamespace(handle=handle, arrivals=Arrivals(), on_drain=None)
        self.site = Site(worker, asyncio.get_running_loop())
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        self.listener = Listener(
            self.site, deployment(directory, overrides=settings).deployment.server, listening, context
        )
        self.listener.start()

    async def connect(self, **how: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **how)
        self.writers.append(writer)
        return reader, writer


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(test(), 20))


@asynccontextmanager
async def serving(directory: Path, *settings: str, context: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(directory, list(settings), context)
    try:
        yield server
    finally:
        server.gate.set()
        for writer in server.writers:
            writer.close()
        await server.listener.stop()
        for writer in server.writers:
            with suppress(OSError):
                await writer.wait_closed()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(GET)
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(2)
    return head


@pytest.mark.parametrize("after", range(4))
def test_a_stop_ends_though_a_connection_was_accepted_just_before(tmp_path: Path, after: int) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server:
            for _ in range(after):
                await asyncio.sleep(0)
            client = socket.create_connection(("127.0.0.1", server.port))
            server.listener._accept()
            for _ in range(after):
                await asyncio.sleep(0)
            began_s = asyncio.get_running_loop().time()
            await server.listener.stop()
            assert asyncio.get_running_loop().time() - began_s < 4
            client.close()

    run(test)


def test_a_stop_waits_for_what_is_being_answered_and_closes_what_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For longer than it waits for clients to take their last replies."""
    monkeypatch.setattr(listener, "_LAST_S", 0.1)
    rounds = 0

    has_ended = Listener._has_ended

    async def counted(self: Listener) -> bool:
        nonlocal rounds
        rounds += 1
        return await has_ended(self)

    monkeypatch.setattr(Listener, "_has_ended", counted)

    async def test() -> None:
        async with serving(tmp_path) as server:
            idle, busy = await server.connect(), await server.connect()
            await ask(*idle)
            server.gate.clear()
            asked = asyncio.create_task(ask(*busy))
            await until(lambda: server.begun == 2)
            stopping = asyncio.create_task(server.listener.stop())
            assert await idle[0].read() == b""
            await until(lambda: rounds > 2)
            assert not stopping.done()
            with pytest.raises(ConnectionRefusedError):
                await server.connect()
            server.gate.set()
            assert b"connection: close" in await asked
            await stopping

    run(test)


def test_a_client_that_reads_no_last_reply_does_not_hold_the_stop_up(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server:
            client = socket.create_connection(("127.0.0.1", server.port))
            client.sendall(b"GET /large HTTP/1.1\r\nhost: h\r\n\r\n")
            await until(lambda: server.begun and not any(each.is_busy for each in server.site.connections))
            began_s = asyncio.get_running_loop().time()
            await server.listener.stop()
            assert asyncio.get_running_loop().time() - began_s < 5
            client.close()

    run(test)


def test_a_handshake_that_does_not_end_holds_nothing_up_and_is_counted(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)

    async def test() -> None:
        client_context = ssl.create_default_context(cafile=str(cert))
        client_context.check_hostname = False
        settings = ("server.max_connections=2", "server.idle=500ms")
        async with serving(tmp_path, *settings, context=context_of(Tls(cert, key))) as server:
            silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
            reader, writer = await server.connect(ssl=client_context)  # once their time is over
            assert b"200 OK" in await ask(reader, writer)
            await until(lambda: not server.listener._admitting)
            more = socket.create_connection(("127.0.0.1", server.port))
            await until(lambda: server.listener._admitting)
            began_s = asyncio.get_running_loop().time()
            await server.listener.stop()
            assert asyncio.get_running_loop().time() - began_s < 4
            for client in (*silent, more):
                client.close()
            writer.close()

    run(test)


def test_connections_come_and_go_and_the_count_stays_right(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, "server.max_connections=3") as server:
            for number in range(40):
                if number % 3:
                    reader, writer = await server.connect()
                    assert b"200 OK" in await ask(reader, writer)
                    writer.close()
                else:
                    socket.create_connection(("127.0.0.1", server.port)).close()
            together = [await server.connect() for _ in range(3)]
            for each in together:
                assert b"200 OK" in await asyncio.wait_for(ask(*each), 5)
            fourth = await server.connect()
            waiting = asyncio.create_task(ask(*fourth))
            for _ in range(5):
                assert b"200 OK" in await ask(*together[1])
            assert not waiting.done()
            together[0][1].close()
            assert b"200 OK" in await waiting

    run(test)
