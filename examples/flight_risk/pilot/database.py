"""Where the pilot reads features: a pool of PostgreSQL connections, or one SQLite connection per thread."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from typing import Any, Protocol, cast

from flight_risk.pilot.queries import STATEMENTS

Row = dict[str, Any]


class Database(Protocol):
    """Reads the features of some flights."""

    def features(self, flights: list[int], now: int) -> dict[int, Row]:
        """Return the features of each flight that the board knows at ``now``, by flight."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


def connect(url: str) -> Database:
    """Open 'postgresql://...' or 'sqlite:///path'."""
    if url.startswith("sqlite:///"):
        return Sqlite(url.removeprefix("sqlite:///"))
    return Postgres(url)


class Postgres:
    """One connection per request from a pool; psycopg prepares each statement after its fifth use."""

    def __init__(self, url: str) -> None:
        from psycopg.rows import dict_row
        from psycopg_pool import ConnectionPool

        # Reads need no transaction: without autocommit every request would pay for BEGIN and COMMIT.
        settings = {"autocommit": True, "row_factory": dict_row}
        self._pool = ConnectionPool(url, min_size=8, max_size=8, kwargs=settings, open=True)
        self._pool.wait(timeout=30.0)
        marked = [re.sub(r":(now)\b", r"%(\1)s::bigint", text) for text in STATEMENTS]
        self._statements = [text.replace("{ids}", "= ANY(%(ids)s)").encode() for text in marked]

    def features(self, flights: list[int], now: int) -> dict[int, Row]:
        with self._pool.connection() as connection:
            values = {"ids": flights, "now": now}
            cursors = [connection.execute(text, values) for text in self._statements]
            return merged([cast("list[Row]", cursor.fetchall()) for cursor in cursors])

    def close(self) -> None:
        self._pool.close()


class Sqlite:
    """A read-only connection per thread, as SQLite wants it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._local = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._statements = [text.replace("{ids}", "IN (SELECT value FROM json_each(:ids))") for text in STATEMENTS]

    def features(self, flights: list[int], now: int) -> dict[int, Row]:
        connection = self._connection()
        values = {"ids": json.dumps(flights), "now": now}
        rows = [[dict(row) for row in connection.execute(text, values)] for text in self._statements]
        return merged(rows)

    def close(self) -> None:
        for connection in self._opened:
            connection.close()

    def _connection(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            # Closed by another thread at shutdown; used by this one only.
            found = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, check_same_thread=False)
            found.row_factory = sqlite3.Row
            self._local.connection = found
            self._opened.append(found)
        return found


def merged(results: list[list[Row]]) -> dict[int, Row]:
    """Join the statements' rows by flight; the first statement says which flights there are."""
    flights = {row["flight_id"]: dict(row) for row in results[0]}
    for rows in results[1:]:
        for row in rows:
            if (flight := flights.get(row["flight_id"])) is not None:
                flight.update(row)
    return flights
