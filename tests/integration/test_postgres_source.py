"""Feature groups in a real PostgreSQL that is there, locked, stopped, and back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import psycopg
import pytest
from tests.features_kit import features, group, resolver
from tests.integration.servers import PostgresServer
from tests.integration.sql_kit import Postgres, postgres_database

from tailcut.errors import BadRequest, FeatureUnavailable, StartError, UnknownEntity
from tailcut.features import FeatureService

TABLES = """
CREATE TABLE planes(id text PRIMARY KEY, seats integer, engines numeric);
INSERT INTO planes VALUES ('N1', 100, 2.5), ('N''2', 200, NULL), ('ü', 3, 4);
CREATE TABLE numbers(id integer PRIMARY KEY, value text);
INSERT INTO numbers VALUES (1, 'one'), (2, 'two'), (0, 'zero');
CREATE TABLE pairs(a text, b bigint, value text);
INSERT INTO pairs VALUES ('x', 1, 'x1'), ('x', 2, 'x2'), ('y', 1, 'y1');
"""
NUMBER = "SELECT keys.id, value FROM keys JOIN numbers USING (id)"


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> Iterator[Postgres]:
    with postgres_database(postgres, "source") as database:
        database.run(*TABLES.strip().removesuffix(";").split(";\n"))
        yield database


def run(database: Postgres, test, *groups, functions=None, **settings) -> None:
    settings = {"connections": 3, "refresh_ahead": False} | settings

    async def main() -> None:
        setup = features(*groups, database=database.url, **settings)
        service = await FeatureService.open(setup, resolve=resolver(functions or {}))
        try:
            await test(service)
        finally:
            await service.close()

    asyncio.run(main())


async def fetch(service, *entities, tenant: str = "", within_s: float = 10.0):
    parsed = [service.parse_entity(entity) for entity in entities]
    return await service.fetch(parsed, tenant, time.monotonic() + within_s)


async def values(service, *entities, **more):
    return [row["value"] for row in (await fetch(service, *entities, **more)).rows]


def test_a_batch_is_one_query_and_every_key_finds_its_row(database) -> None:
    sql = "SELECT keys.id, engines AS value FROM keys JOIN planes ON planes.id = keys.id"

    async def test(service) -> None:
        assert await values(service, "ü", "N1", "N'2", "N1") == [4.0, 2.5, None, 2.5]
        statistics = service.statistics().groups[0]
        assert (statistics.source_calls, statistics.source_keys) == (1, 3)
        with pytest.raises(UnknownEntity, match="id='N9'"):
            await values(service, "N9")

    run(database, test, group(sql=sql))


def test_keys_of_several_columns_and_types(database) -> None:
    sql = "SELECT keys.a, keys.b, value FROM keys JOIN pairs USING (a, b)"

    async def test(service) -> None:
        assert await values(service, {"a": "y", "b": 1}, {"b": 2, "a": "x"}) == ["y1", "x2"]

    run(database, test, group(sql=sql, key=("a", "b")), entity=("a", "b"))


def test_now_tenant_and_with(database) -> None:
    sql = """
    -- a comment with :nothing
    WITH t AS (SELECT extract(epoch FROM to_timestamp(:now))::float8 AS x)
    SELECT keys.id, x || ':' || :tenant || ':now' AS value FROM keys, t
    """

    async def test(service) -> None:
        assert await values(service, 1, tenant="a'b") == ["5:a'b:now"]

    run(database, test, group(sql=sql, per_tenant=True), clock="test:clock", functions={"clock": lambda: 5})


def test_an_entity_of_the_wrong_type_is_the_clients_fault_and_hurts_no_neighbour(database) -> None:
    """Where the query computes with the key, its type is the first of text, bigint and double that the query takes."""

    async def test(service) -> None:
        right, wrong = await asyncio.gather(values(service, 1), values(service, "x"), return_exceptions=True)
        assert right == ["one"]
        assert isinstance(wrong, BadRequest)
        with pytest.raises(BadRequest, match="which is no bigint"):
            await values(service, 2, 1.5)
        assert await values(service, 2, 1.0, "2") == ["two", "one", "two"]

    run(database, test, group(sql="SELECT keys.id, value FROM keys JOIN numbers ON numbers.id - keys.id = 0"))


def test_a_key_that_is_only_returned_is_text_and_goes_with_any_type(database) -> None:
    first = group("first", columns=("n",), sql="SELECT keys.id, length(keys.id) AS n FROM keys")
    second = group("second", columns=("value",), sql="SELECT id, value FROM keys JOIN numbers USING (id)")

    async def alone(service) -> None:
        rows = (await fetch(service, "ab", 42, "42")).rows
        assert [(row["id"], row["n"]) for row in rows] == [("ab", 2), ("42", 2), ("42", 2)]
        with pytest.raises(BadRequest, match="which is no text"):
            await fetch(service, True)

    async def beside(service) -> None:
        assert (await fetch(service, "1")).rows == [{"id": 1, "n": 1, "value": "one"}]

    run(database, alone, first)
    run(database, beside, first, second)


def test_one_key_that_the_query_cannot_compute_fails_alone(database) -> None:
    sql = "SELECT keys.id, 10 / numbers.id AS value FROM keys JOIN numbers USING (id)"

    async def test(service) -> None:
        with pytest.raises(FeatureUnavailable, match="division by zero"):
            await values(service, 2, 0, 1)
        assert await values(service, 1, 2) == [10, 5]
        assert service.statistics().groups[0].hits == 2, "the neighbours had been found by halving"

    run(database, test, group(sql=sql))


def test_dates_are_refused_with_the_way_out(database) -> None:
    async def test(service) -> None:
        with pytest.raises(FeatureUnavailable, match=r'column "value" is a datetime.*extract'):
            await values(service, 1)

    run(database, test, group(sql="SELECT keys.id, now() AS value FROM keys"))


def test_arrays_become_tuples(database) -> None:
    async def test(service) -> None:
        assert await values(service, 1) == [(1.0, 2.5)]

    run(database, test, group(sql="SELECT keys.id, ARRAY[1.0, 2.5]::float8[] AS value FROM keys"))


def test_a_preloaded_table(database) -> None:
    async def test(service) -> None:
        assert service.fetch_nowait([(2,)], "").rows == [{"id": 2, "value": "two"}]

    run(database, test, group(preload=True, preload_sql="SELECT id, value FROM numbers"))


def test_levels_are_keyed_by_columns_of_earlier_groups(database) -> None:
    first = group("first", columns=("plane",), sql="SELECT keys.id, 'N' || keys.id AS plane FROM keys")
    second = group(
        "second",
        key=("plane",),
        columns=("seats",),
        sql="SELECT keys.plane, seats FROM keys JOIN planes ON planes.id = keys.plane",
        defaults={"seats": 0},
    )

    async def test(service) -> None:
        assert [row["seats"] for row in (await fetch(service, 1, 7)).rows] == [100, 0]

    run(database, test, first, second)


def test_a_table_lock_times_out_and_a_later_request_is_well(database) -> None:
    async def test(service) -> None:
        with psycopg.connect(database.url) as lock:
            lock.execute("LOCK TABLE numbers IN ACCESS EXCLUSIVE MODE")
            began_s = time.monotonic()
            for _ in range(5):
                with pytest.raises(FeatureUnavailable, match=r'"g" .*no answer within 0\.2 s'):
                    await values(service, 1)
            assert time.monotonic() - began_s < 15, "not until the lock is given back"
            lock.rollback()
        async with asyncio.timeout(10):
            assert await values(service, 1) == ["one"]
        with psycopg.connect(database.url) as connection:
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            assert connection.execute(waiting).fetchone() == (0,), "queries that were given up do not go on"

    run(database, test, group(sql=NUMBER), timeout_s=0.2)


def test_a_client_that_leaves_frees_its_connection(database) -> None:
    async def test(service) -> None:
        with psycopg.connect(database.url) as lock:
            lock.execute("LOCK TABLE numbers IN ACCESS EXCLUSIVE MODE")
            tasks = [asyncio.create_task(values(service, 1)) for _ in range(6)]
            await asyncio.wait(tasks, timeout=0.1)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            lock.rollback()
        assert await asyncio.gather(*[values(service, i % 2 + 1) for i in range(6)]) == [["one"], ["two"]] * 3

    run(database, test, group(sql=NUMBER), cache="off", timeout_s=5.0)


def test_stopped_means_stale_then_unavailable_and_started_means_well(postgres, database) -> None:
    async def test(service) -> None:
        began_s = time.monotonic()
        assert await values(service, 1) == ["one"]
        postgres.stop()
        try:
            seen = set()
            while time.monotonic() - began_s < 20:
                try:
                    found = await fetch(service, 1)
                    assert found.rows[0]["value"] == "one"
                    seen.add("stale" if found.stale[0] else "fresh")
                except FeatureUnavailable as error:
                    seen.add(f"unavailable: {error.group}")
                    break
                await asyncio.sleep(0.02)
            assert seen == {"fresh", "stale", "unavailable: g"}
            assert time.monotonic() - began_s >= 1.5
        finally:
            postgres.start()
        async with asyncio.timeout(10):
            while True:
                try:
                    assert (await fetch(service, 1)).stale == [False]
                    break
                except FeatureUnavailable:
                    await asyncio.sleep(0.02)
        assert service.statistics().groups[0].stale_served > 0

    run(database, test, group(sql=NUMBER, ttl="500ms", stale_for_s=1.0), refresh_ahead=True)


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELECT keys.id FROM keys", 'does not return the column "value"'),
        ("SELECT keys.id, value FROM keys JOIN nowhere USING (id)", 'relation "nowhere" does not exist'),
        ("SELEC keys", "syntax error"),
        ("SELECT keys.id, nothing(1) AS value FROM keys", "function nothing.* does not exist"),
    ],
)
def test_a_wrong_query_stops_the_start(database, sql, text) -> None:
    async def main() -> None:
        with pytest.raises(StartError, match=text) as caught:
            await FeatureService.open(features(group(sql=sql), database=database.url), resolve=resolver({}))
        assert str(caught.value).startswith('features.groups "g": ')

    asyncio.run(main())


def test_a_database_that_is_not_there_stops_the_start_without_its_password() -> None:
    async def main() -> None:
        setup = features(group(sql=NUMBER), database="postgresql://me:secret@127.0.0.1:1/x")
        with pytest.raises(StartError, match=r"cannot connect to postgresql://…@127") as caught:
            await FeatureService.open(setup, resolve=resolver({}))
        assert "secret" not in str(caught.value)

    asyncio.run(main())
