"""The history of a real server: written at its stop, by one server, refused by the disk, left alone by measurements."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.app_kit import GOOD, INFER
from tests.integration.serving import Served

from tailcut.observe.history import History

pytestmark = pytest.mark.integration

DRAIN = "server.drain=50ms"


def answered(path: Path) -> int:
    now_s = time.time()
    rows = History(path).latency(now_s - 3600, now_s + 3600, stage="request", bucket_s=7200)
    return sum(row.requests for row in rows)


def test_a_stopped_server_has_written_its_running_minute_beside_its_manifest(tmp_path: Path) -> None:
    path = tmp_path / ".tailcut" / "history.sqlite"
    for run in (1, 2):
        with Served(tmp_path, settings=[DRAIN], prepared=run == 2) as served:
            for _ in range(5):
                assert served.post(INFER, GOOD)[0] == 200
            assert "tailcut_history_dropped_total 0.0" in served.metrics()
            served.signal()
            assert served.wait() == 0
        assert answered(path) == 5 * run
    now_s = time.time()
    counts = History(path).counts(now_s - 3600, now_s + 3600, name="tailcut_requests_total")
    assert sum(row.value for row in counts) == 10


def test_of_two_servers_with_one_history_the_second_writes_when_the_first_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "shared.sqlite"
    settings = [DRAIN, f"observe.history.path={path}"]
    with Served(tmp_path, settings=settings) as one:
        one.wait_until(path.exists)
        with Served(tmp_path, settings=settings, prepared=True) as two:
            two.wait_until(lambda: "another server that runs writes it" in two.log)
            for served in (one, two, two):
                assert served.post(INFER, GOOD)[0] == 200
            for served in (one, two):
                served.signal()
                assert served.wait() == 0
    assert answered(path) == 3
    assert not (tmp_path / ".tailcut").exists()


def test_a_history_that_is_off_or_cannot_be_written_hurts_no_request(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file where the folder should be")
    for path, said in (("off", ""), (tmp_path / "file" / "history.sqlite", "the history at")):
        with Served(tmp_path, settings=[DRAIN, f"observe.history.path={path}"]) as served:
            assert served.post(INFER, GOOD)[0] == 200
            served.wait_until(lambda said=said, served=served: said in served.log)
            served.signal()
            assert served.wait() == 0
            assert served.log.count("cannot be written") == (path != "off")
    assert not (tmp_path / ".tailcut").exists()


def test_a_read_only_disk_is_said_and_the_server_serves(tmp_path: Path) -> None:
    state = tmp_path / ".tailcut"
    state.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,ro", "tmpfs", str(state)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk can be mounted by root only")
    try:
        with Served(tmp_path, settings=[DRAIN]) as served:
            assert served.post(INFER, GOOD)[0] == 200
            served.wait_until(lambda: "cannot be written: [Errno 30] Read-only file system" in served.log)
            served.signal()
            assert served.wait() == 0
    finally:
        subprocess.run(["umount", str(state)], check=True)


def test_a_killed_server_leaves_a_history_that_the_next_one_goes_on_with(tmp_path: Path) -> None:
    path = tmp_path / ".tailcut" / "history.sqlite"
    with Served(tmp_path, settings=[DRAIN]) as served:
        served.post(INFER, GOOD)
        served.wait_until(path.exists)
        os.kill(served.worker_pid, signal.SIGKILL)
        served.wait()
    with Served(tmp_path, settings=[DRAIN], prepared=True) as served:
        served.post(INFER, GOOD)
        served.signal()
        assert served.wait() == 0
    assert answered(path) == 1  # the killed one's minute had not ended
