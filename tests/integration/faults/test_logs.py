"""Logs that cannot be written, because the disk is full or nobody is there to read: requests go on, lines are lost."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.app_kit import INFER, deployment
from tests.integration.faults.kit import until
from tests.integration.serving import Served, as_bytes, connected

pytestmark = pytest.mark.integration


@contextmanager
def full_disk(server: Served, size_bytes: int) -> Iterator[None]:
    """No file of the worker grows beyond a size: a write fails, as it does on a disk without room."""
    pid = server.worker_pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


def whole(log: Path) -> int:
    """Lines of inferences; one is cut where the disk was full."""
    found = 0
    for line in log.read_text().splitlines():
        try:
            found += json.loads(line)["path"] == INFER
        except ValueError:
            continue
    return found


def test_a_full_disk_costs_lines_of_the_access_log_and_says_how_many(tmp_path: Path) -> None:
    log = tmp_path / "access.log"

    async def main(server: Served) -> None:
        async with connected(server.port) as wire:
            for _ in range(10):
                assert (await wire.ask(as_bytes()))[0] == 200
            await until(server, lambda: whole(log) >= 10)
            before = whole(log)
            with full_disk(server, log.stat().st_size + 20):  # room for a part of a line
                for _ in range(100):
                    assert (await wire.ask(as_bytes()))[0] == 200
                    assert (await wire.ask(as_bytes({})))[0] == 400
                await until(server, lambda: "the access log cannot be written" in server.log)
                assert whole(log) == before
            assert (await wire.ask(as_bytes()))[0] == 200
            await until(server, lambda: "access log: dropped" in server.log)
            assert (await wire.ask(as_bytes()))[0] == 200
            await until(server, lambda: whole(log) >= before + 1)
        (lost,) = re.findall(r"access log: dropped (\d+) lines", server.log)
        # Those that waited for the writer when there was room again were written.
        await until(server, lambda: whole(log) + int(lost) == before + 202)

    settings = ['server.access_log="access.log"', "server.access_log_share=1.0"]
    with Served(tmp_path, settings=settings) as server:
        asyncio.run(asyncio.wait_for(main(server), 40))


def test_a_log_that_cannot_be_written_does_not_stop_the_server_and_it_stops_as_ever(tmp_path: Path) -> None:
    """All that it says at its start, of a failure, of SIGHUP and of its end goes nowhere."""
    (tmp_path / "app").mkdir()
    with Served(tmp_path / "app", settings=["server.drain=300ms"], stderr=Path("/dev/full")) as server:
        assert server.post(INFER)[0] == 200
        server.signal(signal.SIGHUP)
        assert server.post(INFER)[0] == 200
        server.signal(signal.SIGTERM)
        assert server.wait() == 0


def test_an_error_at_the_start_that_cannot_be_said_is_an_exit_code_all_the_same(tmp_path: Path) -> None:
    deployment(tmp_path)
    (tmp_path / "model.onnx").unlink()
    command = [sys.executable, "-m", "tailcut", "serve", "--manifest", str(tmp_path), "--port", "0"]
    with open("/dev/full", "wb") as full:
        assert subprocess.run(command, stderr=full, stdout=full, timeout=60, check=False).returncode == 3


@contextmanager
def unread_pipe() -> Iterator[tuple[Path, int]]:
    """A pipe that is full and that nobody reads, as the file to write to, and its reading end."""
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        with suppress(BlockingIOError):
            while True:
                os.write(writing, b"x" * 4096)
        os.set_blocking(writing, True)
        yield Path(f"/proc/{os.getpid()}/fd/{writing}"), reading
    finally:
        os.close(reading)
        os.close(writing)


HOOKS = """
import sys
import numpy as np

def preprocess(rows):
    print("hook " * 2000, file=sys.stderr, flush=True)
    return {"x": np.array([[row["id"], row["value"]] for row in rows], np.float32)}
