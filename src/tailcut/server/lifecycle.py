"""Runs the server: refuses a taken port, supervises the worker, drains on SIGTERM, kills what does not stop.

On SIGTERM or SIGINT: not ready and ``Connection: close`` on every reply for ``drain_s``, so that busy keep-alive
connections end between two requests instead of losing one; then stop, then kill at ``kill_s``. A second signal skips
the rest of the drain.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
from functools import partial
from typing import Any

from granian.constants import HTTPModes, Interfaces, Loops, TaskImpl
from granian.log import LogLevels
from granian.server.mp import MPServer

from tailcut.errors import StartError
from tailcut.manifest import Manifest
from tailcut.server.rsgi import EXIT_START_FAILED, RSGIApplication


def serve(manifest: Manifest) -> int:
    """Serve until a signal stops it.

    Returns:
        the exit code: 0 after a signal, 3 where the deployment could not be loaded, 1 where the worker died.

    Raises:
        StartError: the port is taken or may not be used.
    """
    server = manifest.deployment.server
    port = probe_port(server.host, server.port)
    supervisor = _Supervisor(manifest, port)
    try:
        supervisor.run()
    except SystemExit as stop:
        if EXIT_START_FAILED in supervisor.exit_codes:
            return EXIT_START_FAILED
        return stop.code if isinstance(stop.code, int) else 1
    return 0


def probe_port(host: str, port: int) -> int:
    """Return the port after binding it once without SO_REUSEPORT; 0 finds a free one.

    Two servers could otherwise share a port silently, each getting a part of the requests.

    Raises:
        StartError: another process listens there, or this one may not.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Only against the TIME_WAIT of an earlier run; a listening socket still refuses it.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = "another process listens there" if error.errno == errno.EADDRINUSE else error.strerror
            raise StartError(
                f"cannot listen on {host}:{port}: {reason}",
                hint="stop the other process, or choose another port with --port (0 takes a free one)",
            ) from error
        return int(probe.getsockname()[1])


class _Supervisor(MPServer):
    """Granian's parent process with a drain before its stop."""

    def __init__(self, manifest: Manifest, port: int) -> None:
        server = manifest.deployment.server
        self._manifest = manifest
        self._drain_s = float(server.drain_s)
        self._draining = False
        self.exit_codes: list[int | None] = []
        super().__init__(
            target="tailcut",
            address=server.host,
            port=port,
            interface=Interfaces.RSGI,
            workers=1,
            loop=Loops.uvloop,
            task_impl=TaskImpl.asyncio,
            http=HTTPModes.auto,
            websockets=False,
            backlog=server.backlog,
            log_level=LogLevels.warning,
            # A float works (it goes to Process.join) and kill_s need not be whole.
            workers_kill_timeout=max(float(server.kill_s) - self._drain_s, 0.1),  # type: ignore[arg-type]
        )
        host = f"[{server.host}]" if ":" in server.host else server.host
        self._url = f"http://{host}:{port}"

    def run(self) -> None:
        """Serve; returns after a clean stop, raises SystemExit where a worker died."""
        # Inherited by the worker: told to drain before it listens for that, it must not die of it.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self.serve(target_loader=partial(_load, self._manifest, self._url), wrap_loader=False)

    def signal_handler_interrupt(self, *args: Any, **kwargs: Any) -> None:
        """Drain first; a second signal stops at once."""
        if self._draining or self._drain_s == 0:
            self._stop_now()
            return
        self._draining = True
        for worker in self.wrks:
            if worker.inner.is_alive():
                os.kill(worker.inner.pid, signal.SIGUSR1)
        timer = threading.Timer(self._drain_s, self._stop_now)
        timer.daemon = True
        timer.start()

    def _stop_now(self) -> None:
        super().signal_handler_interrupt()  # type: ignore[no-untyped-call]  # granian's is not annotated

    def _stop_workers(self) -> None:
        self.exit_codes = [worker.inner.exitcode for worker in self.wrks]
        super()._stop_workers()  # type: ignore[no-untyped-call]  # granian's is not annotated


def _load(manifest: Manifest, url: str) -> Any:
    """Make the application, inside the worker."""
    return RSGIApplication(manifest, url)
