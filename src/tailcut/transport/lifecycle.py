"""``tailcut serve``: refuses what cannot be listened on, starts the worker under its supervisor, names its end."""

from __future__ import annotations

import logging
import os
import signal
import socket
from functools import partial

from tailcut import logs
from tailcut.manifest.host import HostManifest
from tailcut.protocol.access_log import check_log
from tailcut.protocol.auth import check_tokens
from tailcut.transport.http1.serving import serve_http1
from tailcut.transport.log_relay import Outlet
from tailcut.transport.ports import allow_connections, check_grpc, find_address, listen
from tailcut.transport.supervisor import Supervisor
from tailcut.transport.tls import Tls, find_tls
from tailcut.transport.worker import EXIT_START_FAILED, Worker

log = logging.getLogger("tailcut.server")

_EXIT_WORKER_DIED = 1


def serve(manifest: HostManifest) -> int:
    """Serve until a signal stops it.

    Returns:
        the exit code: 0 after a signal, 3 where no model could be loaded, 1 where the worker died.

    Raises:
        StartError: the host is no address of this machine, the port is taken or may not be used, or a file of tokens,
            certificates or the access log cannot be used.
    """
    server = manifest.server
    logs.configure(server.log, manifest.name)
    address = find_address(server.host)
    check_tokens(manifest)
    check_log(manifest)
    tls = find_tls(manifest)
    listening = listen(address, server.port, server.backlog)
    port = int(listening.getsockname()[1])
    if server.grpc_port:
        check_grpc(address, server.grpc_port, port)
    allow_connections(server.max_connections)
    with Outlet(server.log, manifest.name) as outlet:

        def on_started() -> None:
            listening.close()  # the worker's alone: when it stops listening, clients are to be refused
            outlet.start()

        supervisor = Supervisor(
            partial(_work, manifest, address, listening, tls, outlet, os.getpid()),
            drain_s=float(server.drain_s),
            kill_s=float(server.kill_s),
            on_started=on_started,
        )
        ended = supervisor.run()
        if ended.asked and (ended.exit_code == 0 or ended.killed):
            return 0
        if ended.exit_code == EXIT_START_FAILED:
            return ended.exit_code
        log.error("%s", _describe(ended.exit_code))
        return _EXIT_WORKER_DIED


def _work(
    manifest: HostManifest,
    address: str,
    listening: socket.socket,
    tls: Tls | None,
    outlet: Outlet,
    supervisor_pid: int,
) -> None:
    """Serve, in the worker process."""
    outlet.leave()
    host, port = manifest.server.host, listening.getsockname()[1]
    url = f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    serve_http1(Worker(manifest, url, address, supervisor_pid), listening, tls)


def _describe(exit_code: int) -> str:
    """Say how the worker ended, and what usually does that."""
    if exit_code >= 0:
        said = f"with code {exit_code}; the log lines above may name the cause" if exit_code else "by itself"
        return f"the worker ended {said}"
    name = signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else f"signal {-exit_code}"
    likely = {"SIGKILL": " (out of memory? see the kernel's log)", "SIGSEGV": " (a crash in a native library)"}
    return f"the worker was killed by {name}{likely.get(name, '')}"
