"""``tailcut top`` against a real server: once, as JSON, refused, and live in a terminal of any size."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.integration.serving import Served

from tailcut.cli.app import run as run_command

pytestmark = pytest.mark.integration

TOP = [sys.executable, "-m", "tailcut", "top"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "managers").write_text(hashlib.sha256(b"secret").hexdigest())
    (folder / "token").write_text("secret\n")
    with Served(folder, more='[slo]\np95 = "100ms"\n', settings=["server.management_tokens=managers"]) as served:
        for _ in range(20):
            assert served.post("/v2/models/m/infer")[0] == 200
        served.wait_until(lambda: _answered(served) == 20)
        yield served


def _answered(served: Served) -> int:
    raw = served.request("GET", "/ui/data", headers={"authorization": "Bearer secret"})[2]
    return int(json.loads(raw)["models"][0]["requests"]["answered"]["total"])


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120"}
    return subprocess.run([*TOP, *arguments], capture_output=True, text=True, timeout=60, env=environment, check=False)


def flags(server: Served, *more: str) -> list[str]:
    return [f"127.0.0.1:{server.port}", "--token-file", str(server._log.parent / "token"), *more]


def test_once_prints_tables_and_json_the_snapshot(server: Served) -> None:
    shown = run(*flags(server, "--once"))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "\x1b" not in shown.stdout, "no colours where the output is no terminal"
    for word in ("ready", "req/s", "p95", "request", "SLO", "100 ms"):
        assert word in shown.stdout
    data = json.loads(run(*flags(server, "--once", "--json")).stdout)
    assert data["models"][0]["requests"]["answered"]["total"] == 20


def test_what_cannot_be_shown_is_said_with_an_exit_code(
    server: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, code, said in (
        ([f"127.0.0.1:{server.port}"], 3, "--token-file"),
        ([f"127.0.0.1:{server.port}", "--token", "wrong"], 3, "401"),
        (["127.0.0.1:9", "--once"], 3, "cannot be read"),
        ([f"127.0.0.1:{server.port}/metrics/x", "--once"], 3, "no such path"),
        (["ftp://x"], 2, "no address of a server"),
        (flags(server, "--model", "other"), 2, "it serves m"),
        (flags(server, "--every", "soon"), 2, "--every"),
        ([f"127.0.0.1:{server.port}", "--token-file", str(tmp_path / "none")], 2, "cannot be read"),
    ):
        found, errors = run_command(["top", *arguments]), capsys.readouterr().err
        assert (found, said in errors) == (code, True), (arguments, errors)


class Terminal:
    """A terminal in which ``tailcut top`` runs."""

    def __init__(self, arguments: list[str]) -> None:
        self._own, other = pty.openpty()
        self.resize(120)
        environment = {name: text for name, text in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        self.process = subprocess.Popen(
            [*TOP, *arguments], stdin=other, stdout=other, stderr=other, env={**environment, "TERM": "xterm"}
        )
        os.close(other)
        self.seen = ""

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self._own, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    def until(self, text: str, without: str = "") -> None:
        """Read until a screen has a text, and does not have another."""
        ends_s = time.monotonic() + 30
        while not (text in self.screen and not (without and without in self.screen)):
            assert time.monotonic() < ends_s, self.seen
            if select.select([self._own], [], [], 0.1)[0]:
                self.seen += os.read(self._own, 65536).decode(errors="replace")

    def ended(self) -> int:
        """Read until the program has ended, which could not write to a full terminal; return its exit code."""
        ends_s = time.monotonic() + 30
        while self.process.poll() is None:
            assert time.monotonic() < ends_s, self.seen
            if select.select([self._own], [], [], 0.1)[0]:
                with suppress(OSError):  # EIO: nobody has the other end any more
                    os.read(self._own, 65536)
        return self.process.returncode

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        os.close(self._own)

    @property
    def screen(self) -> str:
        """The last whole screen."""
        screens = self.seen.split("\x1b[H")
        return screens[-2] if len(screens) > 2 else ""


def test_a_terminal_is_followed_through_its_sizes_until_it_is_interrupted(server: Served) -> None:
    terminal = Terminal(flags(server, "--every", "200ms"))
    try:
        terminal.until("in flight")
        assert "\x1b[" in terminal.seen
        terminal.resize(50)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.until("burn", without="in flight")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.ended() == 130
    finally:
        terminal.close()
