"""A server as a child process: started on its own core, waited for, stopped by its process id."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tailcut.errors import StartError
from tailcut.system import child_processes

_POLL_S = 0.05
_LOG_LINES = 20
# exec keeps the process id, so that CPU time and signals go to the server itself.
_PINNED = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); os.execvp(sys.argv[2], sys.argv[2:])"


class ServerProcess:
    """One server under test. Use as a context manager.

    Args:
        command: what to run.
        port: where it will listen on 127.0.0.1.
        log: file for its stdout and stderr.
        environment: its whole environment.
        directory: its working folder.
        core: CPU core that it is pinned to; None leaves it free.
        stop_s: longest wait after SIGTERM before it is killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        log: Path,
        *,
        environment: Mapping[str, str],
        directory: Path,
        core: int | None,
        stop_s: float = 10.0,
    ) -> None:
        self.command = tuple(command)
        self.port = port
        self.log = log
        self._stop_s = stop_s
        pinned = command if core is None else [sys.executable, "-c", _PINNED, str(core), *command]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            output.write(f"$ {' '.join(command)}\n".encode())
            output.flush()
            try:
                self._process = subprocess.Popen(
                    list(pinned),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
                    cwd=directory,
                    start_new_session=True,
                )
            except OSError as error:
                raise StartError(f"cannot run {command[0]!r}: {error.strerror}", hint="check the command") from error

    @property
    def pid(self) -> int:
        """Process id of the server's first process."""
        return self._process.pid

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def wait_until_ready(self, path: str, *, timeout_s: float, ok: Sequence[int] = ()) -> None:
        """Poll until GET ``path`` is answered.

        Args:
            path: what is asked for.
            timeout_s: longest wait.
            ok: statuses that mean ready; empty: any answer does.

        Raises:
            StartError: it died, or was not ready in time; with its last log lines.
        """
        end_s = time.monotonic() + timeout_s
        seen = "no connection"
        while time.monotonic() < end_s:
            self.check_alive("before it was ready")
            status = _get_status(self.port, path)
            if status is not None and (not ok or status in ok):
                return
            seen = f"status {status}" if status is not None else seen
            time.sleep(_POLL_S)
        raise StartError(f"the server was not ready after {timeout_s:g} s (GET {path}: {seen})", hint=self.last_lines())

    def check_alive(self, when: str) -> None:
        """Refuse to go on where it has ended.

        Raises:
            StartError: it has; with its last log lines.
        """
        code = self._process.poll()
        if code is not None:
            raise StartError(f"the server exited with code {code} {when}", hint=self.last_lines())

    def try_one(self, path: str, body: bytes, *, timeout_s: float) -> None:
        """Post one request of the traffic, so that a wrong path or payload shows here and not as a run of errors.

        Raises:
            StartError: the answer is no 2xx, or there is none.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            text = reply.read(500).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise StartError(f"POST {path} got no answer: {error!r}", hint=self.last_lines()) from error
        finally:
            connection.close()
        if not 200 <= reply.status < 300:
            raise StartError(
                f"POST {path} of {body[:200]!r} was answered {reply.status}: {text}", hint=self.last_lines()
            )

    def stop(self) -> None:
        """Ask it to stop, then kill what is left of its session."""
        child_processes.stop(self._process, self._stop_s)

    def last_lines(self) -> str:
        """Return the end of its log, and where that is."""
        return f"the last lines of {self.log}:\n" + "\n".join(child_processes.last_lines(self.log, _LOG_LINES))


def free_port() -> int:
    """Find a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _get_status(port: int, path: str) -> int | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