"""


def wait_ended(pid: int, timeout_s: float = 15.0) -> None:
    """Wait for the end of a process that nobody but this test would end."""
    give_up_s = time.monotonic() + timeout_s
    with suppress(FileNotFoundError, ProcessLookupError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            if time.monotonic() > give_up_s:
                os.kill(pid, signal.SIGKILL)
                raise AssertionError("it runs on without its supervisor")
            time.sleep(0.01)


LOUD = """
import sys
from pathlib import Path
import numpy as np

def preprocess(rows):
    if rows[0]["id"] == 9:
        Path(__file__).with_suffix(".begun").touch()
        print("hook" * 1000000, file=sys.stderr, flush=True)
    return {"x": np.array([[row["id"], row["value"]] for row in rows], np.float32)}
"""


def read_until(reading: int, words: bytes, timeout_s: float = 20.0) -> bytes:
    """Read a pipe until something was said, or it is closed where that is never said."""
    found, give_up_s = b"", time.monotonic() + timeout_s
    while words not in found:
        ready, _, _ = select.select([reading], [], [], max(give_up_s - time.monotonic(), 0))
        assert ready, found[-500:]
        found += os.read(reading, 1 << 20)
    return found


@pytest.mark.parametrize(
    ("executor", "form"),
    [("thread", "text"), pytest.param("process", "text", marks=pytest.mark.whole), ("process", "json")],
)
def test_a_log_that_nobody_reads_stops_neither_the_server_nor_its_executors(
    tmp_path: Path, executor: str, form: str
) -> None:
    """Whoever started it holds the other end of a pipe and does not read: lines are lost, requests are not."""
    app = tmp_path / "app"
    app.mkdir()
    settings = [f'pool.executor="{executor}"', "server.drain=300ms", 'model.preprocess="loud:preprocess"']
    settings.append(f"server.log={form}")
    deployment(app)
    (app / "loud.py").write_text(HOOKS)
    one = {"rows": [{"id": 1, "value": 2}]}
    with (
        unread_pipe() as (full, reading),
        Served(app, settings=settings, prepared=True, stderr=full) as server,
    ):
        server.signal(signal.SIGHUP)  # it says something
        for _ in range(300):  # three megabytes
            assert server.post("/predict/m", one)[0] == 200
        said = read_until(reading, b"lines of this log")
        assert said.count(b"hook hook") > 100
        assert server.post("/predict/m", one)[0] == 200
        read_until(reading, b"hook")
        server.signal(signal.SIGTERM)
        assert server.wait() == 0


def test_a_worker_that_writes_to_a_supervisor_that_was_killed_ends_too(tmp_path: Path) -> None:
    """With nobody to pass its log on it is told so, instead of waiting for ever with the port in its hands."""
    app = tmp_path / "app"
    app.mkdir()
    deployment(app)
    (app / "loud.py").write_text(LOUD)
    settings = ['model.preprocess="loud:preprocess"']
    reading, writing = os.pipe()
    with Served(app, settings=settings, prepared=True, stderr=Path(f"/proc/{os.getpid()}/fd/{writing}")) as server:
        for _ in range(300):  # until the hook is known to be quick, and runs on the event loop
            assert server.post("/predict/m", {"rows": [{"id": 1, "value": 2}]})[0] == 200
        worker = server.worker_pid
        server.signal(signal.SIGSTOP)
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            body = b'{"rows": [{"id": 9, "value": 2}]}'
            client.sendall(b"POST /predict/m HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            server.wait_until((app / "loud.begun").exists)
            server.signal(signal.SIGKILL)
            wait_ended(worker)
    os.close(reading)
    os.close(writing)


def test_the_last_words_of_a_worker_are_heard_through_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    reading, writing = os.pipe()
    try:
        path = Path(f"/proc/{os.getpid()}/fd/{writing}")
        with Served(tmp_path / "app", settings=["server.drain=300ms"], stderr=path) as server:
            read_until(reading, b"is ready")
            os.kill(server.worker_pid, signal.SIGKILL)
            assert server.wait() == 1
            assert b"the worker was killed by SIGKILL" in read_until(reading, b"SIGKILL")
    finally:
        os.close(reading)
        os.close(writing)
