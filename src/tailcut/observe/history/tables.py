"""Tables of the history's file: what is written of one minute, and what is removed when it is old or too much.

A row has the run of the server that wrote it and the number of its writing: it is never changed, so that two servers,
and a clock that is set back, add rows to a minute and overwrite none. Names stand in tables of their own, because a row
has some hundred bytes with them and twenty without.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Mapping, Sequence
from math import ceil
from typing import NamedTuple

from tailcut.common.units import format_size
from tailcut.observe.history.rows import MINUTE_S
from tailcut.store import Schema
from tailcut.store.sqlite_file import PAGE_BYTES

log = logging.getLogger("tailcut.server")

MOST_SERIES = 20_000
"""Names with their labels in a file; rows of further ones are left out."""

SCHEMA = Schema(
    what="history",
    application_id=0x7461_696C,  # "tail"
    statements=(
        "CREATE TABLE instance (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, started_s INTEGER NOT NULL)",
        # AUTOINCREMENT: the number of a series that was removed is given to no other.
        "CREATE TABLE series (id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, model TEXT NOT NULL, "
        "name TEXT NOT NULL, labels TEXT NOT NULL, seen INTEGER NOT NULL, UNIQUE (kind, model, name, labels))",
        "CREATE TABLE latency (minute INTEGER NOT NULL, instance INTEGER NOT NULL, part INTEGER NOT NULL, "
        "series INTEGER NOT NULL, count INTEGER NOT NULL, total_ns INTEGER NOT NULL, histogram BLOB NOT NULL, "
        "PRIMARY KEY (minute, instance, part, series)) WITHOUT ROWID",
        "CREATE TABLE number (minute INTEGER NOT NULL, instance INTEGER NOT NULL, part INTEGER NOT NULL, "
        "series INTEGER NOT NULL, value NOT NULL, PRIMARY KEY (minute, instance, part, series)) WITHOUT ROWID",
    ),
    setting="observe.history.path",
)

_TABLES = ("latency", "number")
_MIB = 1 << 20
_FULL_SHARE = 0.9
_GIVEN_BACK = 5_000
"""Pages that a transaction gives back to the disk at most."""

_REMOVED_SHARE = 0.05
"""Of the minutes that there are, removed at once where the file is full."""

_SEEN_MINUTES = 60
"""No row of a series is so much newer than ``seen`` says: it need not be written every minute."""

_DAY_MINUTES = 24 * 60
_WEEK_OVER_WEEK_MINUTES = 8 * _DAY_MINUTES
"""That a comparison with last week needs."""


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
        keep_s: for which rows are to be kept; that the file is full before is logged once.
    """

    def __init__(self, instance: str, started_s: int, size_bytes: int, keep_s: float = 0.0) -> None:
        self._instance = instance
        self._started_s = started_s
        self._size_bytes = size_bytes
        self._most_pages = max(size_bytes // PAGE_BYTES, 1)
        self._needed_minutes = min(int(keep_s // MINUTE_S), _WEEK_OVER_WEEK_MINUTES)
        self._has_warned = False
        self._known: dict[Series, _Known] = {}
        self._state = (-1, -1)
        self._may_make_room = True
        self._cleaned_day = -1

    def write(self, connection: sqlite3.Connection, snapshot: Snapshot, generation: int) -> int:
        """Write a snapshot in the transaction that is open; return how many rows were left out.

        Args:
            generation: of the file; see ``SqliteFile``.
        """
        # Another process may have removed series: data_version changes with what others commit.
        state = generation, _pragma(connection, "data_version")
        if state != self._state:
            self._known, self._state = {}, state
        self._may_make_room = True
        self._remove_old(connection, snapshot)
        instance = self._instance_id(connection)
        minute, key = snapshot.minute, (snapshot.minute, instance, snapshot.part)
        latencies = [(*key, self._id(connection, series, minute), *rest) for series, *rest in snapshot.latencies]
        numbers = [(*key, self._id(connection, series, minute), _short(value)) for series, value in snapshot.numbers]
        kept = [row for row in latencies if row[3]], [row for row in numbers if row[3]]
        # Ignored: what a commit whose end was not seen has written already.
        connection.executemany("INSERT OR IGNORE INTO latency VALUES (?, ?, ?, ?, ?, ?, ?)", kept[0])
        connection.executemany("INSERT OR IGNORE INTO number VALUES (?, ?, ?, ?, ?)", kept[1])
        return snapshot.rows - len(kept[0]) - len(kept[1])

    def _instance_id(self, connection: sqlite3.Connection) -> int:
        values = self._instance, self._started_s
        connection.execute("INSERT OR IGNORE INTO instance (name, started_s) VALUES (?, ?)", values)
        return int(connection.execute("SELECT id FROM instance WHERE name = ?", values[:1]).fetchone()[0])

    def _id(self, connection: sqlite3.Connection, series: Series, minute: int) -> int:
        """Return the number of a series, made where it is not there; 0 where there are too many."""
        known = self._known.get(series)
        if known is None:
            which = "kind = ? AND model = ? AND name = ? AND labels = ?"
            found = connection.execute(f"SELECT id, seen FROM series WHERE {which}", series).fetchone()
            if found is None:
                if not self._has_room(connection, minute):
                    return 0
                values = *series, minute
                made = connection.execute(
                    "INSERT INTO series (kind, model, name, labels, seen) VALUES (?, ?, ?, ?, ?)", values
                )
                found = made.lastrowid, minute
            known = self._known[series] = _Known(*found)
        if minute >= known.seen + _SEEN_MINUTES:
            connection.execute("UPDATE series SET seen = ? WHERE id = ?", (minute, known.number))
            self._known[series] = known._replace(seen=minute)
        return known.number

    def _has_room(self, connection: sqlite3.Connection, minute: int) -> bool:
        """Return whether there may be one more series; where there are too many, those without rows are removed."""
        if _series(connection) >= MOST_SERIES and self._may_make_room:
            self._may_make_room = False  # again with the next snapshot
            self._remove_unused(connection, before=minute)  # its own rows are not in the tables yet
        return _series(connection) < MOST_SERIES

    def _remove_old(self, connection: sqlite3.Connection, snapshot: Snapshot) -> None:
        """Remove what is too old and, where the file is almost full, the oldest of the rest."""
        for table in _TABLES:
            connection.execute(f"DELETE FROM {table} WHERE minute < ?", (snapshot.keep_from,))
        day = snapshot.minute // _DAY_MINUTES
        if day != self._cleaned_day:
            self._cleaned_day = day
            self._remove_unused(connection)
        while _used_pages(connection) > _FULL_SHARE * self._most_pages and (minutes := _minutes(connection)):
            until = minutes[min(max(int(len(minutes) * _REMOVED_SHARE), 1), len(minutes) - 1)]
            for table in _TABLES:
                connection.execute(f"DELETE FROM {table} WHERE minute <= ?", (until,))
            self._remove_unused(connection)
            self._warn(connection, snapshot.minute - until)
        over = _pragma(connection, "page_count") - self._most_pages  # where the limit is lower than it was
        for _ in range(min(over, _GIVEN_BACK)):
            connection.execute("PRAGMA incremental_vacuum(1)")  # of more, Python's module gives back one only

    def _remove_unused(self, connection: sqlite3.Connection, before: int | None = None) -> None:
        """Remove names that no row has any more; rows themselves are not looked through, there are millions.

        Args:
            before: the minute of rows that are about to be written.
        """
        oldest = [connection.execute(f"SELECT min(minute) FROM {table}").fetchone()[0] for table in _TABLES]
        first = min((each for each in (*oldest, before) if each is not None), default=None)
        if first is None:
            connection.execute("DELETE FROM series")
        else:
            connection.execute("DELETE FROM series WHERE seen <= ?", (first - _SEEN_MINUTES,))
        self._known = {}

    def _warn(self, connection: sqlite3.Connection, age_minutes: int) -> None:
        """Say, once, that rows were removed which are needed."""
        if self._has_warned or age_minutes >= self._needed_minutes:
            return
        self._has_warned = True
        is_week = self._needed_minutes == _WEEK_OVER_WEEK_MINUTES
        log.warning(
            "the history at %s is full: rows only %s old were removed, and %s %s; the limit is %s: set "
            "observe.history.size to %s, or observe.history.keep to less",
            connection.execute("PRAGMA database_list").fetchone()[2],
            _span_text(max(age_minutes, 0)),
            "a comparison with last week needs" if is_week else "observe.history.keep is",
            _span_text(self._needed_minutes),
            format_size(self._size_bytes),
            format_size(self._enough_bytes(age_minutes)),
        )

    def _enough_bytes(self, age_minutes: int) -> int:
        """Return a size that has room for what is needed, with a tenth to spare."""
        factor = 1.1 * self._needed_minutes / max(age_minutes, 1)
        return ceil(self._size_bytes * factor / _MIB) * _MIB


class _Known(NamedTuple):
    """What is kept of a series: its number, and a minute than which none of its rows is an hour newer."""

    number: int
    seen: int


def _minutes(connection: sqlite3.Connection) -> list[int]:
    """Return the minutes that have rows, ascending; each is found in the index, without the rows between."""
    found: set[int] = set()
    for table in _TABLES:
        cursor = connection.execute(
            f"WITH RECURSIVE found (minute) AS (SELECT min(minute) FROM {table} UNION ALL "
            f"SELECT (SELECT min(minute) FROM {table} AS t WHERE t.minute > found.minute) FROM found "
            "WHERE found.minute IS NOT NULL) SELECT minute FROM found WHERE minute IS NOT NULL"
        )
        found.update(minute for (minute,) in cursor)
    return sorted(found)


def _series(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM series").fetchone()[0])


def _span_text(minutes: int) -> str:
    """Return a span in its largest unit that says enough."""
    if minutes >= 2 * _DAY_MINUTES:
        return f"{minutes / _DAY_MINUTES:.1f} days"
    return f"{minutes / 60:.1f} hours" if minutes >= 60 else f"{minutes} minutes"


def _used_pages(connection: sqlite3.Connection) -> int:
    return _pragma(connection, "page_count") - _pragma(connection, "freelist_count")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _short(value: float) -> float | int:
    """Return a whole number as an int, which SQLite writes in as few bytes as it needs."""
    return int(value) if float(value).is_integer() and abs(value) < 2**63 else value
