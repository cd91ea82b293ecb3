"""Columns, keys, entity fields and groups of awkward names, from both databases, through both caches."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.features_kit import features, group, resolver
from tests.integration.servers import PostgresServer, RedisServer
from tests.integration.sql_kit import postgres_database

from tailcut.errors import StartError
from tailcut.features import FeatureService

pytestmark = pytest.mark.integration

COLUMNS = ("group", "Value", "value", "a b", 'q"', "ü.1", "1st", "$1", ":now")
TABLE = 'CREATE TABLE "Order"("select" integer PRIMARY KEY, ' + ", ".join(f"c{n} integer" for n in range(9)) + ")"
KEYS = ("select", "Key", "rows", "inputs", "parameters", "id", "keys", "now", 'k"', "k b", "ü", "from")
GROUPS = ("select", "keys", "id", "g.v2", "1", "all", "value")


@dataclass
class Places:
    """Where features come from and are kept."""

    sqlite: str
    postgres: str
    redis: RedisServer

    def of(self, database: str) -> str:
        return self.sqlite if database == "sqlite" else self.postgres


def rows() -> list[tuple[int, ...]]:
    """Key, and in every column another number."""
    return [(key, *(key * 100 + place for place in range(len(COLUMNS)))) for key in range(1, 6)]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer, redis: RedisServer) -> Iterator[Places]:
    file = tmp_path_factory.mktemp("names") / "f.db"
    with sqlite3.connect(file) as local:
        local.execute(TABLE)
        local.executemany(f'INSERT INTO "Order" VALUES ({", ".join("?" * (len(COLUMNS) + 1))})', rows())
    local.close()
    with postgres_database(postgres, "names") as database:
        database.run(TABLE, f'INSERT INTO "Order" VALUES {", ".join(str(row) for row in rows())}')
        yield Places(f"sqlite:///{file}", database.url, redis)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def sql_of(key: str, columns: tuple[str, ...]) -> str:
    shown = ", ".join(f"t.c{COLUMNS.index(column)} AS {quoted(column)}" for column in columns)
    asked = f"keys.{quoted(key)}"
    return f'SELECT {asked}, {shown} FROM keys JOIN "Order" t ON t."select" = {asked}'


async def opened(places: Places, database: str, cache: str, *groups: Any, **more: Any) -> FeatureService:
    settings = {"database": places.of(database), "refresh_ahead": False, "cache": cache, **more}
    if cache == "redis":
        settings["redis"] = places.redis.url
    return await FeatureService.open(features(*groups, **settings), resolve=resolver({}))


async def fetched(service: FeatureService, *entities: Any) -> list[dict[str, Any]]:
    parsed = [service.parse_entity(entity) for entity in entities]
    return [dict(row) for row in (await service.fetch(parsed, "", time.monotonic() + 10)).rows]


@pytest.mark.parametrize("cache", ["memory", "redis"])
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
@pytest.mark.parametrize("key", KEYS)
def test_every_column_and_key_is_found_by_its_name(places: Places, database: str, cache: str, key: str) -> None:
    """The answer from the source and the one from the cache are the same; one group per column, of an odd name."""

    async def main() -> None:
        groups = [
            group(GROUPS[place % len(GROUPS)] + f"-{place}", key=(key,), columns=(column,), sql=sql_of(key, (column,)))
            for place, column in enumerate(COLUMNS)
        ]
        wide = [group("wide", key=(key,), columns=COLUMNS[::-1], sql=sql_of(key, COLUMNS))]
        for each in (groups, wide):
            service = await opened(places, database, cache, *each, entity=(key,))
            try:
                for _ in range(2):
                    for entity in (3, {key: 3}):
                        found = (await fetched(service, 1, entity))[1]
                        assert found == {key: 3, **{name: 300 + at for at, name in enumerate(COLUMNS)}}
            finally:
                await service.close()

    asyncio.run(main())


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
@pytest.mark.parametrize("keys", [("select", "from"), ("a b", "a.b"), ("x", "rows", "keys")])
def test_keys_of_several_odd_names(places: Places, database: str, keys: tuple[str, ...]) -> None:
    shown = ", ".join(f"keys.{quoted(key)}" for key in keys)
    total = " + ".join(f"keys.{quoted(key)} * {10**place}" for place, key in enumerate(keys))

    async def main() -> None:
        sql = f"SELECT {shown}, {total} AS {quoted('total of')} FROM keys"
        service = await opened(
            places, database, "memory", group(key=keys, columns=("total of",), sql=sql), entity=keys[::-1]
        )
        try:
            entity = {key: place + 1 for place, key in enumerate(keys)}
            wanted = sum((place + 1) * 10**place for place in range(len(keys)))
            assert (await fetched(service, entity))[0]["total of"] == wanted
        finally:
            await service.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("database", "sql", "columns", "said"),
    [
        ("postgres", 'SELECT keys.id, t.c1 AS Value FROM keys, "Order" t', ("Value",), '"Value"'),
        ("postgres", 'SELECT keys.id, t.C1 FROM keys, "Order" t', ("Value",), '"Value"'),
        ("sqlite", 'SELECT keys.id, t.c1 AS VALUE FROM keys, "Order" t', ("Value",), '"Value"'),
        ("sqlite", "SELECT keys.id, 1 AS select FROM keys", ("select",), "the database refuses"),
        ("postgres", "SELECT keys.ID, 1 AS value, 2 AS value FROM keys", ("value",), '"value"'),
    ],
)
def test_a_column_of_another_name_is_refused_by_name(
    places: Places, database: str, sql: str, columns: tuple[str, ...], said: str
) -> None:
    async def main() -> None:
        with pytest.raises(StartError, match=said) as caught:
            await opened(places, database, "memory", group(columns=columns, sql=sql))
        assert caught.value.hint

    asyncio.run(main())


def test_two_groups_whose_names_differ_by_case_share_no_cache(places: Places) -> None:
    async def main() -> None:
        groups = [
            group(name, columns=(column,), sql=sql_of("id", (column,)))
            for name, column in (("G", "group"), ("g", "Value"))
        ]
        service = await opened(places, "sqlite", "redis", *groups)
        try:
            for _ in range(2):
                assert (await fetched(service, 2))[0] == {"id": 2, "group": 200, "Value": 201}
        finally:
            await service.close()

    asyncio.run(main())
