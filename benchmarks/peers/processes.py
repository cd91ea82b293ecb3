"""Servers as process trees: pinned to a core, frozen while another one is measured, stopped, and verified gone."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

SERVER_CORE, LOAD_CORE = 0, 1
_MARK = "BENCH_RUN_MARK"


class NotUp(Exception):
    """A server did not answer in time; the text ends with what it wrote last."""


class Server:
    """A started server. Its processes are found by a mark in their environment: some peers leave the process group.

    Args:
        command: how it is started.
        env: its whole environment.
        url: a request there tells whether it is up; ``body`` is sent where it is not empty.
        log: where its output goes.
    """

    def __init__(
        self, command: Sequence[str], env: dict[str, str], url: str, body: bytes, headers: dict[str, str], log: Path
    ) -> None:
        self._mark = uuid.uuid4().hex
        self._url, self._body, self._headers = url, body, headers
        self._log = log
        self._output: IO[bytes] = log.open("wb")
        self.process = subprocess.Popen(
            ["taskset", "-c", str(SERVER_CORE), *command], env={**env, _MARK: self._mark},
            stdout=self._output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def wait_up(self, timeout_s: float = 90.0) -> bytes:
        """Wait for the first good answer and return it.

        Raises:
            NotUp: none came.
        """
        give_up_s = time.monotonic() + timeout_s
        last = "no answer"
        while time.monotonic() < give_up_s and self.process.poll() is None:
            request = urllib.request.Request(self._url, self._body, self._headers)  # noqa: S310 - the loopback
            try:
                with urllib.request.urlopen(request, timeout=5) as reply:  # noqa: S310
                    answer: bytes = reply.read()
                    return answer
            except urllib.error.HTTPError as error:
                last = f"status {error.code}: {error.read(300)!r}"
            except OSError as error:
                last = str(error)
            time.sleep(0.2)
        raise NotUp(f"{last}; its output ends: {self._tail()}")

    @property
    def pids(self) -> list[int]:
        """Its processes, all of them."""
        return marked(self._mark)

    def freeze(self) -> None:
        """Stop its processes where they are: an idle peer that polls would take from the one that is measured."""
        self._tell(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on."""
        self._tell(signal.SIGCONT)

    def stop(self) -> None:
        """End it, by force where it does not follow, and verify that no process of it is left.

        Raises:
            RuntimeError: one is left.
        """
        self.thaw()
        with suppress(ProcessLookupError):
            self.process.terminate()
        if not self._gone(10.0):
            self._tell(signal.SIGTERM)
        if not self._gone(5.0):
            self._tell(signal.SIGKILL)
        left = not self._gone(10.0)
        self._output.close()
        if left:
            raise RuntimeError(f"processes {self.pids} do not end")

    def _gone(self, timeout_s: float) -> bool:
        give_up_s = time.monotonic() + timeout_s
        while time.monotonic() < give_up_s:
            if self.process.poll() is not None and not self.pids:
                return True
            time.sleep(0.05)
        return False

    def _tell(self, number: signal.Signals) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _tail(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-3:])[-400:] or "(nothing)"


def marked(mark: str) -> list[int]:
    """Return the processes whose environment holds the mark. One that ended and waits for its parent has none."""
    wanted = f"{_MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found
