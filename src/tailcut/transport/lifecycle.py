"""``tailcut serve``: refuses what cannot be listened on, starts the worker under its supervisor, names its end."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import signal
import socket
from functools import partial
from importlib.util import find_spec

import uvloop

from tailcut import logs
from tailcut.errors import MissingExtra, StartError
from tailcut.manifest.host import HostManifest
from tailcut.protocol.access_log import check_log
from tailcut.protocol.auth import Guard
from tailcut.transport.http1.connection import Site
from tailcut.transport.http1.listener import Listener
from tailcut.transport.log_relay import Outlet
from tailcut.transport.supervisor import STOP, Supervisor
from tailcut.transport.tls import Tls, context_of, find_tls
from tailcut.transport.worker import EXIT_START_FAILED, Worker

# What is needed to listen, seen before the worker begins: an address, ports that nobody has, files for connections.

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
    guard = Guard.of(manifest, address=address)
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
            partial(_work, manifest, guard, address, listening, tls, outlet, os.getpid()),
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
    guard: Guard,
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
    worker, loop = Worker(manifest, guard, url, address, supervisor_pid), uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(_serve(worker, listening, tls, loop))


def _describe(exit_code: int) -> str:
    """Say how the worker ended, and what usually does that."""
    if exit_code >= 0:
        said = f"with code {exit_code}; the log lines above may name the cause" if exit_code else "by itself"
        return f"the worker ended {said}"
    name = signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else f"signal {-exit_code}"
    likely = {"SIGKILL": " (out of memory? see the kernel's log)", "SIGSEGV": " (a crash in a native library)"}
    return f"the worker was killed by {name}{likely.get(name, '')}"


async def _serve(worker: Worker, listening: socket.socket, tls: Tls | None, loop: asyncio.AbstractEventLoop) -> None:
    stopped = asyncio.Event()
    loop.add_signal_handler(STOP, stopped.set)
    site = Site(worker, loop)
    worker.host.observed.exposition.add(site.samples)
    listener = Listener(site, worker.server, listening, context_of(tls) if tls is not None else None)
    worker.begin(loop)
    listener.start()
    await stopped.wait()
    worker.host.end_streams()  # which would hold up the stop of the listener, which waits for open requests
    await listener.stop()
    await worker.end()


# -- Ports -------------------------------------------------------------------------------------------------------------


_FILES_BESIDES_CONNECTIONS = 256
"""For artifacts, databases, Redis, and what the hooks open."""


def find_address(host: str) -> str:
    """Return the IP address of a host's name; the IPv4 one where it has both kinds.

    Raises:
        StartError: the name has no address.
    """
    hint = "set server.host to an IP address of this machine: 127.0.0.1, 0.0.0.0 for all, ::1, :: for all"
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StartError(f'cannot listen on "{host}": {reason}', hint=hint) from error
    addresses = [str(sockaddr[0]) for *_, sockaddr in sorted(found, key=lambda one: one[0] != socket.AF_INET)]
    if "%" in addresses[0]:
        raise StartError(f'cannot listen on "{host}": {addresses[0]} is a link-local address', hint=hint)
    return addresses[0]


def check_grpc(address: str, grpc_port: int, http_port: int) -> None:
    """Refuse a gRPC port that is taken, or gRPC where its packages are missing. Imports none of them.

    Raises:
        StartError: one of the two.
    """
    if find_spec("grpc") is None:
        raise MissingExtra("server.grpc_port is set but grpcio is not installed", hint="pip install 'tailcut[grpc]'")
    if grpc_port == http_port:
        raise StartError(
            f"server.grpc_port is {grpc_port}, which is also the HTTP port", hint="choose another server.grpc_port"
        )
    _bound(address, grpc_port, "server.grpc_port").close()  # gRPC listens later


def listen(address: str, port: int, backlog: int) -> socket.socket:
    """Return a socket that listens; of port 0, on a free one.

    Raises:
        StartError: another process uses this port, or this one may not.
    """
    found = _bound(address, port, "--port")
    found.listen(backlog)
    return found


def _bound(address: str, port: int, setting: str) -> socket.socket:
    """Bind without SO_REUSEPORT: two servers could share a port silently, each getting a part of the requests."""
    found = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    # Only against the TIME_WAIT of an earlier run; a listening socket still refuses it.
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if found.family == socket.AF_INET6:
        found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        found.bind((address, port))
    except OSError as error:
        found.close()
        reason = "another process uses this port" if error.errno == errno.EADDRINUSE else error.strerror
        hint = f"stop the other process, or choose another port with {setting}"
        if setting == "--port":
            hint += " (0: any free port)"
        if error.errno == errno.EADDRNOTAVAIL:
            hint = "set server.host to an address of this machine, or to 0.0.0.0 for all of them"
        raise StartError(f"cannot listen on {address}:{port}: {reason}", hint=hint) from error
    return found


def allow_connections(max_connections: int) -> None:
    """Raise this process's limit of open files, which its worker inherits, to what the connections need.

    Says so in the log where the hard limit is below that: connections above it could not be accepted.
    """
    wanted = max_connections + _FILES_BESIDES_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning(
            "the limit of open files is %d, too low for server.max_connections = %d; raise it (ulimit -Hn, LimitNOFILE)"
            " or lower server.max_connections",
            hard,
            max_connections,
        )
