"""One SQLite file of tailcut's own: opened and checked, written in transactions by one process, read by others.

Rollback journal, not WAL: SQLite before 3.51.3 has a race that can corrupt a database in WAL mode when several
processes use it (https://www.sqlite.org/wal.html, "The WAL-reset bug"), and Python brings older ones. The writer and
readers then wait for one another, for milliseconds where a transaction is that short. ``synchronous = NORMAL``: a
killed process loses the transaction that it was in, and nothing else; nothing here is acknowledged to anyone.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from tailcut.errors import StoreError

log = logging.getLogger("tailcut.server")

_Found = TypeVar("_Found")

_BUSY_S = 5.0
"""For which a transaction waits for those of other connections."""

PAGE_BYTES = 4096
"""SQLite's own default."""
DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
"""Primary result codes of a file that is no (whole) database."""

_NEEDS_WRITE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
"""What a reader that may not write gets where a killed writer left a journal to be rolled back."""


class Schema(NamedTuple):
    """Tables of a file.

    Attributes:
        what: the file is called in messages, such as "history".
        application_id: of SQLite's header; tells the file from others.
        version: of the tables.
        statements: make the tables.
        setting: key of the manifest that names the file.
    """

    what: str
    application_id: int
    version: int
    statements: Sequence[str]
    setting: str = ""


def primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code of an error; 0 where it has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


class SqliteFile:
    """A file that one process writes, and any number read. An object is for one thread.

    Args:
        path: absolute; its folder is made.
        size_bytes: that the file does not exceed; writing then fails with ``sqlite3.SQLITE_FULL``. 0: no limit.
        busy_s: for which a transaction waits for readers.
    """

    def __init__(self, path: Path, schema: Schema, *, size_bytes: int = 0, busy_s: float = _BUSY_S) -> None:
        self.path = path
        self.schema = schema
        self._size_bytes = size_bytes
        self._busy_s = busy_s
        self._connection: sqlite3.Connection | None = None
        self._lock = -1

    @property
    def is_taken(self) -> bool:
        """Whether no other process can write the file, because this object does; from any thread."""
        return self._lock >= 0

    def write(self, work: Callable[[sqlite3.Connection], _Found]) -> _Found:
        """Run ``work`` in one transaction, which is as if it had never been where it raises.

        A file that is damaged or of another version is renamed, which is logged, and replaced by an empty one. The
        first call takes the file; it is left with ``close``.

        Raises:
            sqlite3.Error: full, read-only, locked for too long.
            StoreError: another process writes the file, or it is of another program.
            OSError: its folder or its lock cannot be made.
        """
        try:
            return self._transaction(work)
        except sqlite3.DatabaseError as error:
            if primary_code(error) not in DAMAGED:
                raise
            self._begin_anew(f"is damaged ({error})")
            return self._transaction(work)

    def read(self, work: Callable[[sqlite3.Connection], _Found]) -> _Found:
        """Run ``work`` on a connection of its own that cannot write; from any thread.

        Raises:
            StoreError: there is no file, or it cannot be read.
        """
        what = self.schema.what
        if not self.path.is_file():
            raise StoreError(f"there is no {what} at {self.path}", hint="name the file, or serve for a while first")
        try:
            try:
                return self._read_in("ro", work)
            except sqlite3.DatabaseError as error:
                if primary_code(error) not in _NEEDS_WRITE:
                    raise
                return self._read_in("rw", work)  # a killed writer's transaction is rolled back first
        except (sqlite3.Error, ValueError) as error:
            raise StoreError(
                f"the {what} at {self.path} cannot be read: {error}",
                hint="`tailcut serve` renames a damaged file and begins a new one; else check its permissions",
            ) from error

    def close(self) -> None:
        """Leave the file to another process; the next transaction takes it again."""
        self._disconnect()
        if self._lock >= 0:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # a child that was forked has the descriptor, too
            os.close(self._lock)
            self._lock = -1

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _read_in(self, mode: str, work: Callable[[sqlite3.Connection], _Found]) -> _Found:
        uri = f"file:{quote(str(self.path))}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=self._busy_s, isolation_level=None)
        try:
            version = self._version(connection)
            if version != self.schema.version:
                raise StoreError(
                    f"the {self.schema.what} at {self.path} has version {version}, not {self.schema.version}",
                    hint="read it with the tailcut that wrote it; `tailcut serve` renames it and begins a new one",
                )
            connection.execute("BEGIN")  # all of it from one state
            return work(connection)
        finally:
            connection.close()

    def _transaction(self, work: Callable[[sqlite3.Connection], _Found]) -> _Found:
        if not self.path.exists():
            self._disconnect()  # it was removed: what is written to it would be seen by no reader
        try:
            if self._connection is None:
                self._connection = self._open()
            self._connection.execute("BEGIN IMMEDIATE")
            found = work(self._connection)
            self._connection.execute("COMMIT")
        except BaseException:
            # Closing rolls back; what the disk refused is then rolled back by whoever opens the file next.
            self._disconnect()
            raise
        return found

    def _open(self) -> sqlite3.Connection:
        self._take()
        connection = sqlite3.connect(self.path, timeout=self._busy_s, isolation_level=None, check_same_thread=False)
        try:
            version = self._version(connection)
            if version not in {0, self.schema.version}:
                connection.close()
                self._begin_anew(f"has version {version}; this tailcut writes {self.schema.version}")
                return self._open()
            # Of a new file: removed rows give their pages back to the disk where they are asked to.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            if not version:
                ids = (("application_id", self.schema.application_id), ("user_version", self.schema.version))
                connection.execute("BEGIN IMMEDIATE")
                for statement in (*self.schema.statements, *(f"PRAGMA {name} = {value}" for name, value in ids)):
                    connection.execute(statement)
                connection.execute("COMMIT")
            if self._size_bytes:
                connection.execute(f"PRAGMA max_page_count = {max(self._size_bytes // PAGE_BYTES, 1)}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _take(self) -> None:
        """Lock the file against other writers; a lock beside it, which the kernel frees however its holder ends."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._lock >= 0:
            return
        handle = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException as error:
            os.close(handle)
            if not isinstance(error, BlockingIOError):
                raise
            setting = f" with {self.schema.setting}" if self.schema.setting else ""
            raise StoreError(
                "another server that runs writes it", hint=f"name a file for each server{setting}"
            ) from None
        self._lock = handle

    def _version(self, connection: sqlite3.Connection) -> int:
        """Return the version of the tables, 0 where there are none.

        Raises:
            StoreError: it is another program's.
        """
        found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if found[0] != self.schema.application_id and tables:
            raise StoreError(
                f"{self.path} is no {self.schema.what} of tailcut but another database", hint="name another file"
            )
        return int(found[1]) if tables else 0

    def _begin_anew(self, why: str) -> None:
        """Rename a file that cannot be used any further; one that was renamed before is replaced."""
        self._disconnect()
        old = self.path.with_name(f"{self.path.name}.old")
        self.path.replace(old)
        self.path.with_name(f"{self.path.name}-journal").unlink(missing_ok=True)  # it would be played into the new one
        what = self.schema.what
        log.warning("the %s at %s %s; it was renamed to %s, and an empty one begins", what, self.path, why, old.name)
