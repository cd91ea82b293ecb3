"""Replies onto a connection: whole ones at once, streamed ones no faster than their client takes them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from tailcut.errors import TailcutError
from tailcut.protocol.http import CLOSE, Chunks, Headers, Reply, error_reply
from tailcut.transport.http1 import writing
from tailcut.transport.http1.exchange import Exchange

if TYPE_CHECKING:
    from tailcut.transport.http1.site import Site

log = logging.getLogger("tailcut.server")

_COPIED_BYTES = 64 * 1024
"""Of a body that is joined to its head, for one call less."""

_LOOK_S = 0.1
_LAST_S = 2.0
"""Behind the end of a stream that its client did not keep up with, for what is on its way; then it is cut off."""


class Replies:
    """What is written to one connection.

    Attributes:
        is_full: whether the client is behind with what was written.
    """

    __slots__ = ("_left_bytes", "_room", "_site", "_transport", "is_full")

    def __init__(self, site: Site, transport: Any) -> None:
        self._site = site
        self._transport = transport
        self._room: asyncio.Event | None = None
        self._left_bytes = 0  # that the client had not taken when that was last looked at
        self.is_full = False

    def fill(self) -> None:
        """Note that the client is behind."""
        self.is_full = True
        self._left_bytes = self._transport.get_write_buffer_size()

    def has_room(self) -> None:
        """Note that the client has caught up, or is gone."""
        self.is_full = False
        if self._room is not None:
            self._room.set()

    def write(self, exchange: Exchange, reply: Reply, *, keep: bool) -> None:
        """Write a whole reply.

        Args:
            keep: whether the connection stays open; else the reply says that it does not.
        """
        transport = self._transport
        if transport.is_closing():
            return
        body = reply.body
        framing = self._framing(exchange, reply.headers, keep=keep)
        head = writing.head(reply.status, reply.headers, framing, len(body))
        if exchange.method == "HEAD":
            transport.write(head)
        elif len(body) < _COPIED_BYTES:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)

    def refuse(self, error: TailcutError) -> None:
        """Write the reply to what could not be read as a request."""
        if self._transport.is_closing():
            return
        self._site.refused(error)
        reply = error_reply(error)
        framing = f"connection: close\r\n{self._site.date()}"
        self._transport.write(writing.head(reply.status, reply.headers, framing, len(reply.body)) + reply.body)

    async def stream(self, exchange: Exchange, reply: Reply, chunks: Chunks, *, keep: bool) -> bool:
        """Send a body as it is made; whether its client took it.

        A client that does not keep up is waited for until the deadline, when what makes the body says so and ends.
        """
        transport = self._transport
        is_late = False
        try:
            if transport.is_closing():
                return False
            framing = "" if exchange.old else "transfer-encoding: chunked\r\n"
            framing += self._framing(exchange, reply.headers, keep=keep)
            transport.write(writing.head(reply.status, reply.headers, framing))
            async for piece in chunks:
                if transport.is_closing():
                    return False
                transport.write(piece if exchange.old else writing.chunk(piece))
                if self.is_full and not is_late:
                    is_late = not await self._has_room_in(chunks)
            if not exchange.old and not transport.is_closing():
                transport.write(writing.LAST_CHUNK)
        finally:
            await chunks.aclose()
        if is_late and self.is_full:
            self._site.loop.call_later(_LAST_S, self._cut_off)
        return not is_late

    def _framing(self, exchange: Exchange, headers: Headers, *, keep: bool) -> str:
        """Return the lines that say when it is and whether the connection stays open."""
        date = self._site.date()
        if keep:
            return f"{date}connection: keep-alive\r\n" if exchange.old else date
        return date if CLOSE in headers else f"{date}connection: close\r\n"

    async def _has_room_in(self, chunks: Chunks) -> bool:
        """Wait for the client to take what was sent; False where the deadline comes first."""
        if self._room is None:
            self._room = asyncio.Event()
        while self.is_full and not self._transport.is_closing():
            left_s = chunks.left_s()  # which falls to nothing when the server stops
            if left_s <= 0:
                return False
            self._room.clear()
            try:
                async with asyncio.timeout(min(left_s, _LOOK_S)):
                    await self._room.wait()
            except TimeoutError:
                continue
        return True

    def give_up(self) -> bool:
        """Cut off a client that took nothing of what was sent since the last look; whether that was so.

        While the server stops nobody is waited for.
        """
        left_bytes = self._transport.get_write_buffer_size()
        if 0 < left_bytes < self._left_bytes and not self._site.is_stopping:
            self._left_bytes = left_bytes
            return False
        if left_bytes:
            log.info("closed a connection whose client did not read the reply: %d bytes were left", left_bytes)
        self._transport.abort()
        return True

    def _cut_off(self) -> None:
        """Close a connection that still holds what was sent; nothing else frees that while the client stays."""
        if self.is_full:
            log.info("closed a connection whose client did not read the stream that it had asked for")
            self._transport.abort()
