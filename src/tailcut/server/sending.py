"""Sends a streamed answer over Granian's RSGI, no faster than its client takes it.

Granian's ``send_bytes`` does not wait for the client: what is not taken grows in its memory. What the client has taken
is asked of the kernel, once a stream is long enough for it to matter.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import closing, suppress
from typing import Any

from tailcut.server.connections import acked_bytes, find_connection
from tailcut.server.http import Chunks, Reply

log = logging.getLogger("tailcut.server")

_AHEAD_BYTES = 256 * 1024
"""That may be on their way to a client: as much per round trip, so 2.5 MB/s over 100 ms. A stream holds at most twice
that, and what one part has."""

_FIRST_LOOK_S = 0.001
_LONGEST_LOOK_S = 0.05

_REST_S = 2.0
"""Behind the end of a stream that its client did not keep up with, for what is on its way; then it is cut off."""


async def send_stream(client: str, protocol: Any, reply: Reply, chunks: Chunks) -> None:
    """Send a body as it is made; what makes it is closed at its end, or when the client is gone.

    A client that does not keep up is waited for until the deadline, when what makes the body says so and ends.

    Args:
        client: address and port, as Granian's ``scope.client``.
    """
    with closing(_Room(client)) as room:
        try:
            transport = protocol.response_stream(reply.status, reply.headers)
            async for chunk in chunks:
                await transport.send_bytes(chunk)
                if room.is_full(len(chunk)):
                    await room.wait(chunks)
        except RuntimeError:
            log.debug("the client was gone before its reply was written to its end")
        finally:
            await chunks.aclose()


class _Room:
    """What of a stream is on its way to its client, at least.

    Other answers on an HTTP/2 connection, and what TLS and HTTP add, count as taken, too: over HTTP/2 a client can hold
    one stream up and take others, and what it holds then is limited by ``server.max_stream`` alone.
    """

    def __init__(self, client: str) -> None:
        self._client = client
        self._connection: socket.socket | None = None
        self._is_known = True
        self._is_late = False
        self._sent = 0
        self._acked = 0
        self._taken = 0

    def is_full(self, size_bytes: int) -> bool:
        """Count what was sent; whether so much is on its way that it should be waited for."""
        self._sent += size_bytes
        return self._sent - self._taken > _AHEAD_BYTES and self._is_known

    async def wait(self, chunks: Chunks) -> None:
        """Wait until there is room, the deadline has passed, or the connection is closed."""
        if self._connection is None and not await self._find():
            return
        pause_s = _FIRST_LOOK_S
        while self._look() and self._sent - self._taken > _AHEAD_BYTES:
            self._is_late = chunks.left_s() <= 0
            if self._is_late:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_LOOK_S)

    def close(self) -> None:
        """Let the connection go; one whose client did not keep up until the deadline gets a little more time."""
        if self._connection is None:
            return
        if self._is_late:
            asyncio.get_running_loop().call_later(_REST_S, self._cut_off, self._connection)
        else:
            self._connection.close()

    def _cut_off(self, connection: socket.socket) -> None:
        """Close a connection that still holds what was sent; nothing else frees that while the client stays."""
        with connection, suppress(OSError):  # it was closed just now
            if self._look() and self._sent > self._taken:
                connection.shutdown(socket.SHUT_RDWR)
                log.info("closed a connection whose client did not read the stream that it had asked for")

    async def _find(self) -> bool:
        """Find the connection and begin to count; what was sent until now counts as taken."""
        self._connection = await find_connection(self._client)
        acked = acked_bytes(self._connection) if self._connection is not None else None
        self._is_known = acked is not None
        self._acked, self._sent, self._taken = acked or 0, 0, 0
        return self._is_known

    def _look(self) -> bool:
        """Count anew; False where the connection is closed."""
        assert self._connection is not None
        acked = acked_bytes(self._connection)
        if acked is None:
            self._is_known = False
            return False
        if acked - self._acked >= self._sent:  # all is taken: what else was taken is no credit
            self._acked, self._sent, self._taken = acked, 0, 0
        else:
            self._taken = acked - self._acked
        return True
