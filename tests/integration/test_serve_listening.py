"""Where ``tailcut serve`` listens and how many it lets in."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.app_kit import INFER
from tests.integration.serving import Served, as_bytes, connected

pytestmark = pytest.mark.integration


def test_a_second_server_on_the_port_is_refused_and_the_first_serves_on(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    with Served(one) as first, Served(two, port=first.port, wait=False) as second:
        assert second.wait() == 3
        assert f"cannot listen on 127.0.0.1:{first.port}: another process uses this port" in second.log
        assert "--port" in second.log
        assert first.post(INFER)[0] == 200


def test_idle_connections_do_not_lock_others_out(tmp_path: Path) -> None:
    async def main(server: Served) -> None:
        async with AsyncExitStack() as idle:
            wires = [await idle.enter_async_context(connected(server.port)) for _ in range(300)]
            for wire in wires:
                assert (await wire.ask(as_bytes()))[0] == 200

    with Served(tmp_path, settings=["server.backlog=128"]) as server:
        asyncio.run(main(server))


def test_connections_above_the_limit_wait_for_one_that_ends(tmp_path: Path) -> None:
    async def main(server: Served) -> None:
        async with connected(server.port) as first, connected(server.port) as second, connected(server.port) as third:
            for wire in (first, second):
                assert (await wire.ask(as_bytes()))[0] == 200
            third.writer.write(as_bytes())
            answer = asyncio.create_task(third.reply())
            for _ in range(20):
                assert (await first.ask(as_bytes()))[0] == 200
            assert not answer.done()
            await second.close()
            assert (await answer)[0] == 200

    with Served(tmp_path, settings=["server.max_connections=2"]) as server:
        asyncio.run(main(server))


def test_a_host_may_be_a_name(tmp_path: Path) -> None:
    with Served(tmp_path, settings=["server.host=localhost"]) as server:
        assert server.post(INFER)[0] == 200
        assert f"is ready on http://localhost:{server.port}" in server.log


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("no-such-host.invalid", 'cannot listen on "no-such-host.invalid": '),
        ("", 'cannot listen on "": '),
        ("x" * 64, "cannot listen on"),
        ("192.0.2.1", "cannot listen on 192.0.2.1:"),  # TEST-NET-1 of RFC 5737: nobody's
    ],
)
def test_a_host_that_is_not_here_is_named_and_the_exit_code_is_3(tmp_path: Path, host: str, says: str) -> None:
    with Served(tmp_path, settings=[f"server.host={host}"], wait=False) as server:
        assert server.wait() == 3
        assert says in server.log
        assert "hint: set server.host" in server.log
        assert "Traceback" not in server.log
