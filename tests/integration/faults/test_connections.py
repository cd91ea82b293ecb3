"""Clients that are slow, silent, half gone or too many, against a real server."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import resource
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest
from tests.app_kit import INFER
from tests.integration.faults.kit import open_files, outcomes, until
from tests.integration.serving import HOST, Served, Wire, as_bytes, connected

pytestmark = pytest.mark.integration

HEAD = f"POST {INFER} HTTP/1.1\r\nhost: h\r\nx-slow: ".encode()


def test_heads_that_never_end_are_cut_off_and_hold_up_nobody(tmp_path: Path) -> None:
    async def main(server: Served) -> None:
        before = open_files(server)
        async with AsyncExitStack() as slow, connected(server.port) as quick:
            wires = [await slow.enter_async_context(connected(server.port)) for _ in range(50)]
            for wire in wires:
                wire.writer.write(HEAD)
            ended = asyncio.gather(*[wire.reader.read() for wire in wires], return_exceptions=True)
            while not ended.done():
                assert (await quick.ask(as_bytes()))[0] == 200
                for wire in wires:
                    wire.writer.write(b"a")  # that something comes now and then does not help
                await asyncio.sleep(0.02)
            # A byte that arrives after the server has closed is answered with a reset.
            assert all(found == b"" or isinstance(found, ConnectionResetError) for found in await ended)
        await until(server, lambda: open_files(server) <= before)
        assert set(outcomes(server)) == {"ok"}

    with Served(tmp_path, settings=["server.idle=700ms"]) as server:
        asyncio.run(asyncio.wait_for(main(server), 30))


def closed(server: Served) -> int:
    """How many connections it says that it has closed because nothing came on them."""
    return sum(map(int, re.findall(r"closed (\d+) connections that had sent no request", server.log)))


@pytest.mark.parametrize("said", [b"", b"PRI * HT"], ids=["nothing", "half a greeting"])
def test_silent_connections_do_not_lock_others_out(tmp_path: Path, said: bytes) -> None:
    async def main(server: Served) -> None:
        async with AsyncExitStack() as silent:
            wires = [await silent.enter_async_context(connected(server.port)) for _ in range(4)]
            for wire in wires:
                wire.writer.write(said)
            async with connected(server.port) as client:
                assert (await client.ask(as_bytes()))[0] == 200
                await until(server, lambda: closed(server) == 4)  # in one look or, on a busy machine, in two

    settings = ["server.max_connections=4", "server.idle=300ms", "server.max_timeout=500ms", "slo.timeout=500ms"]
    with Served(tmp_path, settings=settings) as server:
        asyncio.run(asyncio.wait_for(main(server), 30))


def test_a_client_that_sends_all_before_it_reads_hears_that_its_body_is_too_large(tmp_path: Path) -> None:
    """As Python's own does."""
    with Served(tmp_path, settings=["server.max_body=1MB"]) as server:
        connection = http.client.HTTPConnection(HOST, server.port, timeout=20)
        connection.request("POST", INFER, b"x" * 20_000_000)
        reply = connection.getresponse()
        assert (reply.status, json.loads(reply.read())["code"]) == (413, "too_large")
        assert reply.headers["connection"] == "close"
        connection.close()
        assert server.post(INFER)[0] == 200


def test_a_client_that_closes_its_half_gets_no_5xx_and_leaves_nothing(tmp_path: Path) -> None:
    async def main(server: Served) -> None:
        before = open_files(server)
        for raw in (as_bytes(), as_bytes()[:-1], HEAD, b""):
            async with connected(server.port) as wire:
                wire.writer.write(raw)
                wire.writer.write_eof()
                # An answer that was ready before the end was seen, the news that it is gone, or nothing.
                assert (await wire.reader.read())[9:12] in {b"", b"200", b"400", b"499"}
        await until(server, lambda: open_files(server) <= before)
        assert (await asyncio.to_thread(server.post, INFER))[0] == 200

    with Served(tmp_path) as server:
        asyncio.run(asyncio.wait_for(main(server), 30))


@contextmanager
def no_more_files(server: Served) -> Iterator[None]:
    """The worker can open nothing: the next number that it would get is over its limit."""
    pid = server.worker_pid
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(set(range(len(used) + 1)) - used), hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def test_without_file_descriptors_open_connections_go_on_and_new_ones_wait(tmp_path: Path) -> None:
    async def main(server: Served) -> None:
        async with AsyncExitStack() as stack:
            old = [await stack.enter_async_context(connected(server.port)) for _ in range(3)]
            for wire in old:
                assert (await wire.ask(as_bytes()))[0] == 200
            with no_more_files(server):
                new = [await stack.enter_async_context(connected(server.port)) for _ in range(5)]
                answers = [asyncio.create_task(wire.ask(as_bytes())) for wire in new]
                for _ in range(100):
                    assert [(await wire.ask(as_bytes()))[0] for wire in old] == [200] * 3
                assert not any(answer.done() for answer in answers)
            assert [(await answer)[0] for answer in answers] == [200] * 5
        late = await Wire.open(server.port)
        assert (await late.ask(as_bytes()))[0] == 200
        await late.close()
        assert "Traceback" not in server.log

    with Served(tmp_path) as server:
        asyncio.run(asyncio.wait_for(main(server), 30))
