from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.store.test_sqlite_file import SCHEMA, rows
from tests.wait_kit import wait_written

from tailcut.store import SqliteFile, StoreWriter


def adding(text: str) -> Callable[[sqlite3.Connection], int]:
    def work(connection: sqlite3.Connection) -> int:
        connection.execute("INSERT INTO row (text) VALUES (?)", (text,))
        return 0

    return work


def test_rows_are_written_by_a_thread_and_none_is_lost_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    writer = StoreWriter(SqliteFile(path, SCHEMA))
    for number in range(500):
        writer.submit(adding(str(number)), 1)
    writer.close(30.0)
    assert rows(path) == 500
    writer.submit(adding("late"), 1)
    figures = writer.figures
    assert (figures.written, figures.dropped, figures.pending) == (500, 1, 0)
    assert figures.size_bytes == path.stat().st_size


def test_what_cannot_be_written_waits_and_is_written_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    folder = tmp_path / "state"
    folder.write_text("a file where the folder should be")
    writer = StoreWriter(SqliteFile(folder / "history.sqlite", SCHEMA), most_pending=3)
    for number in range(5):
        writer.submit(adding(str(number)), 1)
        wait_written(writer)
    figures = writer.figures
    assert (figures.written, figures.dropped, figures.pending) == (0, 2, 3)
    assert figures.failure
    assert caplog.text.count("cannot be written") == 1  # once, not at every attempt
    folder.unlink()
    writer.submit(adding("last"), 1)
    writer.close(10.0)
    assert rows(folder / "history.sqlite") == 3
    assert writer.figures[:2] == (3, 3)
    assert "is written again" in caplog.text


def test_rows_that_are_lost_at_the_stop_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "state"
    folder.write_text("a file where the folder should be")
    writer = StoreWriter(SqliteFile(folder / "history.sqlite", SCHEMA))
    writer.submit(adding("one"), 7)
    writer.close(10.0)
    assert f"{folder / 'history.sqlite'}: 7 rows were not written before the stop" in caplog.text


def test_a_file_that_is_locked_for_long_makes_nobody_wait(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "history.sqlite"
    writer = StoreWriter(SqliteFile(path, SCHEMA, busy_s=0.01))
    writer.submit(adding("one"), 1)
    wait_written(writer)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    for _ in range(3):
        writer.submit(adding("more"), 1)
        wait_written(writer)
    assert writer.figures[:3] == (1, 0, 3)
    assert "database is locked" in caplog.text
    holder.execute("COMMIT")
    holder.close()
    writer.close(10.0)
    assert rows(path) == 4


def test_rows_that_the_disk_refuses_in_the_middle_of_a_transaction_are_written_later(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    failing = [False, True]  # the last one first

    def refused_once(connection: sqlite3.Connection) -> int:
        if failing.pop():
            raise sqlite3.OperationalError("disk I/O error")
        return adding("two")(connection)

    writer = StoreWriter(SqliteFile(path, SCHEMA))
    for work in (adding("one"), refused_once):
        writer.submit(work, 1)
        wait_written(writer)
    writer.submit(adding("three"), 1)
    writer.close(10.0)
    assert (rows(path), writer.figures[:3]) == (3, (3, 0, 0))


def test_rows_that_are_wrong_keep_no_others_from_being_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "history.sqlite"
    writer = StoreWriter(SqliteFile(path, SCHEMA))
    for text in ("one", "\udcff", "two"):  # a lone surrogate is no text for SQLite
        writer.submit(adding(text), 1)
    writer.close(10.0)
    assert rows(path) == 2
    assert writer.figures[:3] == (2, 1, 0)
    assert "cannot be written and are dropped" in caplog.text
