"""``tailcut`` commands as forks of a process that has imported what each would import for half a second.

``warm().start(...)`` is like ``subprocess.Popen``. The fork has its own session, environment, folder and output, and
nothing of the user's code was imported before it. How a fresh interpreter starts is what tests of installations show.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tailcut.models.runtimes.telemetry import keep_off

ROOT = Path(__file__).parents[1]
LIBRARIES = (
    "numpy",
    "onnxruntime",
    "tailcut.builder",
    "tailcut.cli.build",
    "tailcut.cli.registry",
    "tailcut.cli.serve",
    "tailcut.transport.lifecycle",
)
_LARGEST = 100_000
"""Bytes of a task; most of them are the environment."""
_PYTHONPATH = os.environ.get("PYTHONPATH")


class Started:
    """A command that runs or has ended; its names are those of ``subprocess.Popen``."""

    def __init__(self, said: int) -> None:
        self._said = open(said, "rb", buffering=0)  # noqa: SIM115  # its pid, and its exit code once it ended
        pid = self._said.read(8)
        if len(pid) < 8:
            raise RuntimeError("the process that starts commands for tests has ended")
        self.pid = int.from_bytes(pid, sys.byteorder, signed=True)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, less than 0 for a signal; None while it runs."""
        return self._code(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code."""
        code = self._code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("tailcut", timeout or 0.0)
        return code

    def _code(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._said], [], [], timeout_s)[0]:
            code = self._said.read(8)
            self._said.close()
            if len(code) < 8:
                raise RuntimeError("the process that waits for the command has ended without its exit code")
            self.returncode = int.from_bytes(code, sys.byteorder, signed=True)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal while it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send it SIGKILL while it runs."""
        self.send_signal(signal.SIGKILL)


class Warm:
    """A process with libraries imported, which ends with this one."""

    def __init__(self, *libraries: str) -> None:
        self._tasks, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.warm", str(theirs.fileno()), *LIBRARIES, *libraries]
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
            )

    def start(
        self, arguments: Sequence[str], *, stdout: int, stderr: int, cwd: Path = ROOT, env: Mapping[str, str]
    ) -> Started:
        """Start ``tailcut`` with arguments.

        Args:
            stdout, stderr: file descriptors.
        """
        task = json.dumps({"arguments": list(arguments), "cwd": str(cwd), "env": dict(env)}).encode()
        reads, writes = os.pipe()
        socket.send_fds(self._tasks, [task], [stdout, stderr, writes])
        os.close(writes)
        return Started(reads)

    def run(
        self, arguments: Sequence[str], *, cwd: Path = ROOT, env: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run ``tailcut`` with arguments to its end, which a time-out makes it come to."""
        if not can_fork(env):
            command = [sys.executable, "-m", "tailcut", *arguments]
            return subprocess.run(
                command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
            started = self.start(arguments, stdout=stdout.fileno(), stderr=stderr.fileno(), cwd=cwd, env=env)
            try:
                code = started.wait(timeout_s)
            finally:
                started.kill()
            for each in (stdout, stderr):
                each.seek(0)
            return subprocess.CompletedProcess(list(arguments), code, stdout.read(), stderr.read())


def can_fork(env: Mapping[str, str]) -> bool:
    """Tell whether a fork is what a new interpreter would be: an environment may change what one does at its start."""
    return env.get("PYTHONPATH") == _PYTHONPATH


@functools.cache
def warm(*libraries: str) -> Warm:
    """Return the warm process of this one that has imported some libraries more."""
    return Warm(*libraries)


def main(arguments: list[str]) -> None:
    """Import libraries and start commands until the socket is closed; a fork runs its command and exits."""
    tasks = socket.socket(fileno=int(arguments[0]))
    keep_off()
    for name in arguments[1:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait for commands
    while True:
        task, passed, _, _ = socket.recv_fds(tasks, _LARGEST, 3)
        if not task:
            return
        if _fork() == 0:  # this one waits for the command, so that the loop waits for nothing
            tasks.close()
            return _keep(json.loads(task), *passed)
        for each in passed:
            os.close(each)


def _keep(task: dict[str, Any], stdout: int, stderr: int, said: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = _fork()
    if child == 0:
        os.close(said)
        return _command(task, stdout, stderr)
    os.close(stdout)
    os.close(stderr)
    os.write(said, child.to_bytes(8, sys.byteorder, signed=True))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(said, code.to_bytes(8, sys.byteorder, signed=True))
    os._exit(0)


def _command(task: dict[str, Any], stdout: int, stderr: int) -> None:
    """Become what ``python -m tailcut`` would be."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(task["cwd"])
    for given, target in ((stdout, 1), (stderr, 2)):
        os.dup2(given, target)
        os.close(given)
    os.environ.clear()
    os.environ.update(task["env"])
    sys.path[0] = task["cwd"]
    sys.argv = ["tailcut", *task["arguments"]]
    sys.modules["numpy"].random.seed()
    importlib.import_module("tailcut.cli.app").main()


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: numpy starts its own anew after a fork
        return os.fork()


if __name__ == "__main__":
    main(sys.argv[1:])
