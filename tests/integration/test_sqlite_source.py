"""Feature groups in a real SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

import pytest
from tests.features_kit import features, group, resolver

from tailcut.errors import FeatureUnavailable, StartError, UnknownEntity
from tailcut.features import FeatureService
from tailcut.features.sources.sqlite import SqliteDatabase

PLANE = "SELECT keys.id, seats, engines AS value FROM keys JOIN planes ON planes.id = keys.id"
# Counts to a thousand million: minutes.
ENDLESS = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000)
SELECT keys.id, (SELECT count(*) FROM n) AS value FROM keys
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "a folder with ?#%.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE planes(id TEXT PRIMARY KEY, seats INTEGER, engines REAL)")
        connection.executemany(
            "INSERT INTO planes VALUES (?, ?, ?)", [("N1", 100, 2.0), ("N'2", 200, None), ("ü", 3, 4)]
        )
        connection.execute("CREATE TABLE numbers(id INTEGER PRIMARY KEY, value)")
        connection.executemany("INSERT INTO numbers VALUES (?, ?)", [(1, "one"), (2, "two"), (2**62 + 1, "large")])
        connection.execute("CREATE TABLE pairs(a TEXT, b INTEGER, value)")
        connection.executemany("INSERT INTO pairs VALUES (?, ?, ?)", [("x", 1, "x1"), ("x", 2, "x2"), ("y", 1, "y1")])
    connection.close()
    return path


def url(database: Path) -> str:
    return f"sqlite:///{database}"


def run(setup, test, functions=None) -> None:
    async def main() -> None:
        service = await FeatureService.open(setup, resolve=resolver(functions or {}))
        try:
            await test(service)
        finally:
            await service.close()

    asyncio.run(main())


async def get(service, *entities, tenant: str = "", within_s: float = 10.0):
    parsed = [service.parse_entity(entity) for entity in entities]
    return (await service.fetch(parsed, tenant, time.monotonic() + within_s)).rows


def test_a_batch_is_one_query_and_every_key_finds_its_row(database) -> None:
    async def test(service) -> None:
        rows = await get(service, "ü", "N1", "N'2", "N1")
        assert [(row["seats"], row["value"]) for row in rows] == [(3, 4.0), (100, 2.0), (200, None), (100, 2.0)]
        statistics = service.statistics().groups[0]
        assert (statistics.source_calls, statistics.source_keys) == (1, 3)
        with pytest.raises(UnknownEntity, match="id='N9'"):
            await get(service, "N9")

    run(features(group(sql=PLANE, columns=("seats", "value")), database=url(database)), test)


def test_keys_of_several_columns_and_types(database) -> None:
    sql = "SELECT keys.a, keys.b, value FROM keys JOIN pairs USING (a, b)"
    setup = features(group(sql=sql, key=("a", "b")), entity=("a", "b"), database=url(database))

    async def test(service) -> None:
        entities = [{"a": "y", "b": 1}, {"b": 2, "a": "x"}]
        assert [row["value"] for row in await get(service, *entities)] == ["y1", "x2"]

    run(setup, test)


def test_keys_that_are_equal_to_python_only_do_not_fail_each_other(database) -> None:
    """Nothing tells the key's type here: 1 and true are one key to Python's dictionaries, and one row to SQLite."""
    setup = features(group(sql="SELECT keys.id, 10 * keys.id AS value FROM keys"), database=url(database))

    async def test(service) -> None:
        rows = await get(service, 2, 2.0, 1, True)
        assert [row["value"] for row in rows] == [20, 20, 10, 10]

    run(setup, test)


def test_integers_of_64_bits_stay_exact(database) -> None:
    sql = "SELECT keys.id, value FROM keys JOIN numbers USING (id)"

    async def test(service) -> None:
        assert (await get(service, 2**62 + 1))[0]["value"] == "large"
        with pytest.raises(UnknownEntity):
            await get(service, 2**62)

    run(features(group(sql=sql), database=url(database)), test)


def test_now_and_tenant_are_parameters(database) -> None:
    sql = "WITH t(x) AS (SELECT :now) SELECT keys.id, x || ':' || :tenant || ':tenant' AS value FROM keys, t"
    setup = features(group(sql=sql, per_tenant=True), database=url(database), clock="test:clock")

    async def test(service) -> None:
        assert (await get(service, 1, tenant="a'b"))[0]["value"] == "5.0:a'b:tenant"

    run(setup, test, {"clock": lambda: 5})


def test_a_preloaded_table(database) -> None:
    sql = "SELECT id, seats, engines AS value FROM planes;"
    setup = features(group(preload=True, preload_sql=sql, columns=("value", "seats")), database=url(database))

    async def test(service) -> None:
        assert service.fetch_nowait([("N1",)], "").rows == [{"id": "N1", "seats": 100, "value": 2.0}]

    run(setup, test)


def test_two_rows_for_a_key_fail_that_key_only(database) -> None:
    sql = "SELECT keys.a, value FROM keys JOIN pairs USING (a)"
    setup = features(group(sql=sql, key=("a",)), entity=("a",), database=url(database))

    async def test(service) -> None:
        with pytest.raises(FeatureUnavailable, match="more than one row for key"):
            await get(service, "x", "y")
        assert (await get(service, "y"))[0]["value"] == "y1"

    run(setup, test)


def test_a_query_that_does_not_end_is_given_up_and_its_connection_used_again(database) -> None:
    setup = features(
        group("slow", sql=ENDLESS),
        group("fast", sql="SELECT keys.id, seats FROM keys JOIN planes USING (id)", columns=("seats",)),
        database=url(database),
        connections=1,
        timeout_s=0.2,
        refresh_ahead=False,
        concurrent=False,
    )

    async def test(service) -> None:
        began_s = time.monotonic()
        for _ in range(3):
            with pytest.raises(FeatureUnavailable, match=r'"slow" .*no answer within'):
                await get(service, "N1")
        assert time.monotonic() - began_s < 15
        # The only connection is free again as soon as SQLite has noticed.
        assert service.statistics().groups[0].source_calls == 3

    run(setup, test)


def test_a_locked_database_is_unavailable_and_then_well_again(database) -> None:
    sql = "SELECT keys.id, value FROM keys JOIN numbers USING (id)"

    async def test(service) -> None:
        lock = sqlite3.connect(database)
        lock.execute("BEGIN EXCLUSIVE")
        with pytest.raises(FeatureUnavailable, match=r"locked|no answer within"):
            await get(service, 1)
        lock.rollback()
        lock.close()
        async with asyncio.timeout(10):
            assert (await get(service, 1))[0]["value"] == "one"

    run(features(group(sql=sql), database=url(database), timeout_s=0.2), test)


def test_the_database_is_opened_read_only(database) -> None:
    sql = "SELECT keys.id, value FROM keys JOIN numbers USING (id)"

    async def main() -> None:
        setup = features(group(sql=sql.replace("value", "absent AS value")), database=url(database))
        with pytest.raises(StartError, match=r'features\.groups "g": the database refuses sql: no such column'):
            await FeatureService.open(setup, resolve=resolver({}))
        setup = features(group(preload=True, preload_sql="DELETE FROM numbers"), database=url(database))
        with pytest.raises(StartError, match="the database refuses preload_sql"):
            await FeatureService.open(setup, resolve=resolver({}))

    asyncio.run(main())
    assert sqlite3.connect(database).execute("SELECT count(*) FROM numbers").fetchone() == (3,)


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELECT keys.id, seats FROM keys JOIN planes USING (id)", 'does not return the column "value"'),
        ("SELECT id, value FROM numbers", "does not read from `keys`"),
        ("SELECT keys.id, :other AS value FROM keys", "parameter :other, which does not exist"),
        ("SELECT keys.id, :tenant AS value FROM keys", "values are shared by all tenants"),
        ("SELEC keys.id", "the database refuses"),
    ],
)
def test_a_wrong_query_stops_the_start(database, sql, text) -> None:
    async def main() -> None:
        with pytest.raises(StartError, match=text) as caught:
            await FeatureService.open(features(group(sql=sql), database=url(database)), resolve=resolver({}))
        assert caught.value.hint

    asyncio.run(main())


def test_a_file_that_is_no_database_stops_the_start(tmp_path) -> None:
    (tmp_path / "x.db").write_text("hello, this is no database " * 100)

    async def main() -> None:
        setup = features(group(sql=PLANE), database=f"sqlite:///{tmp_path}/x.db")
        with pytest.raises(StartError, match=r"cannot open .*not a database"):
            await FeatureService.open(setup, resolve=resolver({}))

    asyncio.run(main())


def test_a_row_whose_key_was_not_asked_for_is_explained(database) -> None:
    sql = "SELECT upper(keys.id) AS id, 1 AS value FROM keys"

    async def test(service) -> None:
        with pytest.raises(FeatureUnavailable, match="return the requested key"):
            await get(service, "n1")

    run(features(group(sql=sql), database=url(database)), test)


def test_a_connection_whose_query_was_given_up_serves_the_next(database) -> None:
    async def main() -> None:
        opened = await SqliteDatabase.open(str(database), 1, 1.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await opened.fetch(
                    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n", []
                )
        async with asyncio.timeout(10):
            assert await opened.fetch("SELECT 1", []) == [(1,)]
        await opened.close()

    asyncio.run(main())


def test_a_caller_cancelled_as_its_query_ends_does_not_stop_the_next_query(database) -> None:
    counts = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000) SELECT count(*) FROM n"

    async def main() -> None:
        opened = await SqliteDatabase.open(str(database), 1, 1.0)
        first = asyncio.create_task(opened.fetch(counts, []))
        await asyncio.sleep(0)
        second = asyncio.create_task(opened.fetch(counts, []))
        await asyncio.sleep(0)
        (running,) = opened._running
        running.add_done_callback(lambda _: first.cancel())
        found = await asyncio.gather(first, second, return_exceptions=True)
        assert found[1] == [(300_000,)]
        await opened.close()

    asyncio.run(main())
