"""Tables of the history's file: what is written of one minute, and what is removed when it is old or too much.

After a restart within a minute, and where a clock is set back, a minute's rows are added to; of a gauge the last value
stays. Names stand in a table of their own, because a row has some hundred bytes with them and twenty without.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tailcut.common.units import format_duration, format_size
from tailcut.observe.fine_histogram import PLACES, Counts
from tailcut.observe.history.rows import MINUTE_S
from tailcut.store import Schema
from tailcut.store.sqlite_file import PAGE_BYTES

_PAIR = np.dtype([("place", "<u2"), ("count", "<u4")])


def to_bytes(counts: Counts) -> bytes:
    """Return a histogram's bytes; empty where nothing was counted.

    Args:
        counts: (``PLACES``,), of a minute: from 0 to 2**32 - 1.
    """
    places = np.flatnonzero(counts)
    pairs = np.empty(len(places), _PAIR)
    pairs["place"], pairs["count"] = places, counts[places]
    return pairs.tobytes()


def from_bytes(data: bytes | bytearray) -> Counts:
    """Return the histogram, or the sum of the histograms, of some bytes, (``PLACES``,).

    Raises:
        ValueError: bytes that ``to_bytes`` does not make.
    """
    if len(data) % _PAIR.itemsize:
        raise ValueError("a histogram's bytes are cut off")
    pairs = np.frombuffer(data, _PAIR)
    if pairs["place"].max(initial=0) >= PLACES:
        raise ValueError(f"a histogram has place {pairs['place'].max()}; there are {PLACES}")
    return np.bincount(pairs["place"], pairs["count"], PLACES).astype(np.int64)


log = logging.getLogger("tailcut.server")

MOST_SERIES = 20_000
"""Names with their labels in a file; rows of further ones are left out."""

SCHEMA = Schema(
    what="history",
    application_id=0x7461_696C,  # "tail"
    version=2,
    statements=(
        # AUTOINCREMENT: the number of a series that was removed is given to no other.
        "CREATE TABLE series (id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, model TEXT NOT NULL, "
        "name TEXT NOT NULL, labels TEXT NOT NULL, UNIQUE (kind, model, name, labels))",
        "CREATE TABLE latency (minute INTEGER NOT NULL, series INTEGER NOT NULL, count INTEGER NOT NULL, "
        "total_ns INTEGER NOT NULL, histogram BLOB NOT NULL, PRIMARY KEY (minute, series)) WITHOUT ROWID",
        "CREATE TABLE number (minute INTEGER NOT NULL, series INTEGER NOT NULL, value NOT NULL, "
        "PRIMARY KEY (minute, series)) WITHOUT ROWID",
    ),
    setting="observe.history.path",
)

_INSERT = {
    # A histogram's bytes are pairs of a place and its count: those of two histograms add up.
    "latency": "INSERT INTO latency VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count, "
    "total_ns = total_ns + excluded.total_ns, histogram = CAST(histogram || excluded.histogram AS BLOB)",
    "counter": "INSERT INTO number VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
    "gauge": "INSERT INTO number VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
}
_TABLES = ("latency", "number")
_FULL_SHARE = 0.9
_GIVEN_BACK = 5_000
"""Pages that a transaction gives back to the disk at most."""

_DAY_MINUTES = 24 * 60
_WEEK_OVER_WEEK_MINUTES = 8 * _DAY_MINUTES
"""That a comparison with last week needs."""


class Series(NamedTuple):
    """Subject of a row.

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


