"""Bodies that are arriving: bounded all together, and no claim shuts others out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.app_kit import GOOD, INFER, PATIENT, Client, Connection, counters, deployment, running

BODY = 100_000
LIMITS = (*PATIENT, f"server.max_body={BODY}", f"server.max_arriving={4 * BODY}")


def serve(directory: Path, test: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with running(deployment(directory, overrides=LIMITS)) as client:
            await test(client)
            assert client.app.engine.in_flight == {}

    asyncio.run(main())


def opened(client: Client, declared: int | None, sent: int) -> tuple[Connection, asyncio.Task[object]]:
    """A request whose body has come in part."""
    connection = client.connect("POST", INFER, {} if declared is None else {"content-length": str(declared)})
    connection.send(b" " * sent, more=True)
    return connection, asyncio.ensure_future(connection.answer())


async def taken(*connections: Connection) -> None:
    """Wait until the application has read what was sent."""
    async with asyncio.timeout(20):
        while not all(connection.sent for connection in connections):
            await asyncio.sleep(0)


async def finish(connection: Connection, answer: asyncio.Task[object]) -> None:
    connection.disconnect()
    await answer


def test_lengths_that_are_only_declared_shut_nobody_out(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        claims = [opened(client, BODY, 1) for _ in range(50)]
        await taken(*(connection for connection, _ in claims))
        assert (await client.post(INFER, GOOD)).status == 200
        assert (await client.request("POST", INFER, b" " * BODY)).status == 400  # read whole, and no JSON
        for claim in claims:
            await finish(*claim)

    serve(tmp_path, test)


def test_what_has_come_is_bounded_over_all_connections(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        some = [opened(client, declared, BODY - 1) for declared in (BODY, BODY, BODY, None)]
        await taken(*(connection for connection, _ in some))
        for headers in (None, {"transfer-encoding": "chunked"}):
            shed = await client.request("POST", INFER, b" " * BODY, headers)
            assert (shed.status, shed.json["code"]) == (429, "shed")
            assert shed.headers["retry-after"] == "1"
            assert "server.max_arriving" in shed.json["hint"]
        assert (await client.post(INFER, GOOD)).status == 200  # a small one waits for nobody
        for each in some:
            await finish(*each)
        assert (await client.request("POST", INFER, b" " * BODY)).status == 400
        outcomes = {key[2]: count for key, count in (await counters(client, "tailcut_requests_total")).items()}
        assert outcomes == {"client_gone": 4, "shed": 2, "ok": 1, "bad_request": 1}

    serve(tmp_path, test)


def test_all_room_comes_back(tmp_path: Path) -> None:
    """However a body ends: whole, refused, or left in its middle."""

    async def test(client: Client) -> None:
        for _ in range(20):
            assert (await client.request("POST", INFER, b" " * BODY)).status == 400
            assert (await client.request("POST", INFER, b" " * (BODY + 1))).status == 413
            chunked = {"transfer-encoding": "chunked"}
            assert (await client.request("POST", INFER, b" " * (BODY + 1), chunked)).status == 413
            for declared in (BODY, None):
                connection, answer = opened(client, declared, BODY - 1)
                await taken(connection)
                await finish(connection, answer)
        some = [opened(client, BODY, BODY - 1) for _ in range(4)]
        await taken(*(connection for connection, _ in some))
        for connection, answer in some:
            connection.send(b" ")
            assert (await answer).status == 400  # type: ignore[attr-defined]

    serve(tmp_path, test)
