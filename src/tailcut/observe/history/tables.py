"""Tables of the history's file: what is written of one minute, and what is removed when it is old or too much.

A row has the run of the server that wrote it and the number of its writing: it is never changed, so that two servers,
and a clock that is set back, add rows to a minute and overwrite none. Names stand in tables of their own, because a row
has some hundred bytes with them and twenty without.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tailcut.store import Schema
from tailcut.store.sqlite_file import PAGE_BYTES

MOST_SERIES = 20_000
"""Names with their labels in a file; rows of further ones are left out."""

SCHEMA = Schema(
    what="history",
    application_id=0x7461_696C,  # "tail"
    statements=(
        "CREATE TABLE instance (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, started_s INTEGER NOT NULL)",
        "CREATE TABLE series (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, model TEXT NOT NULL, name TEXT NOT NULL, "
        "labels TEXT NOT NULL, UNIQUE (kind, model, name, labels))",
        "CREATE TABLE latency (minute INTEGER NOT NULL, instance INTEGER NOT NULL, part INTEGER NOT NULL, "
        "series INTEGER NOT NULL, count INTEGER NOT NULL, total_ns INTEGER NOT NULL, histogram BLOB NOT NULL, "
        "PRIMARY KEY (minute, instance, part, series)) WITHOUT ROWID",
        "CREATE TABLE number (minute INTEGER NOT NULL, instance INTEGER NOT NULL, part INTEGER NOT NULL, "
        "series INTEGER NOT NULL, value NOT NULL, PRIMARY KEY (minute, instance, part, series)) WITHOUT ROWID",
    ),
)

_TABLES = ("latency", "number")
_FULL_SHARE = 0.9
_GIVEN_BACK = 5_000
"""Pages that a transaction gives back to the disk at most."""

_REMOVED_SHARE = 0.05
"""Of the minutes that there are, removed at once where the file is full."""


class Series(NamedTuple):
    """What a row is of.

    Attributes:
        kind: "latency", "counter" or "gauge".
        model: empty for the process.
        name: the stage of a latency.
        labels: as JSON; the variant of a latency.
    """

    kind: str
    model: str
    name: str
    labels: str


class Snapshot(NamedTuple):
    """What one minute, or a part of it, adds to the history.

    Attributes:
        minute: since 1970, on the wall clock.
        part: number of the writing, of this run of the server.
        keep_from: the minute before which rows are removed.
        latencies: count, nanoseconds and histogram (``blobs``).
        numbers: growth of counters, values of gauges.
    """

    minute: int
    part: int
    keep_from: int
    latencies: Sequence[tuple[Series, int, int, bytes]]
    numbers: Sequence[tuple[Series, float]]

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.latencies) + len(self.numbers)


def labels_text(labels: Mapping[str, str]) -> str:
    """Return labels as they stand in the table."""
    return json.dumps(labels, sort_keys=True, separators=(",", ":")) if labels else ""


class Tables:
    """Writes snapshots of one run of a server; for the thread that owns the file.

    Args:
        instance: name of the run.
        started_s: when it began, in Unix seconds.
        size_bytes: of the file; before it is reached the oldest rows are removed.
    """

    def __init__(self, instance: str, started_s: int, size_bytes: int) -> None:
        self._instance = instance
        self._started_s = started_s
        self._most_pages = max(size_bytes // PAGE_BYTES, 1)
        self._ids: dict[Series, int] = {}
        self._generation = -1

    def write(self, connection: sqlite3.Connection, snapshot: Snapshot, generation: int) -> int:
        """Write a snapshot in the transaction that is open; return how many rows were left out.

        Args:
            generation: of the file; see ``SqliteFile``.
        """
        if generation != self._generation:
            self._ids, self._generation = {}, generation
        self._remove_old(connection, snapshot.keep_from)
        instance = self._instance_id(connection)
        key = snapshot.minute, instance, snapshot.part
        latencies = [(*key, self._id(connection, series), *rest) for series, *rest in snapshot.latencies]
        numbers = [(*key, self._id(connection, series), _short(value)) for series, value in snapshot.numbers]
        kept = [row for row in latencies if row[3]], [row for row in numbers if row[3]]
        # Ignored: what a commit whose end was not seen has written already.
        connection.executemany("INSERT OR IGNORE INTO latency VALUES (?, ?, ?, ?, ?, ?, ?)", kept[0])
        connection.executemany("INSERT OR IGNORE INTO number VALUES (?, ?, ?, ?, ?)", kept[1])
        return snapshot.rows - len(kept[0]) - len(kept[1])

    def _instance_id(self, connection: sqlite3.Connection) -> int:
        values = self._instance, self._started_s
        connection.execute("INSERT OR IGNORE INTO instance (name, started_s) VALUES (?, ?)", values)
        return int(connection.execute("SELECT id FROM instance WHERE name = ?", values[:1]).fetchone()[0])

    def _id(self, connection: sqlite3.Connection, series: Series) -> int:
        """Return the number of a series, made where it is not there; 0 where there are too many."""
        known = self._ids.get(series)
        if known is not None:
            return known
        which = "kind = ? AND model = ? AND name = ? AND labels = ?"
        found = connection.execute(f"SELECT id FROM series WHERE {which}", series).fetchone()
        if found is None:
            if connection.execute("SELECT count(*) FROM series").fetchone()[0] >= MOST_SERIES:
                return 0
            made = connection.execute("INSERT INTO series (kind, model, name, labels) VALUES (?, ?, ?, ?)", series)
            found = (made.lastrowid,)
        self._ids[series] = int(found[0])
        return self._ids[series]

    def _remove_old(self, connection: sqlite3.Connection, keep_from: int) -> None:
        """Remove what is too old and, where the file is almost full, the oldest of the rest."""
        for table in _TABLES:
            connection.execute(f"DELETE FROM {table} WHERE minute < ?", (keep_from,))
        while _used_pages(connection) > _FULL_SHARE * self._most_pages and (minutes := _minutes(connection)):
            until = minutes[min(max(int(len(minutes) * _REMOVED_SHARE), 1), len(minutes) - 1)]
            for table in _TABLES:
                connection.execute(f"DELETE FROM {table} WHERE minute <= ?", (until,))
            self._remove_unused(connection)
        over = _pragma(connection, "page_count") - self._most_pages  # where the limit is lower than it was
        for _ in range(min(over, _GIVEN_BACK)):
            connection.execute("PRAGMA incremental_vacuum(1)")  # of more, Python's module gives back one only

    def _remove_unused(self, connection: sqlite3.Connection) -> None:
        """Remove names that no row has any more."""
        used = " UNION ".join(f"SELECT series FROM {table}" for table in _TABLES)
        connection.execute(f"DELETE FROM series WHERE id NOT IN ({used})")
        self._ids = {}


def _minutes(connection: sqlite3.Connection) -> list[int]:
    """Return the minutes that have rows, ascending."""
    both = " UNION ".join(f"SELECT minute FROM {table}" for table in _TABLES)
    return [minute for (minute,) in connection.execute(f"SELECT minute FROM ({both}) ORDER BY minute")]


def _used_pages(connection: sqlite3.Connection) -> int:
    return _pragma(connection, "page_count") - _pragma(connection, "freelist_count")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _short(value: float) -> float | int:
    """Return a whole number as an int, which SQLite writes in as few bytes as it needs."""
    return int(value) if float(value).is_integer() and abs(value) < 2**63 else value
