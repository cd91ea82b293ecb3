"""One thread that writes to a store, so that no event loop waits for a disk: bounded, it drops and counts."""

from __future__ import annotations

import logging
import sqlite3
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import NamedTuple

from tailcut.errors import StoreError
from tailcut.store.sqlite_file import DAMAGED, SqliteFile, primary_code

log = logging.getLogger("tailcut.server")

Work = Callable[[sqlite3.Connection], int]
"""Writes in the transaction that is open; returns how many rows it left out."""

_MOST_PENDING = 50_000


class WriterFigures(NamedTuple):
    """What a writer has done so far, in rows.

    Attributes:
        pending: that wait, because the last attempt failed.
        size_bytes: of the file after the last attempt that did not fail.
        failure: of the last attempt; empty where it did not fail.
    """

    written: int = 0
    dropped: int = 0
    pending: int = 0
    size_bytes: int = 0
    failure: str = ""


class StoreWriter:
    """Writes what it is given in one thread, in order; what the disk refuses is tried again with the next.

    Args:
        file: for this thread alone, from the first ``submit`` on.
        most_pending: rows that wait at most; of more, the oldest are dropped.
    """

    def __init__(self, file: SqliteFile, *, most_pending: int = _MOST_PENDING) -> None:
        self._file = file
        self._most_pending = most_pending
        self._changed = Condition()
        self._pending: deque[tuple[Work, int]] = deque()
        self._pending_rows = 0
        self._fresh = False
        self._writing = False
        self._closing = False
        self._figures = WriterFigures()
        self._thread: Thread | None = None

    @property
    def figures(self) -> WriterFigures:
        """As of now."""
        with self._changed:
            return self._figures._replace(pending=self._pending_rows)

    def submit(self, work: Work, rows: int) -> None:
        """Have some rows written soon; returns at once. After ``close`` they count as dropped."""
        with self._changed:
            if self._closing:
                self._count(dropped=rows)
                return
            self._pending.append((work, rows))
            self._pending_rows += rows
            while self._pending_rows > self._most_pending:
                self._count(dropped=self._popped())
            self._fresh = True
            if self._thread is None:
                self._thread = Thread(target=self._run, name="tailcut-store", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Write what waits, for at most ``timeout_s``, and end; what could not be written counts as dropped."""
        with self._changed:
            self._closing = self._fresh = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
        with self._changed:
            lost = self._pending_rows
            while self._pending:
                self._count(dropped=self._popped())
        if lost:
            what, path = self._file.schema.what, self._file.path
            log.warning("the %s at %s: %d rows were not written before the stop", what, path, lost)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until what was submitted has been tried; whether it has within ``timeout_s``. For tests."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._fresh or self._writing), timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._fresh)
                pending, closing = list(self._pending), self._closing
                self._fresh, self._writing = False, True
            if pending:
                self._write(pending)
            with self._changed:
                self._writing = False
                self._changed.notify_all()
            if closing:
                break
        self._file.close()

    def _write(self, pending: list[tuple[Work, int]]) -> None:
        """Write in one transaction; where a piece of work itself is wrong, it is dropped and the others are written."""

        def work(connection: sqlite3.Connection) -> int:
            return sum(each(connection) for each, _ in pending)

        try:
            left_out = self._file.write(work)
            size_bytes = self._file.path.stat().st_size
        except Exception as error:  # a thread that ended would write nothing any more
            if _may_pass(error):
                self._failed(error)
            elif len(pending) > 1:
                for each in pending:
                    self._write([each])
            else:
                self._drop(pending[0], error)
            return
        with self._changed:
            rows = 0
            for each in pending:
                if self._pending and self._pending[0] is each:  # else it counts as dropped by now
                    rows += self._popped()
            if self._figures.failure:
                log.info("the %s at %s is written again", self._file.schema.what, self._file.path)
            self._figures = self._figures._replace(failure="", size_bytes=size_bytes)
            self._count(written=max(rows - left_out, 0), dropped=left_out)

    def _failed(self, error: Exception) -> None:
        said = error.message if isinstance(error, StoreError) else str(error)
        with self._changed:
            before, self._figures = self._figures.failure, self._figures._replace(failure=said)
        if said != before:
            schema, path, rows = self._file.schema, self._file.path, self._most_pending
            hint = f"; free space, or set {schema.setting} to a path that can be written" if schema.setting else ""
            hint = f"; {error.hint}" if isinstance(error, StoreError) and error.hint else hint
            text = "the %s at %s cannot be written: %s; up to %d rows wait in memory, then the oldest are dropped%s"
            log.warning(text, schema.what, path, said, rows, hint)

    def _drop(self, wrong: tuple[Work, int], error: Exception) -> None:
        log.error("rows of the %s cannot be written and are dropped", self._file.schema.what, exc_info=error)
        with self._changed:
            if self._pending and self._pending[0] is wrong:
                self._count(dropped=self._popped())

    def _popped(self) -> int:
        rows = self._pending.popleft()[1]
        self._pending_rows -= rows
        return rows

    def _count(self, *, written: int = 0, dropped: int = 0) -> None:
        figures = self._figures
        self._figures = figures._replace(written=figures.written + written, dropped=figures.dropped + dropped)


def _may_pass(error: Exception) -> bool:
    """Whether the cause is the disk, the file or another process, and not the rows."""
    if isinstance(error, (sqlite3.OperationalError, StoreError, OSError)):
        return True
    return isinstance(error, sqlite3.DatabaseError) and primary_code(error) in DAMAGED
