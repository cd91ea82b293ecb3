"""The history's file: a row per minute of what was served, kept over restarts, and read as latencies and counts.

After a restart within a minute, and where a clock is set back, a minute's rows are added to; of a gauge the last value
stays. Names stand in a table of their own, because a row has some hundred bytes with them and twenty without.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tailcut.common.units import format_duration, format_size
from tailcut.observe.fine_histogram import PLACES, Counts
from tailcut.store import Schema, SqliteFile
from tailcut.store.sqlite_file import PAGE_BYTES

log = logging.getLogger("tailcut.server")

MINUTE_S = 60

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
_SERIES = "SELECT count(*) FROM series"
_FULL_SHARE = 0.9
_GIVEN_BACK = 5_000
"""Pages that a transaction gives back to the disk at most."""

_DAY_MINUTES = 24 * 60
_WEEK_OVER_WEEK_MINUTES = 8 * _DAY_MINUTES
"""That a comparison with last week needs."""


# -- Writing -----------------------------------------------------------------------------------------------------------


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


class Series(NamedTuple):
    """Subject of a row.

    Attributes:
        kind: "latency", "counter" or "gauge".
        model: empty for the process.
        name: the stage of a latency.
        labels: sorted, without the model; "variant" of a latency.
    """

    kind: str
    model: str
    name: str
    labels: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, kind: str, model: str, name: str, labels: Mapping[str, str]) -> Series:
        """Return a series, given all its labels."""
        return cls(kind, model, name, tuple(sorted(item for item in labels.items() if item[0] != "model")))

    def label(self, name: str) -> str:
        """Return a label's value; empty where there is none of that name."""
        return dict(self.labels).get(name, "")


class HistorySnapshot(NamedTuple):
    """Rows that one minute, or a part of it, adds to the history.

    Attributes:
        minute: since 1970, on the wall clock.
        part: number of the minute, of this run of the server.
        keep_from: the minute before which rows are removed.
        latencies: count, nanoseconds and histogram (``to_bytes``).
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
            key = *series[:3], _labels_text(series)
            which = "kind = ? AND model = ? AND name = ? AND labels = ?"
            found = connection.execute(f"SELECT id FROM series WHERE {which}", key).fetchone()
            if found is None:
                if _number(connection, _SERIES) >= MOST_SERIES:
                    return 0
                insert = "INSERT INTO series (kind, model, name, labels) VALUES (?, ?, ?, ?) RETURNING id"
                found = connection.execute(insert, key).fetchone()
            self._known[series] = found[0]
        return self._known[series]

    def _remove_old(self, connection: sqlite3.Connection, snapshot: HistorySnapshot) -> None:
        """Remove what is too old and, where the file is almost full, the oldest of the rest."""
        self._remove_until(connection, snapshot.keep_from - 1)
        day = snapshot.minute // _DAY_MINUTES
        if day != self._cleaned_day:
            self._cleaned_day = day
            if _number(connection, _SERIES) >= MOST_SERIES:  # it reads all rows: only where names are short
                used = " UNION ".join(f"SELECT series FROM {table}" for table in _TABLES)
                connection.execute(f"DELETE FROM series WHERE id NOT IN ({used})")
                self._known = {}
        oldest = "SELECT minute FROM number ORDER BY minute LIMIT 1 OFFSET (SELECT count(*) / 20 FROM number)"
        full = _FULL_SHARE * self._most_pages
        while _number(connection, "PRAGMA page_count") - _number(connection, "PRAGMA freelist_count") > full and (
            found := connection.execute(oldest).fetchone()
        ):
            self._remove_until(connection, found[0])
            self._warn(connection, snapshot.minute - found[0])
        over = _number(connection, "PRAGMA page_count") - self._most_pages  # where the limit is lower than it was
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


def _number(connection: sqlite3.Connection, statement: str) -> int:
    return int(connection.execute(statement).fetchone()[0])


def _labels_text(series: Series) -> str:
    """Return labels as they stand in the table: JSON; of a latency the variant."""
    if series.kind == "latency":
        return series.label("variant")
    return json.dumps(dict(series.labels), separators=(",", ":")) if series.labels else ""


def _short(value: float) -> float | int:
    """Return a whole number as an int, which SQLite writes in as few bytes as it needs."""
    return int(value) if float(value).is_integer() and abs(value) < 2**63 else value


# -- Reading -----------------------------------------------------------------------------------------------------------


class LatencyRow(NamedTuple):
    """Latencies of one model, variant and stage in one bucket of time.

    Attributes:
        start_s: when the bucket begins, in Unix seconds.
        stage: of ``latency_figures.STAGES``: those of the path, and "request" for all of it. Answered requests only.
        requests: that met the stage.
        total_ns: sum of what they took, in nanoseconds.
        histogram: of what they took, (``fine_histogram.PLACES``,).
    """

    start_s: int
    model: str
    variant: str
    stage: str
    requests: int
    total_ns: int
    histogram: Counts


class CountRow(NamedTuple):
    """A counter's growth, or a gauge, in one bucket of time.

    Attributes:
        start_s: when the bucket begins, in Unix seconds.
        model: empty for the process.
        name: as on /metrics, such as "tailcut_requests_total"; of a histogram its "_sum" and "_count".
        labels: as on /metrics, without the model.
        value: a counter's growth; a gauge's mean.
    """

    start_s: int
    model: str
    name: str
    labels: Mapping[str, str]
    value: float


class History:
    """The rows of a history's file; any thread may ask, and none that serves should: it reads a disk.

    Args:
        path: of the file, which a server may be writing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = SqliteFile(path, SCHEMA)

    def latency(
        self,
        since_s: float,
        until_s: float,
        *,
        model: str | None = None,
        stage: str | None = None,
        variant: str | None = None,
        bucket_s: int = MINUTE_S,
    ) -> list[LatencyRow]:
        """Return latencies by bucket, model, variant and stage, in this order; those with requests only.

        Args:
            since_s, until_s: of minutes that begin in it, the end excluded; Unix seconds, rounded down to a minute.
            model, stage, variant: None for all of them.
            bucket_s: seconds that are added up, whole minutes; the first bucket begins at ``since_s``.

        Raises:
            StoreError: there is no file, or it cannot be read.
        """
        span = _Span.of(since_s, until_s, bucket_s)
        wanted = {"kind": "latency", "model": model, "name": stage, "labels": variant}

        return self._file.read(lambda connection: list(_latencies(connection, span, wanted)))

    def counts(
        self,
        since_s: float,
        until_s: float,
        *,
        model: str | None = None,
        name: str | None = None,
        bucket_s: int = MINUTE_S,
    ) -> list[CountRow]:
        """Return growth of counters and means of gauges by bucket, model, name and labels.

        Args:
            since_s, until_s, bucket_s: see ``latency``.
            model: None for all, "" for the process.
            name: as on /metrics; None for all.

        Raises:
            StoreError: there is no file, or it cannot be read.
        """
        span = _Span.of(since_s, until_s, bucket_s)
        return self._file.read(lambda connection: _counts(connection, span, {"model": model, "name": name}))

    def coverage(self, since_s: float, until_s: float, *, bucket_s: int = MINUTE_S) -> list[tuple[int, int]]:
        """Return when each bucket begins that has rows, and of how many minutes it has some.

        A server that runs writes a row every minute, also without requests.

        Args:
            since_s, until_s, bucket_s: see ``latency``.

        Raises:
            StoreError: there is no file, or it cannot be read.
        """
        span = _Span.of(since_s, until_s, bucket_s)
        statement = (
            "SELECT (minute - ?) / ? AS bucket, count(DISTINCT minute) FROM number "
            "WHERE minute >= ? AND minute < ? GROUP BY bucket ORDER BY bucket"
        )
        parameters = span.first, span.bucket, span.first, span.until
        found = self._file.read(lambda connection: connection.execute(statement, parameters).fetchall())
        return [(span.start_s(bucket), minutes) for bucket, minutes in found]

    def extent(self) -> tuple[int, int] | None:
        """Return when the first and the last minute begin, in Unix seconds; None of an empty history.

        Raises:
            StoreError: there is no file, or it cannot be read.
        """
        # One end at a time: SQLite then looks the row up, and reads no other.
        statement = "SELECT (SELECT min(minute) FROM number), (SELECT max(minute) FROM number)"
        first, last = self._file.read(lambda connection: connection.execute(statement).fetchone())
        return None if first is None or last is None else (first * MINUTE_S, last * MINUTE_S)


