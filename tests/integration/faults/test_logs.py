"""Logs that cannot be written, because the disk is full or nobody is there to read: requests go on, lines are lost."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
            await until(server, lambda: "the access log can be written again" in server.log)
            assert (await wire.ask(as_bytes()))[0] == 200
            await until(server, lambda: whole(log) >= before + 1)
        (lost,) = re.findall(r"(\d+) of its lines were lost", server.log)
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
