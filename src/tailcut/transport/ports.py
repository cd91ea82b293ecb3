"""What is needed to listen, seen before the worker begins: an address, ports that nobody has, files for connections."""

from __future__ import annotations

import errno
import logging
import resource
import socket
from importlib.util import find_spec

from tailcut.errors import MissingExtra, StartError

log = logging.getLogger("tailcut.server")

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
    probe_port(address, grpc_port, "server.grpc_port")


def probe_port(address: str, port: int, setting: str) -> None:
    """Bind a port once, for a server that begins to listen later.

    Args:
        address: an IP address.
        port: 0 to 65535.
        setting: what the user changes it with.

    Raises:
        StartError: another process uses this port, or this one may not.
    """
    _bound(address, port, setting).close()


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
