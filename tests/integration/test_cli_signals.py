"""A command that is told to stop, or killed, leaves no process and no folder behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

MANIFEST = """
name = "m"
[model]
source = "slow:model"
inputs = [{name = "x", datatype = "FP32", shape = [-1, 2]}]
outputs = [{name = "y", datatype = "FP32", shape = [-1]}]
[holdout]
source = "slow:holdout"
[slo]
p95 = "25ms"
"""
# Says that it runs, then does nothing until it is killed.
SLOW = """
import os, signal
def model(): ...
def holdout():
    with open("running.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename("running.new", "running")
    while True:
        signal.pause()
"""
LONGEST_S = 30.0


def wait_until(condition) -> None:
    end_s = time.monotonic() + LONGEST_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def building(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int, Path]]:
    """A build in the middle of a step, the process of that step, and the folder for temporary files."""
    (tmp_path / "tailcut.toml").write_text(MANIFEST)
    (tmp_path / "slow.py").write_text(SLOW)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "tailcut", "build"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts the tests in the background makes them, and what they start, ignore Ctrl-C; nohup, SIGHUP.
        preexec_fn=lambda: [signal.signal(one, signal.SIG_DFL) for one in (signal.SIGINT, signal.SIGHUP)],  # noqa: PLW1509
    )
    running = tmp_path / "running"
    try:
        wait_until(lambda: running.exists() or process.poll() is not None)
        assert process.poll() is None, process.stderr and process.stderr.read()
        step = int(running.read_text())
        yield process, step, scratch
        if is_alive(step):
            os.kill(step, signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_build_that_is_told_to_stop_cleans_up(building, told: signal.Signals) -> None:
    """Seen before: with SIGTERM, as a service manager or a CI's time limit sends it, the step went on alone."""
    process, step, scratch = building
    process.send_signal(told)
    _, text = process.communicate(timeout=LONGEST_S)
    assert process.returncode == (130 if told is signal.SIGINT else -told)
    assert "Traceback" not in text
    assert "stopped while at holdout: nothing was promoted, the served variant stays" in text
    assert not is_alive(step)
    assert list(scratch.iterdir()) == []


def test_a_step_ends_with_a_build_that_is_killed(building) -> None:
    process, step, _ = building
    process.kill()
    process.communicate(timeout=LONGEST_S)
    wait_until(lambda: not is_alive(step))
