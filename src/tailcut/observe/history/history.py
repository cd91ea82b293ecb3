"""Reads the history: latencies and counts of any span of time, added up per minute, hour or whatever is asked for."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

from tailcut.observe.history.rows import MINUTE_S, CountRow, Kind, LatencyRow
from tailcut.observe.history.tables import SCHEMA, from_bytes
from tailcut.store import SqliteFile


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

        def work(connection: sqlite3.Connection) -> list[LatencyRow]:
            return list(_latencies(connection, span, wanted))

        return self._file.read(work)

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

        def work(connection: sqlite3.Connection) -> list[CountRow]:
            return _counts(connection, span, {"model": model, "name": name})

        return self._file.read(work)

    def coverage(self, since_s: float, until_s: float, *, bucket_s: int = MINUTE_S) -> list[tuple[int, int]]:
        """Return when each bucket begins that has rows, and of how many minutes it has some.

        A server that runs writes a row every minute, also without requests.

        Args:
            since_s, until_s, bucket_s: see ``latency``.

        Raises:
            StoreError: there is no file, or it cannot be read.
        """
        span = _Span.of(since_s, until_s, bucket_s)

        def work(connection: sqlite3.Connection) -> list[tuple[int, int]]:
            cursor = connection.execute(
                "SELECT (minute - ?) / ? AS bucket, count(DISTINCT minute) FROM number "
                "WHERE minute >= ? AND minute < ? GROUP BY bucket ORDER BY bucket",
                [span.first, span.bucket, span.first, span.until],
            )
            return [(span.start_s(bucket), minutes) for bucket, minutes in cursor]

        return self._file.read(work)

    def extent(self) -> tuple[int, int] | None:
        """Return when the first and the last minute begin, in Unix seconds; None of an empty history.

        Raises:
            StoreError: there is no file, or it cannot be read.
        """

        def work(connection: sqlite3.Connection) -> list[int | None]:
            # One end at a time: SQLite then looks the row up, and reads no other.
            return [connection.execute(f"SELECT {end}(minute) FROM number").fetchone()[0] for end in ("min", "max")]

        first, last = self._file.read(work)
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
        "SELECT (minute - ?) / ? AS bucket, series.model, series.name, series.labels, series.kind, "
        "CASE series.kind WHEN 'gauge' THEN avg(value) ELSE sum(value) END FROM number "
        f"JOIN series ON series.id = number.series WHERE {condition} GROUP BY bucket, number.series "
        "ORDER BY bucket, series.model, series.name, series.labels",
        [span.first, span.bucket, *parameters],
    )
    return [
        CountRow(span.start_s(bucket), model, name, json.loads(labels or "{}"), cast("Kind", kind), float(value))
        for bucket, model, name, labels, kind, value in cursor
    ]
