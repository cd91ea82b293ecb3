"""What the kernel knows of the connections of this process, which Granian keeps to itself."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from contextlib import suppress
from ipaddress import ip_address

INFO_BYTES = 160

# Source: struct tcp_info of linux/tcp.h (Linux 4.6 and later).
_INFO_ACKED = 120  # bytes, since the connection was made
_OPEN = {1, 8}  # established; the client has sent all that it will (CLOSE_WAIT)

_AT_ONCE = 64
"""Files that are looked at before the event loop goes on: about 0.3 ms."""


def open_files() -> list[int]:
    """Return the open files of this process; none where the system does not list them, or there is none left to."""
    with suppress(OSError):
        return [int(name) for name in os.listdir("/proc/self/fd")]
    return []


def duplicate(file: int) -> socket.socket:
    """Return another descriptor of a socket, which stays the same connection whatever happens to the first.

    Raises:
        OSError: the file is no socket, or no more.
    """
    own = os.dup(file)
    try:
        return socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise


async def find_connection(client: str) -> socket.socket | None:
    """Return a duplicate of the connection of a client; None where it is not found, as on a system without /proc.

    Args:
        client: "address:port", as Granian's ``scope.client``.
    """
    if not hasattr(socket, "TCP_INFO"):
        return None
    host, _, port = client.rpartition(":")
    wanted = _plain(host.strip("[]")), int(port)
    files = open_files()
    for start in range(0, len(files), _AT_ONCE):
        for file in files[start : start + _AT_ONCE]:
            with suppress(OSError):
                connection = duplicate(file)
                if _peer(connection) == wanted:
                    return connection
                connection.close()
        await asyncio.sleep(0)
    return None


def acked_bytes(connection: socket.socket) -> int | None:
    """Return how much the other side's kernel has taken since the connection was made; None where it is closed."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
    if len(info) < INFO_BYTES or info[0] not in _OPEN:
        return None
    (acked,) = struct.unpack_from("=Q", info, _INFO_ACKED)
    return int(acked)


def _peer(connection: socket.socket) -> tuple[str, int] | None:
    if connection.family not in {socket.AF_INET, socket.AF_INET6} or connection.type != socket.SOCK_STREAM:
        return None
    try:
        host, port, *_ = connection.getpeername()
    except OSError:  # it listens
        return None
    return _plain(host), port


def _plain(host: str) -> str:
    """Return an address without its zone, as one text for all that write it differently."""
    return str(ip_address(host.partition("%")[0]))
