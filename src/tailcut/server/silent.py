"""Closes connections that never became requests, so that they cannot hold ``server.max_connections`` for good.

Granian closes an HTTP/1.1 connection whose request's head does not come in time, but only from its first byte on, and
only once it is clear that it speaks HTTP/1.1. Clients that connect and stay silent, or stop in the middle of a TLS or
HTTP/2 greeting, are found here, by what the kernel counts of each connection.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import struct
from contextlib import suppress

from tailcut.manifest import Manifest
from tailcut.server.connections import INFO_BYTES, duplicate, open_files

log = logging.getLogger("tailcut.server")

_LOOKS = 4
"""Per ``server.idle``: a silent connection lives at most a quarter longer."""

_AT_ONCE = 64
"""Connections that are looked at before the event loop goes on: about 0.3 ms."""

_PAUSE_S = 0.005

# Source: struct tcp_info of linux/tcp.h (Linux 4.6 and later).
_INFO_LAST_RECEIVED = 52  # ms since data came, or since the connection was made
_INFO_SEGMENTS = 152  # with data: received, sent
_ESTABLISHED = 1


class SilentConnections:
    """Looks at the connections of a port where at least half of what may be open is.

    Args:
        port: that clients connect to.
    """

    def __init__(self, manifest: Manifest, port: int) -> None:
        server = manifest.deployment.server
        self._port = port
        self._idle_s = float(server.idle_s)
        # No request takes longer than the longest deadline; behind it an answer was sent.
        self._mute_s = self._idle_s + float(server.max_timeout_s)
        self._many = max(server.max_connections // 2, 1)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look again and again, until the loop ends."""
        if hasattr(socket, "TCP_INFO"):
            loop.call_later(self._idle_s / _LOOKS, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        files = open_files()
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if len(files) < (self._many if most == resource.RLIM_INFINITY else min(self._many, most // 2)):
            self.watch(loop)
        else:
            self._sweep(loop, files, 0)

    def _sweep(self, loop: asyncio.AbstractEventLoop, files: list[int], closed: int) -> None:
        closed += sum(map(self._close_silent, files[:_AT_ONCE]))
        if len(files) > _AT_ONCE:
            loop.call_later(_PAUSE_S, self._sweep, loop, files[_AT_ONCE:], closed)
            return
        if closed:
            log.warning("closed %d connections that had sent no request for %g s (server.idle)", closed, self._idle_s)
        self.watch(loop)

    def _close_silent(self, file: int) -> bool:
        """Close a connection if it is silent; by a duplicate, which stays the same connection whatever happens."""
        with suppress(OSError), duplicate(file) as connection:
            if connection.family not in {socket.AF_INET, socket.AF_INET6} or connection.type != socket.SOCK_STREAM:
                return False
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
            if connection.getsockname()[1] == self._port and self._is_silent(info):
                connection.shutdown(socket.SHUT_RDWR)
                return True
        return False

    def _is_silent(self, info: bytes) -> bool:
        if len(info) < INFO_BYTES or info[0] != _ESTABLISHED:
            return False
        (since_ms,) = struct.unpack_from("=I", info, _INFO_LAST_RECEIVED)
        received, sent = struct.unpack_from("=II", info, _INFO_SEGMENTS)
        return not sent and since_ms >= 1e3 * (self._mute_s if received else self._idle_s)
