"""What tests of SQL groups share: a database that can be changed, and a service over it for any cache."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import psycopg
from tests.features_kit import features, resolver
from tests.integration.servers import PostgresServer

from tailcut.features import FeatureService
from tailcut.manifest.schema import FeatureGroup

Test = Callable[[FeatureService], Awaitable[None]]


class Database(Protocol):
    """Something with a URL that takes statements."""

    url: str

    def run(self, *statements: str) -> None:
        """Run statements one by one, each committed."""
        ...

    def rows(self, query: str) -> list[Any]:
        """What a query returns on a connection of its own."""
        ...


class Sqlite:
    """A file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = f"sqlite:///{path}"
        self.run("PRAGMA user_version = 1")

    def run(self, *statements: str) -> None:
        connection = sqlite3.connect(self._path)
        for statement in statements:
            connection.execute(statement)
            connection.commit()
        connection.close()

    def rows(self, query: str) -> list[Any]:
        connection = sqlite3.connect(self._path)
        found = connection.execute(query).fetchall()
        connection.close()
        return found


class Postgres:
    """A database of its own on a running server, dropped at the end."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.name = name
        self.direct = self.url = server.url.replace("/postgres", f"/{name}")
        """A migration goes past a pooler, whose URL ``url`` may become."""

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.direct, autocommit=True, options="-c lock_timeout=20s") as connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self, query: str) -> list[Any]:
        with psycopg.connect(self.direct, autocommit=True) as connection:
            return connection.execute(query).fetchall()

    def ask(self, query: str) -> Any:
        """The first value of a query."""
        return self.rows(query)[0][0]


@contextmanager
def postgres_database(server: PostgresServer, name: str) -> Iterator[Postgres]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield Postgres(server, name)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def serve(
    url: str, test: Test, *groups: FeatureGroup, functions: Any = None, declared: Any = None, **more: Any
) -> None:
    """Run a test against a service over a database; values expire quickly and nothing is refreshed ahead."""
    settings = {"connections": 2, "refresh_ahead": False, "timeout_s": 10.0} | more

    async def main() -> None:
        setup = features(*groups, database=url, **settings)
        service = await FeatureService.open(setup, resolve=resolver(functions or {}), declared=declared)
        try:
            await test(service)
        finally:
            await service.close()

    asyncio.run(main())


async def ask(service: FeatureService, *entities: object, tenant: str = "") -> list[dict[str, Any]]:
    """Rows of entities as requests name them."""
    keys = [service.parse_entity(entity) for entity in entities]
    if (found := service.fetch_nowait(keys, tenant)) is None:
        found = await service.fetch(keys, tenant, time.monotonic() + 10.0)
    return found.rows
