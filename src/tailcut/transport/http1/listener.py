"""Accepts connections up to a limit, closes those on which nothing comes, and ends them all at the stop."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl

from tailcut.manifest import ServerSettings
from tailcut.transport.http1.connection import Connection, Site

log = logging.getLogger("tailcut.server")

_AT_ONCE = 64
"""Connections that are accepted before the event loop goes on."""

_AGAIN_S = 0.1
"""Until the next try, where there was no file descriptor left for a connection."""

_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

_UNSENT_BYTES = 256 * 1024
"""Of replies in the kernel, beside what is on its way."""

_LOOKS = 8
"""Per ``server.idle``: a silent connection lives at most an eighth longer."""

_LONGEST_LOOK_S = 5.0
_LAST_S = 1.0
"""For clients to take the last replies, at the stop."""


class Listener:
    """A port of this process.

    Args:
        listening: bound, and listening.
        context: of TLS; None for plain HTTP.
    """

    def __init__(
        self, site: Site, server: ServerSettings, listening: socket.socket, context: ssl.SSLContext | None
    ) -> None:
        self._site = site
        self._loop = site.loop
        self._socket = listening
        self._socket.setblocking(False)
        # Connections inherit it. Without it the kernel takes up to 4 MB for a client that does not read.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        self._context = context
        self._idle_s = float(server.idle_s)
        self._most = server.max_connections
        self._open = 0
        self._is_accepting = False
        self._is_closed = False
        self._ended = asyncio.Event()
        self._looking: asyncio.TimerHandle | None = None
        self._admitting: set[asyncio.Task[None]] = set()
        site.on_left = self._left

    def start(self) -> None:
        """Accept connections from now on."""
        self._resume()
        self._look()

    async def stop(self) -> None:
        """Accept none any more, wait until all requests that are being answered are, and close all connections."""
        self._is_closed = True
        self._pause()
        self._socket.close()
        self._site.is_stopping = self._site.is_leaving = True
        for connection in list(self._site.connections):
            connection.end_idle()
        self._look()  # from here on, for clients that do not take their last reply
        # What is left when nobody is being answered any more ends with this process, as the middle of a handshake.
        while self._open and not await self._has_ended():
            if not any(connection.is_busy for connection in self._site.connections):
                return

    async def _has_ended(self) -> bool:
        """Wait for all connections to end, but not for long; whether they have."""
        try:
            async with asyncio.timeout(2 * _LAST_S):
                return await self._ended.wait()
        except TimeoutError:
            return False

    # -- accepting ------------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        if not self._is_accepting and not self._is_closed and self._open < self._most:
            self._is_accepting = True
            self._loop.add_reader(self._socket, self._accept)

    def _pause(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            self._loop.remove_reader(self._socket)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            if self._open >= self._most:
                self._pause()  # until one ends
                return
            try:
                accepted, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._pause()
                    self._loop.call_later(_AGAIN_S, self._resume)
                    return
                log.debug("a connection was lost before it was accepted: %s", error)  # accept(2): treat it as EAGAIN
                continue
            accepted.setblocking(False)
            self._open += 1
            connection = Connection(self._site)
            task = self._loop.create_task(self._admit(accepted, connection))
            self._admitting.add(task)
            task.add_done_callback(self._admitting.discard)

    async def _admit(self, accepted: socket.socket, connection: Connection) -> None:
        """Give a connection to the event loop; over TLS once the client has shown that it speaks that."""
        waiting_s = self._idle_s if self._context is not None else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._context, ssl_handshake_timeout=waiting_s
            )
        except OSError as error:  # of which TimeoutError and ssl.SSLError are some
            log.debug("a connection ended before its first request: %s", error)
        finally:
            if not connection.is_made:
                accepted.close()
                self._left()

    def _left(self) -> None:
        self._open -= 1
        self._resume()
        if not self._open and self._is_closed:
            self._ended.set()

    # -- connections on which nothing comes -----------------------------------------------------------------------

    def _look(self) -> None:
        patience_s = _LAST_S if self._is_closed else self._idle_s
        before_s = self._loop.time() - patience_s
        many = self._open >= max(self._most // 2, 1)
        silent = 0
        for connection in list(self._site.connections):
            if connection.sweep(before_s) and not connection.requests:
                silent += 1
        if silent and many and not self._is_closed:
            log.warning("closed %d connections that had sent no request for %g s (server.idle)", silent, patience_s)
        if self._looking is not None:
            self._looking.cancel()
        self._looking = self._loop.call_later(min(patience_s / _LOOKS, _LONGEST_LOOK_S), self._look)
