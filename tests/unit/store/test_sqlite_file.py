from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tailcut.errors import StoreError
from tailcut.store import Schema, SqliteFile
from tailcut.store.sqlite_file import primary_code

SCHEMA = Schema("history", 7, 1, ("CREATE TABLE row (id INTEGER PRIMARY KEY, text TEXT)",))


def add(file: SqliteFile, text: str = "one") -> None:
    file.write(lambda connection: connection.execute("INSERT INTO row (text) VALUES (?)", (text,)))


def rows(path: Path) -> int:
    file = SqliteFile(path, SCHEMA)
    return int(file.read(lambda connection: connection.execute("SELECT count(*) FROM row").fetchone()[0]))


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk can be mounted by root only")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_file_keeps_its_rows_and_is_made_with_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "history.sqlite"
    file = SqliteFile(path, SCHEMA)
    add(file)
    file.close()
    add(file)
    assert rows(path) == 2
    assert sorted(each.name for each in path.parent.iterdir()) == ["history.sqlite", "history.sqlite.lock"]


def test_a_file_of_another_version_is_renamed_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "history.sqlite"
    file = SqliteFile(path, SCHEMA)
    add(file)
    file.close()
    newer = SqliteFile(path, SCHEMA._replace(version=2))
    with pytest.raises(StoreError, match="has version 1, not 2"):
        newer.read(lambda connection: None)
    add(newer)
    newer.close()
    assert "has version 1; this tailcut writes 2; it was renamed to history.sqlite.old" in caplog.text
    assert newer.read(lambda connection: connection.execute("SELECT count(*) FROM row").fetchone()) == (1,)
    assert rows(tmp_path / "history.sqlite.old") == 1
    with pytest.raises(StoreError, match="has version 2, not 1"):
        rows(path)


def test_the_database_of_another_program_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE theirs (id)")
        other.commit()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="is no history of tailcut but another database"):
        add(SqliteFile(path, SCHEMA))
    with pytest.raises(StoreError, match="another database"):
        rows(path)
    assert path.read_bytes() == before
    with pytest.raises(StoreError, match="there is no history at"):
        rows(tmp_path / "missing.sqlite")
    (tmp_path / "empty.sqlite").touch()
    with pytest.raises(StoreError, match="has version 0, not 1"):
        rows(tmp_path / "empty.sqlite")


@pytest.mark.parametrize("damage", ["head", "page"])
def test_a_damaged_file_is_renamed_and_said(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "history.sqlite"
    file = SqliteFile(path, SCHEMA)
    for _ in range(200):
        add(file, "long " * 100)
    file.close()
    with path.open("r+b") as raw:
        raw.seek(0 if damage == "head" else 4096)
        raw.write(b"\xff" * (16 if damage == "head" else 8192))
    if damage == "head":
        with pytest.raises(StoreError, match="cannot be read: file is not a database"):
            rows(path)
    add(file)
    assert rows(path) == 1
    aside = tmp_path / "history.sqlite.old"
    assert aside.stat().st_size > 100_000
    assert "is damaged" in caplog.text
    assert aside.name in caplog.text


def test_a_file_that_is_removed_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    file = SqliteFile(path, SCHEMA)
    add(file)
    path.unlink()
    add(file)
    assert rows(path) == 1


def test_a_full_file_refuses_and_goes_on(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "history.sqlite", SCHEMA, size_bytes=64 * 1024)
    with pytest.raises(sqlite3.OperationalError) as refused:  # noqa: PT012
        for _ in range(100):
            add(file, "x" * 4000)
    assert primary_code(refused.value) == sqlite3.SQLITE_FULL
    assert file.path.stat().st_size <= 64 * 1024
    before = rows(file.path)
    file.write(lambda connection: connection.execute("DELETE FROM row WHERE id < 5"))
    add(file, "x" * 4000)
    assert rows(file.path) == before - 4 + 1


def test_a_full_disk_loses_nothing_that_was_written(mounted: Path) -> None:
    file = SqliteFile(mounted / "history.sqlite", SCHEMA)
    add(file)
    filler = mounted / "filler"
    with filler.open("wb", buffering=0) as other, suppress(OSError):
        while True:
            other.write(b"x" * 4096)
    for _ in range(2):
        with pytest.raises(sqlite3.OperationalError, match=r"disk is full|disk I/O error"):
            add(file, "x" * 40_000)
    assert rows(file.path) == 1
    filler.unlink()
    add(file, "x" * 40_000)
    assert rows(file.path) == 2
    file.close()


def test_a_read_only_disk_refuses_to_write_and_is_read(mounted: Path) -> None:
    file = SqliteFile(mounted / "history.sqlite", SCHEMA)
    add(file)
    file.close()
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    with pytest.raises(OSError, match="Read-only file system"):
        add(file)
    assert rows(file.path) == 1


_KILLED = """
import os, sys
from pathlib import Path
from tests.unit.store.test_sqlite_file import SCHEMA
from tailcut.store import SqliteFile
file = SqliteFile(Path(sys.argv[1]), SCHEMA)
def work(connection):
    connection.execute("PRAGMA cache_size = 1")  # what was written spills into the file before the commit
    for _ in range(500):
        connection.execute("INSERT INTO row (text) VALUES (?)", ("y" * 1000,))
    os.kill(os.getpid(), 9)
file.write(work)
"""


def test_a_writer_that_is_killed_in_a_transaction_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    file = SqliteFile(path, SCHEMA)
    for _ in range(20):
        add(file, "x" * 2000)
    file.close()
    size = path.stat().st_size
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    died = subprocess.run([sys.executable, "-c", _KILLED, str(path)], check=False, env=environment)
    assert died.returncode == -signal.SIGKILL
    assert path.stat().st_size > size  # half of a transaction
    assert (tmp_path / "history.sqlite-journal").exists()
    assert rows(path) == 20  # the reader rolls it back
    add(file)
    assert rows(path) == 21
    file.close()


_WRITING = """
import sys
from pathlib import Path
from tests.unit.store.test_sqlite_file import SCHEMA, add
from tailcut.store import SqliteFile
file = SqliteFile(Path(sys.argv[1]), SCHEMA)
for _ in range(100):
    add(file)
print("written", flush=True)
input()
"""


def test_one_process_writes_a_file_while_others_read_it(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITING, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"written\n"
    file = SqliteFile(path, SCHEMA)
    with pytest.raises(StoreError, match="another server that runs writes it"):
        add(file)
    assert rows(path) == 100
    writer.kill()
    writer.communicate()
    add(file)
    assert rows(path) == 101