class _Span(NamedTuple):
    """Minutes from ``first`` on, ``until`` excluded, in buckets of so many minutes."""

    first: int
    until: int
    bucket: int

    @classmethod
    def of(cls, since_s: float, until_s: float, bucket_s: int) -> _Span:
        if bucket_s < MINUTE_S or bucket_s % MINUTE_S:
            raise ValueError(f"bucket_s is {bucket_s}; it must be whole minutes, {MINUTE_S} or a multiple")
        return cls(int(since_s // MINUTE_S), int(until_s // MINUTE_S), bucket_s // MINUTE_S)

    def start_s(self, number: int) -> int:
        """Return when a bucket begins."""
        return (self.first + number * self.bucket) * MINUTE_S


_Wanted = dict[str, str | None]


def _which(span: _Span, wanted: _Wanted) -> tuple[str, list[Any]]:
    """Return the condition on minutes and series, with its parameters."""
    named = {column: value for column, value in wanted.items() if value is not None}
    terms = ["minute >= ?", "minute < ?", *(f"series.{column} = ?" for column in named)]
    return " AND ".join(terms), [span.first, span.until, *named.values()]


def _latencies(connection: sqlite3.Connection, span: _Span, wanted: _Wanted) -> Iterator[LatencyRow]:
    condition, parameters = _which(span, wanted)
    cursor = connection.execute(
        "SELECT (minute - ?) / ?, series.model, series.labels, series.name, count, total_ns, histogram "
        f"FROM latency JOIN series ON series.id = latency.series WHERE {condition}",
        [span.first, span.bucket, *parameters],
    )
    found: dict[tuple[int, str, str, str], tuple[list[int], bytearray]] = {}
    for *key, count, total_ns, histogram in cursor:
        sums, data = found.setdefault(tuple(key), ([0, 0], bytearray()))
        sums[0] += count
        sums[1] += total_ns
        data += histogram
    for (bucket, model, variant, stage), (sums, data) in sorted(found.items()):
        yield LatencyRow(span.start_s(bucket), model, variant, stage, sums[0], sums[1], from_bytes(data))


def _counts(connection: sqlite3.Connection, span: _Span, wanted: _Wanted) -> list[CountRow]:
    condition, parameters = _which(span, wanted)
    cursor = connection.execute(
        "SELECT (minute - ?) / ? AS bucket, series.model, series.name, series.labels, "
        "CASE series.kind WHEN 'gauge' THEN avg(value) ELSE sum(value) END FROM number "
        f"JOIN series ON series.id = number.series WHERE {condition} GROUP BY bucket, number.series "
        "ORDER BY bucket, series.model, series.name, series.labels",
        [span.first, span.bucket, *parameters],
    )
    return [
        CountRow(span.start_s(bucket), model, name, json.loads(labels or "{}"), float(value))
        for bucket, model, name, labels, value in cursor
    ]
