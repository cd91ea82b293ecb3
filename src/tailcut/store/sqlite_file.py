"""One SQLite file of tailcut's own: opened and checked, written in transactions, read beside its writers.

Rollback journal, not WAL: SQLite before 3.51.3 has a race that can corrupt a database in WAL mode when several
processes use it (https://www.sqlite.org/wal.html, "The WAL-reset bug"), and Python brings older ones. Writers and
readers then wait for one another, for milliseconds where a transaction is that short. ``synchronous = NORMAL``: a
killed process loses the transaction that it was in, and nothing else; nothing here is acknowledged to anyone.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from tailcut.errors import StoreError

log = logging.getLogger("tailcut.server")

_Found = TypeVar("_Found")

_BUSY_S = 5.0
"""For which a transaction waits for those of other connections."""

_KEPT_ASIDE = 3
"""Damaged files that are kept; a disk that damages one after the other must not fill up with them."""

PAGE_BYTES = 4096
DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
"""Primary result codes of a file that is no (whole) database."""

_NEEDS_WRITE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
"""What a reader that may not write gets where a killed writer left a journal to be rolled back."""


class Schema(NamedTuple):
    """Tables of a file.

    Attributes:
        what: the file is called in messages, such as "history".
        application_id: of SQLite's header; tells the file from others.
        statements: make version 1 of the tables.
        upgrades: statements per version that they lead to: 2, 3, ...
        setting: key of the manifest that names the file.
    """

    what: str
    application_id: int
    statements: Sequence[str]
    upgrades: Mapping[int, Sequence[str]] = {}
    setting: str = ""

    @property
    def version(self) -> int:
        """The newest."""
        return max(self.upgrades, default=1)


def primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code of an error; 0 where it has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


class SqliteFile:
    """A file that several processes may write. An object is for one thread.

    Args:
        path: absolute; its folder is made.
        size_bytes: that the file does not exceed; writing then fails with ``sqlite3.SQLITE_FULL``. 0: no limit.
        busy_s: for which a transaction waits for others.

    Attributes:
        generation: changes whenever the file is opened anew; ids that were read of an older one are of no use.
        moved_aside: how often a damaged file was replaced by an empty one.
    """

    def __init__(
        self,
        path: Path,
        schema: Schema,
        *,
        size_bytes: int = 0,
        busy_s: float = _BUSY_S,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self.schema = schema
        self.generation = 0
        self.moved_aside = 0
        self._size_bytes = size_bytes
        self._busy_s = busy_s
        self._wall_s = wall_s
        self._connection: sqlite3.Connection | None = None
        self._inode = 0

    def write(self, work: Callable[[sqlite3.Connection], _Found]) -> _Found:
        """Run ``work`` in one transaction, which is as if it had never been where it raises.

        A damaged file is moved aside, said in the log, and replaced by an empty one.

        Raises:
            sqlite3.Error: full, read-only, locked for too long.
            StoreError: the file is of a newer version, or of another program.
            OSError: its folder cannot be made.
        """
        try:
            return self._transaction(work)
        except sqlite3.DatabaseError as error:
            if primary_code(error) not in DAMAGED:
                raise
            self._move_aside(error)
            return self._transaction(work)

    def read(self, work: Callable[[sqlite3.Connection], _Found]) -> _Found:
        """Run ``work`` on a connection of its own that cannot write; from any thread.

        Raises:
            StoreError: there is no file, or it cannot be read.
        """
        if not self.path.is_file():
            raise StoreError(
                f"there is no {self.schema.what} at {self.path}", hint="name the file, or serve for a while first"
            )
        try:
            try:
                return self._read_in("ro", work)
            except sqlite3.DatabaseError as error:
                if primary_code(error) not in _NEEDS_WRITE:
                    raise
                return self._read_in("rw", work)  # a killed writer's transaction is rolled back first
        except (sqlite3.Error, ValueError) as error:
            raise StoreError(
                f"the {self.schema.what} at {self.path} cannot be read: {error}",
                hint="a running server moves a damaged file aside and begins anew; else check its permissions",
            ) from error

    def close(self) -> None:
        """Close the writing connection; the next transaction opens the file again."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _read_in(self, mode: str, work: Callable[[sqlite3.Connection], _Found]) -> _Found:
        uri = f"file:{quote(str(self.path))}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=self._busy_s, isolation_level=None)
        try:
            version = self._refuse_others(connection)
            if version < self.schema.version:
                raise StoreError(
                    f"the {self.schema.what} at {self.path} has version {version}, not {self.schema.version}",
                    hint="a server that writes it brings it up to date: start one first",
                )
            connection.execute("BEGIN")  # all of it from one state
            return work(connection)
        finally:
            connection.close()

    def _transaction(self, work: Callable[[sqlite3.Connection], _Found]) -> _Found:
        try:
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            found = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            # Closing rolls back; what the disk refused is then rolled back by whoever opens the file next.
            self.close()
            raise
        return found

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and not self._is_in_place():
            self.close()  # it was removed or replaced: what is written to it would be seen by no reader
        if self._connection is None:
            self._connection = self._open()
            self.generation += 1
        return self._connection

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=self._busy_s, isolation_level=None, check_same_thread=False)
        try:
            self._inode = _inode(self.path)
            # Of a new file: removed rows give their pages back to the disk where they are asked to.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("PRAGMA synchronous = NORMAL")
            self._migrate(connection)
            if self._size_bytes:
                connection.execute(f"PRAGMA max_page_count = {max(self._size_bytes // PAGE_BYTES, 1)}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        """Make the tables where there are none, and those of an older version into today's."""
        connection.execute("BEGIN IMMEDIATE")
        version = self._refuse_others(connection)
        if version < self.schema.version:
            steps = [*self.schema.statements] if version == 0 else []
            for number in range(max(version, 1) + 1, self.schema.version + 1):
                steps += self.schema.upgrades[number]
            for statement in (*steps, f"PRAGMA application_id = {self.schema.application_id}"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {self.schema.version}")
        connection.execute("COMMIT")

    def _refuse_others(self, connection: sqlite3.Connection) -> int:
        """Return the version of the tables, 0 where there are none.

        Raises:
            StoreError: it is another program's, or of a newer version of tailcut.
        """
        application_id, version = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in _IDS)
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        what = self.schema.what
        if application_id != self.schema.application_id and tables:
            raise StoreError(f"{self.path} is no {what} of tailcut but another database", hint="name another file")
        if version > self.schema.version:
            raise StoreError(
                f"the {what} at {self.path} has version {version}; this tailcut reads up to {self.schema.version}",
                hint="use the tailcut that wrote it, or name another file",
            )
        return int(version)

    def _is_in_place(self) -> bool:
        try:
            return _inode(self.path) == self._inode
        except OSError:
            return False

    def _move_aside(self, error: sqlite3.Error) -> None:
        """Rename a damaged file, with its journal, unless another process has done so already."""
        self.close()
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._wall_s()))
        with _folder_locked(self.path.parent):
            if not self._is_in_place():
                return
            target = self.path.with_name(f"{self.path.name}.damaged-{stamp}")
            self.path.replace(target)
            with suppress(OSError):
                self._journal(self.path).replace(self._journal(target))
            old = sorted(self.path.parent.glob(f"{self.path.name}.damaged-*Z"))[:-_KEPT_ASIDE]
            for each in old:
                each.unlink(missing_ok=True)
                self._journal(each).unlink(missing_ok=True)
        self.moved_aside += 1
        log.error(
            "the %s at %s is damaged (%s); it was moved to %s, and an empty one begins",
            self.schema.what,
            self.path,
            error,
            target.name,
        )

    @staticmethod
    def _journal(path: Path) -> Path:
        return path.with_name(f"{path.name}-journal")


_IDS = ("application_id", "user_version")


def _inode(path: Path) -> int:
    return os.stat(path).st_ino


@contextmanager
def _folder_locked(folder: Path) -> Iterator[None]:
    """Let one process at a time rename files of a folder."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
