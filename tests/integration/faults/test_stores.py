"""Redis and PostgreSQL killed, paused and back, behind a real server: what its clients see."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from tests.integration.faults.kit import children, counted, outcomes, paused, until
from tests.integration.servers import PostgresServer, RedisServer, redis_server
from tests.integration.serving import Served, Wire, as_bytes, connected
from tests.integration.sql_kit import Postgres, postgres_database

pytestmark = pytest.mark.integration

GROUP = """
[features]
entity = ["id"]
refresh_ahead = false

[[features.groups]]
name = "values"
key = ["id"]
columns = ["value"]
"""
HOOK = """
def values(keys, context):
    return [{"value": 10.0 * key[0]} for key in keys]
"""
SQL = "SELECT keys.id, value FROM keys JOIN numbers USING (id)"


async def ask(wire: Wire, id_: int) -> tuple[int, str]:
    """Ask for an entity; the status, and how its features were come by or the error's code."""
    status, headers, body = await wire.ask(as_bytes({"entities": [id_]}, "/predict/m"))
    said = json.loads(body)
    if status != 200:
        return status, said["code"]
    assert said["predictions"][0]["y"] == 11.0 * id_
    return status, headers["x-tailcut-cache"]


@contextmanager
def killed_redis(server: RedisServer) -> Iterator[None]:
    server.kill()
    try:
        yield
    finally:
        server.start()


@contextmanager
def paused_redis(server: RedisServer) -> Iterator[None]:
    server.pause()
    try:
        yield
    finally:
        server.resume()


@pytest.mark.parametrize("away", [killed_redis, paused_redis])
def test_without_redis_every_request_is_answered_and_it_is_used_again_when_it_is_back(
    tmp_path: Path, away: object
) -> None:
    assert callable(away)
    new_ids = itertools.count(1)

    async def main(server: Served, store: RedisServer) -> None:
        def kept() -> int:
            with redis.Redis.from_url(store.url) as client:
                return int(client.dbsize())  # type: ignore[arg-type]  # of its asynchronous twin

        async with connected(server.port) as wire:
            assert await ask(wire, next(new_ids)) == (200, "off")
            await until(server, lambda: kept() == 1)
            with away(store):
                for _ in range(100):
                    assert await ask(wire, next(new_ids)) == (200, "off")
                assert counted(server, "tailcut_feature_store_bypasses_total") > 50
            before = await asyncio.to_thread(kept)
            async with asyncio.timeout(20):
                while await asyncio.to_thread(kept) <= before:
                    assert await ask(wire, next(new_ids)) == (200, "off")
        assert set(outcomes(server)) == {"ok"}
        assert (await asyncio.to_thread(server.get, "/v2/health/ready"))[0] == 200

    (tmp_path / "store_hooks.py").write_text(HOOK)
    more = GROUP + 'ttl = "1h"\nfunction = "store_hooks:values"\n'
    with redis_server() as store:
        settings = ["features.cache=redis", f"features.redis={store.url}", "features.redis_timeout=50ms"]
        with Served(tmp_path, more, settings) as server:
            asyncio.run(asyncio.wait_for(main(server, store), 50))


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> Iterator[Postgres]:
    with postgres_database(postgres, "stores") as found:
        found.run("CREATE TABLE numbers(id bigint PRIMARY KEY, value float8)")
        found.run("INSERT INTO numbers SELECT id, 10 * id FROM generate_series(1, 100) AS id")
        yield found


@contextmanager
def stopped_postgres(server: PostgresServer) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


@contextmanager
def paused_postgres(server: PostgresServer) -> Iterator[None]:
    # First who could start others, so that none is missed.
    with paused(server.pid), paused(*children(server.pid)):
        yield


@pytest.mark.parametrize("away", [stopped_postgres, paused_postgres])
def test_without_postgresql_values_grow_stale_then_requests_fail_by_name_until_it_is_back(
    tmp_path: Path, postgres: PostgresServer, database: Postgres, away: object
) -> None:
    assert callable(away)

    async def main(server: Served) -> None:
        async with connected(server.port) as wire:
            assert await ask(wire, 1) == (200, "off")
            seen = set()
            with away(postgres):
                async with asyncio.timeout(20):
                    while not any(status == 503 for status, _ in seen):
                        seen.add(await ask(wire, 1))
            assert seen == {(200, "off"), (200, "stale"), (503, "feature_unavailable")}
            async with asyncio.timeout(20):
                while await ask(wire, 1) != (200, "off"):
                    continue
            assert await ask(wire, 2) == (200, "off")
        assert counted(server, "tailcut_feature_stale_total") > 0
        assert counted(server, "tailcut_feature_source_errors_total") > 0
        assert set(outcomes(server)) == {"ok", "feature_unavailable"}
        assert (await asyncio.to_thread(server.get, "/v2/health/ready"))[0] == 200

    where = f'refresh_ahead = false\ndatabase = "{database.url}"'
    more = GROUP.replace("refresh_ahead = false", where) + f'ttl = "300ms"\nstale_for = "1s"\nsql = "{SQL}"\n'
    settings = ["features.timeout=200ms", "slo.timeout=3s"]
    with Served(tmp_path, more, settings) as server:
        asyncio.run(asyncio.wait_for(main(server), 50))
