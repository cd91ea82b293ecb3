"""``tailcut build`` on a real terminal: what it shows is live, and Ctrl-C leaves the terminal as it was."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.test_cli_signals import LONGEST_S, MANIFEST, SLOW, is_alive

pytestmark = pytest.mark.integration


def read_until(master: int, enough: Callable[[str], bool]) -> str:
    """Read what the terminal was sent; it ends with the last process that has it open."""
    text, end_s = "", time.monotonic() + LONGEST_S
    while not enough(text):
        assert time.monotonic() < end_s, text
        if select.select([master], [], [], 0.5)[0]:
            try:
                text += os.read(master, 65536).decode(errors="replace")
            except OSError:  # EIO: nobody has the other end any more
                break
    return text


def test_ctrl_c_takes_the_live_display_away_and_gives_the_cursor_back(tmp_path: Path) -> None:
    (tmp_path / "tailcut.toml").write_text(MANIFEST)
    (tmp_path / "slow.py").write_text(SLOW)
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tailcut", "build"],
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm", "TMPDIR": str(tmp_path), "PYTHONPATH": str(tmp_path)},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    os.close(slave)
    running = tmp_path / "running"
    try:
        shown = read_until(master, lambda text: running.exists() and "reading the holdout, 1 s" in text)
        process.send_signal(signal.SIGINT)
        shown += read_until(master, lambda _: False)
        assert process.wait(LONGEST_S) == 130
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert not is_alive(int(running.read_text()))
    assert "Traceback" not in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor is hidden"
    assert shown.rindex("\x1b[2K") > shown.rindex("reading the holdout"), "the last drawing was not taken away"
