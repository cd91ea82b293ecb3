"""One thread that writes to a store, so that no event loop waits for a disk: bounded, it drops and counts."""

from __future__ import annotations

import logging
import queue
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import NamedTuple

from tailcut.errors import StoreError
from tailcut.store.sqlite_file import DAMAGED, SqliteFile, primary_code

log = logging.getLogger("tailcut.server")

Work = Callable[[sqlite3.Connection], int]
"""Writes in the transaction that is open; returns how many rows it left out."""

_MOST_PENDING = 50_000
_MOST_ARRIVING = 1_000
"""Pieces of work that arrive while a transaction runs."""


class WriterFigures(NamedTuple):
    """Rows that a writer has handled so far.

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

    Attributes:
        figures: as of the last attempt.
    """

    def __init__(self, file: SqliteFile, *, most_pending: int = _MOST_PENDING) -> None:
        self._file = file
        self._most_pending = most_pending
        self._arriving: queue.Queue[tuple[Work, int] | None] = queue.Queue(_MOST_ARRIVING)
        self._pending: list[tuple[Work, int]] = []
        self._closing = False
        self._thread: Thread | None = None
        self.figures = WriterFigures()

    def submit(self, work: Work, rows: int) -> None:
        """Have some rows written soon; returns at once. After ``close``, and while the disk hangs, they are dropped."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="tailcut-store", daemon=True)
            self._thread.start()
        try:
            if self._closing:
                raise queue.Full
            self._arriving.put_nowait((work, rows))
        except queue.Full:
            self._count(dropped=rows)

    def close(self, timeout_s: float) -> None:
        """Write what waits, for at most ``timeout_s``, and end; what could not be written counts as dropped."""
        self._closing = True
        if self._thread is not None:
            with suppress(queue.Full):  # the disk hangs
                self._arriving.put_nowait(None)
            self._thread.join(timeout_s)
        if self._pending:
            lost = sum(rows for _, rows in self._pending)
            self._count(dropped=lost)
            what, path = self._file.schema.what, self._file.path
            log.warning("the %s at %s: %d rows were not written before the stop", what, path, lost)

    def _run(self) -> None:
        is_over = False
        while not is_over:
            arrived = [self._arriving.get()]
            while not self._arriving.empty():
                arrived.append(self._arriving.get())
            is_over = arrived[-1] is None
            self._pending += [each for each in arrived if each is not None]
            while sum(rows for _, rows in self._pending) > self._most_pending:
                self._count(dropped=self._pending.pop(0)[1])
            if self._pending:
                self._write()
            self.figures = self.figures._replace(pending=sum(rows for _, rows in self._pending))
            for _ in arrived:
                self._arriving.task_done()
        self._file.close()

    def _write(self) -> None:
        """Write what waits in one transaction."""
        try:
            left_out = self._file.write(self._write_each)
            size_bytes = self._file.path.stat().st_size
        except Exception as error:  # a thread that ended would write nothing any more
            self._failed(error)
            return
        if self.figures.failure:
            log.info("the %s at %s is written again", self._file.schema.what, self._file.path)
        self.figures = self.figures._replace(failure="", size_bytes=size_bytes)
        self._count(written=sum(rows for _, rows in self._pending) - left_out, dropped=left_out)
        self._pending = []

    def _write_each(self, connection: sqlite3.Connection) -> int:
        """Do all work; return the rows left out. A piece of work that is itself wrong stops no other."""
        left_out = 0
        for work, rows in self._pending:
            try:
                left_out += work(connection)
            except Exception as error:
                if _may_pass(error):
                    raise
                log.error("rows of the %s cannot be written and are dropped", self._file.schema.what, exc_info=error)
                left_out += rows
        return left_out

    def _failed(self, error: Exception) -> None:
        said = error.message if isinstance(error, StoreError) else str(error)
        before, self.figures = self.figures.failure, self.figures._replace(failure=said)
        if said != before:
            schema, path, rows = self._file.schema, self._file.path, self._most_pending
            hint = f"; free space, or set {schema.setting} to a path that can be written" if schema.setting else ""
            hint = f"; {error.hint}" if isinstance(error, StoreError) and error.hint else hint
            text = "the %s at %s cannot be written: %s; up to %d rows wait in memory, then the oldest are dropped%s"
            log.warning(text, schema.what, path, said, rows, hint)

    def _count(self, *, written: int = 0, dropped: int = 0) -> None:
        figures = self.figures
        self.figures = figures._replace(written=figures.written + written, dropped=figures.dropped + dropped)


def _may_pass(error: Exception) -> bool:
    """Return whether the cause is the disk, the file or another process, and not the rows."""
    if isinstance(error, (sqlite3.OperationalError, StoreError, OSError)):
        return True
    return isinstance(error, sqlite3.DatabaseError) and primary_code(error) in DAMAGED
