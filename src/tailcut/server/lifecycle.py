"""Runs the server: refuses a taken port, supervises the worker, drains on SIGTERM, kills what does not stop.

On SIGTERM or SIGINT: not ready and ``Connection: close`` on every reply for ``drain_s``, so that busy keep-alive
connections end between two requests instead of losing one; then stop, then kill at ``kill_s``. A second signal skips
the rest of the drain.

Service managers send SIGTERM to the supervisor, to all of its process group, or (by mistake) to the worker alone. All
three do the same, because the worker does not stop on SIGTERM: the two processes tell one another with signals of
their own. Supervisor to worker: SIGUSR1 drain, SIGUSR2 stop. Worker to supervisor: SIGUSR2 I was told to stop.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any

from granian.constants import HTTPModes, Interfaces, Loops, SSLProtocols, TaskImpl
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.mp import MPServer

from tailcut import logs
from tailcut.manifest import Manifest
from tailcut.server.access_log import check_log
from tailcut.server.alert import Alert
from tailcut.server.auth import check_tokens
from tailcut.server.http1.serving import Http1
from tailcut.server.http1.serving import spawn as spawn_http1
from tailcut.server.outlet import Outlet, log_config
from tailcut.server.ports import allow_connections, check_grpc, find_address, probe_port
from tailcut.server.rsgi import RSGIApplication
from tailcut.server.signals import STOP
from tailcut.server.stopping import spawn
from tailcut.server.tls import Tls, find_tls
from tailcut.server.worker import EXIT_START_FAILED, Worker

log = logging.getLogger("tailcut.server")

_LAST_S = 0.1
"""What a worker has left to end, at least, before it is killed."""


def serve(manifest: Manifest) -> int:
    """Serve until a signal stops it.

    Returns:
        the exit code: 0 after a signal, 3 where the deployment could not be loaded, 1 where the worker died.

    Raises:
        StartError: the host is no address of this machine, the port is taken or may not be used, or a file of tokens,
            certificates or the access log cannot be used.
    """
    server = manifest.deployment.server
    logs.configure(server.log, manifest.deployment.name)
    address = find_address(server.host)
    check_tokens(manifest)
    check_log(manifest)
    tls = find_tls(manifest)
    port = probe_port(address, server.port)
    if server.grpc_port:
        check_grpc(address, server.grpc_port, port)
    allow_connections(server.max_connections)
    with Outlet(server.log, manifest.deployment.name) as outlet:
        supervisor = _Supervisor(manifest, address, port, tls, outlet)
        try:
            supervisor.run()
        except SystemExit as stop:
            if EXIT_START_FAILED in supervisor.exit_codes:
                return EXIT_START_FAILED
            log.error("%s", _said_of(supervisor.exit_codes))
            return stop.code if isinstance(stop.code, int) else 1
    return 0


def _said_of(exit_codes: list[int | None]) -> str:
    """Say how the worker ended, and what usually does that."""
    code = next((code for code in exit_codes if code), None)
    if code is None:
        return "the worker ended by itself"
    if code > 0:
        return f"the worker ended with code {code}; the lines above may say why"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    likely = {"SIGKILL": " (out of memory? see the kernel's log)", "SIGSEGV": " (a crash in a native library)"}
    return f"the worker was killed by {name}{likely.get(name, '')}"


class _Supervisor(MPServer):
    """Granian's parent process with a drain before its stop."""

    def __init__(self, manifest: Manifest, address: str, port: int, tls: Tls | None, outlet: Outlet) -> None:
        server = manifest.deployment.server
        self._outlet = outlet
        self._manifest = manifest
        self._address = address
        self._port = port
        self._tls = tls
        self._drain_s = float(server.drain_s)
        self._asked = False
        self._draining = False
        self.exit_codes: list[int | None] = []
        super().__init__(
            target="tailcut",
            address=address,
            port=port,
            interface=Interfaces.RSGI,
            workers=1,
            loop=Loops.uvloop,
            task_impl=TaskImpl.asyncio,
            http=HTTPModes.auto,
            http1_settings=HTTP1Settings(header_read_timeout=max(int(server.idle_s * 1e3), 1)),
            websockets=False,
            backlog=server.backlog,
            # Granian's name for it; it counts connections, not requests.
            backpressure=server.max_connections,
            log_level=LogLevels.warning,
            log_dictconfig=log_config(server.log, manifest.deployment.name),
            ssl_cert=tls.cert if tls else None,
            ssl_key=tls.key if tls else None,
            ssl_protocol_min=SSLProtocols.tls12,
            # A float works (it goes to Process.join) and kill_s need not be whole.
            workers_kill_timeout=max(float(server.kill_s) - self._drain_s, _LAST_S),  # type: ignore[arg-type]
        )
        self.main_loop_interrupt = Alert()  # type: ignore[assignment]  # granian calls set, clear and wait of it
        host = f"[{server.host}]" if ":" in server.host else server.host
        self._url = f"{'https' if tls else 'http'}://{host}:{port}"

    def run(self) -> None:
        """Serve; returns after a clean stop, raises SystemExit where a worker died."""
        # Inherited by the worker: told to drain before it listens for that, it must not die of it.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGUSR2, self._on_usr2)
        told = self._manifest, self._url, self._address, os.getpid(), self._outlet, self._port, self._tls
        self.serve(
            spawn_target=spawn if self._manifest.deployment.server.http2 else spawn_http1,
            target_loader=partial(_load, *told),
            wrap_loader=False,
        )

    def signal_handler_interrupt(self, *args: Any, **kwargs: Any) -> None:
        """Drain first; a second signal stops at once."""
        if not self._is_supervisor():
            return
        if self._asked:
            self._stop_now()
            return
        self._asked = True
        if self._drain_s > 0:
            log.info("draining for %g s; Ctrl-C or SIGTERM again stops now", self._drain_s)
        self._drain()

    def signal_handler_reload(self, *args: Any, **kwargs: Any) -> None:
        """Ignore it: a second worker beside the first would share its port, and connections be lost at the change."""
        if self._is_supervisor():
            log.warning("SIGHUP ignored; to reload, start a new server and stop this one with SIGTERM")

    def _on_usr2(self, *_: Any) -> None:
        """Take up the worker's word that it was told to stop. It may come before or after one's own SIGTERM."""
        if self._is_supervisor():
            self._drain()
        else:
            # In a worker that has not come to its own handlers: nothing is served that could be lost.
            os._exit(0)

    def _is_supervisor(self) -> bool:
        """False in a worker that was forked with these handlers and has not set its own yet."""
        return os.getpid() == self.pid

    def _drain(self) -> None:
        if self._draining:
            return
        self._draining = True
        if self._drain_s == 0:
            self._stop_now()
            return
        self._tell_workers(signal.SIGUSR1)
        timer = threading.Timer(self._drain_s, self._stop_now)
        timer.daemon = True
        timer.start()

    def _stop_now(self) -> None:
        super().signal_handler_interrupt()  # type: ignore[no-untyped-call]  # granian's is not annotated

    def _spawn_workers(self, *args: Any) -> None:
        super()._spawn_workers(*args)  # type: ignore[no-untyped-call]  # granian's is not annotated
        self._outlet.start()

    def _stop_workers(self) -> None:
        self.exit_codes = [worker.inner.exitcode for worker in self.wrks]
        for worker in self.wrks:
            worker.interrupt_by_parent = True
        self._tell_workers(STOP)
        self._wait_for_workers()
        # Sends SIGTERM too, which a worker that drains takes no notice of, and kills.
        super()._stop_workers()  # type: ignore[no-untyped-call]  # granian's is not annotated

    def _wait_for_workers(self) -> None:
        """Wait as long as they may take to end.

        Granian asks once, which may be between the moment at which its watcher's thread reaps a worker and the one at
        which that thread says so: it would say of a worker that has ended that it refused to.
        """
        over_s = time.monotonic() + self.workers_kill_timeout - _LAST_S  # type: ignore[operator]  # set above
        while any(worker.inner.is_alive() for worker in self.wrks) and time.monotonic() < over_s:
            time.sleep(0.005)
        self.workers_kill_timeout = _LAST_S  # type: ignore[assignment]  # what is left of it

    def _tell_workers(self, number: signal.Signals) -> None:
        for worker in self.wrks:
            if worker.inner.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(worker.inner.pid, number)


def _load(
    manifest: Manifest, url: str, address: str, supervisor_pid: int, outlet: Outlet, port: int, tls: Tls | None
) -> Any:
    """Make what serves HTTP, inside the worker."""
    outlet.leave()
    logs.take_over()
    if manifest.deployment.server.http2:
        return RSGIApplication(manifest, url, address, supervisor_pid)
    return Http1(Worker(manifest, url, address, supervisor_pid), address, port, tls)