class HistorySnapshot(NamedTuple):
    """Rows that one minute, or a part of it, adds to the history.

    Attributes:
        minute: since 1970, on the wall clock.
        part: number of the minute, of this run of the server.
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
    """Writes snapshots; for the thread that owns the file.

    Args:
        size_bytes: of the file; before it is reached the oldest rows are removed.
        keep_s: for which rows are to be kept; that the file is full before is logged once.
    """

    def __init__(self, size_bytes: int, keep_s: float = 0.0) -> None:
        self._size_bytes = size_bytes
        self._most_pages = max(size_bytes // PAGE_BYTES, 1)
        self._needed_minutes = min(int(keep_s // MINUTE_S), _WEEK_OVER_WEEK_MINUTES)
        self._has_warned = False
        self._known: dict[Series, int] = {}
        self._connection: sqlite3.Connection | None = None
        self._cleaned_day = -1

    def write(self, connection: sqlite3.Connection, snapshot: HistorySnapshot) -> int:
        """Write a snapshot in the transaction that is open; return how many rows were left out."""
        if connection is not self._connection:  # the numbers are of a file that may be gone, or were rolled back
            self._connection, self._known = connection, {}
        self._remove_old(connection, snapshot)
        left_out = 0
        rows: list[tuple[Series, list[Any]]] = [(series, values) for series, *values in snapshot.latencies]
        rows += [(series, [_short(value)]) for series, value in snapshot.numbers]
        for series, values in rows:
            number = self._id(connection, series)
            left_out += not number
            if number:
                connection.execute(_INSERT[series.kind], (snapshot.minute, number, *values))
        return left_out

    def _id(self, connection: sqlite3.Connection, series: Series) -> int:
        """Return the number of a series, made where it is not there; 0 where there are too many."""
        if series not in self._known:
            which = "kind = ? AND model = ? AND name = ? AND labels = ?"
            found = connection.execute(f"SELECT id FROM series WHERE {which}", series).fetchone()
            if found is None:
                if _series(connection) >= MOST_SERIES:
                    return 0
                insert = "INSERT INTO series (kind, model, name, labels) VALUES (?, ?, ?, ?) RETURNING id"
                found = connection.execute(insert, series).fetchone()
            self._known[series] = found[0]
        return self._known[series]

    def _remove_old(self, connection: sqlite3.Connection, snapshot: HistorySnapshot) -> None:
        """Remove what is too old and, where the file is almost full, the oldest of the rest."""
        self._remove_until(connection, snapshot.keep_from - 1)
        day = snapshot.minute // _DAY_MINUTES
        if day != self._cleaned_day:
            self._cleaned_day = day
            if _series(connection) >= MOST_SERIES:  # it reads all rows: only where names are short
                used = " UNION ".join(f"SELECT series FROM {table}" for table in _TABLES)
                connection.execute(f"DELETE FROM series WHERE id NOT IN ({used})")
                self._known = {}
        oldest = "SELECT minute FROM number ORDER BY minute LIMIT 1 OFFSET (SELECT count(*) / 20 FROM number)"
        full = _FULL_SHARE * self._most_pages
        while _pragma(connection, "page_count") - _pragma(connection, "freelist_count") > full and (
            found := connection.execute(oldest).fetchone()
        ):
            self._remove_until(connection, found[0])
            self._warn(connection, snapshot.minute - found[0])
        over = _pragma(connection, "page_count") - self._most_pages  # where the limit is lower than it was
        for _ in range(min(over, _GIVEN_BACK)):
            connection.execute("PRAGMA incremental_vacuum(1)")  # of more, Python's module gives back one only

    def _remove_until(self, connection: sqlite3.Connection, minute: int) -> None:
        for table in _TABLES:
            connection.execute(f"DELETE FROM {table} WHERE minute <= ?", (minute,))

    def _warn(self, connection: sqlite3.Connection, age_minutes: int) -> None:
        """Say, once, that rows were removed which are needed."""
        if self._has_warned or age_minutes >= self._needed_minutes:
            return
        self._has_warned = True
        log.warning(
            "the history at %s is full: rows only %s old were removed, and observe.history.keep, or a comparison with "
            "last week, needs %s; the limit is %s: set observe.history.size higher, or observe.history.keep to less",
            connection.execute("PRAGMA database_list").fetchone()[2],
            format_duration(max(age_minutes, 1) * MINUTE_S),
            format_duration(self._needed_minutes * MINUTE_S),
            format_size(self._size_bytes),
        )


def _series(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM series").fetchone()[0])


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _short(value: float) -> float | int:
    """Return a whole number as an int, which SQLite writes in as few bytes as it needs."""
    return int(value) if float(value).is_integer() and abs(value) < 2**63 else value
