"""One connection: its requests one after the other, each answered before the next begins.

Source: RFC 9112, 9.3 (persistence, pipelining) and 9.6 (tear-down); RFC 9110, 10.1.1 (Expect).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from httptools import HttpParserCallbackError

from tailcut.server.http import CLOSE, Reply
from tailcut.server.http1 import writing
from tailcut.server.http1.exchange import Exchange
from tailcut.server.http1.reading import Reader
from tailcut.server.http1.replying import Replies

if TYPE_CHECKING:
    from tailcut.server.http1.site import Site

log = logging.getLogger("tailcut.server")

_REST_S = 1.0
_REST_BYTES = 1024 * 1024
"""Of a body whose request was answered before it had come, and of what cannot be read."""


class Connection(asyncio.Protocol):
    """What the event loop calls, and what answers.

    Attributes:
        since_s: the loop's time since when a head has been waited for, or the client has not taken what was written;
            0.0 while a request is being answered.
        requests: that came.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._transport: Any = None
        self._reader = Reader(self, self._take, self._wait)
        self._current: Exchange | None = None
        self._next: asyncio.Future[Exchange | None] | None = None
        self._task: asyncio.Task[None] | None = None  # kept, because the loop does not keep it
        self._queue: deque[Exchange] = deque()
        self._is_begun = self._is_ending = self._is_in_head = self._is_lost = self._is_paused = False
        self._gone: asyncio.Event | None = None
        self._away_bytes = 0
        self.since_s = 0.0
        self.requests = 0

    @property
    def is_made(self) -> bool:
        """Whether it came to be one."""
        return self._transport is not None

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self._current is not None

    # -- of the event loop ----------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._replies = Replies(self._site, transport)
        self.since_s = self._site.loop.time()
        self._site.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._site.left(self)
        self._is_ending = self._is_lost = True
        if self._next is not None and not self._next.done():
            self._next.set_result(None)
        for exchange in (self._reader.arriving, self._current):
            if exchange is not None:
                exchange.gone()
        self._queue.clear()
        self._reader.close()
        self._replies.has_room()
        if self._gone is not None:
            self._gone.set()

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if self._is_ending or reader.failure is not None:
            self._throw_away(len(data))
            return
        try:
            reader.feed(data)
        except HttpParserCallbackError:
            log.exception("a request could not be taken up")
            self._transport.abort()
            return
        current = self._current
        if current is None:
            if not reader.is_in_head:
                self._is_in_head = False
            elif not self._is_in_head:
                self._is_in_head = True
                self.since_s = self._site.loop.time()  # from its first bytes on
            self._go_on()
        elif not self._is_begun:
            self._begin(current)
        elif current.is_full:
            self._pause()

    def pause_writing(self) -> None:
        self._replies.is_full = True
        if self._current is None:
            self.since_s = self._site.loop.time()

    def resume_writing(self) -> None:
        self._replies.has_room()
        if self._current is None:
            self._go_on()

    # -- of the reader and of exchanges ---------------------------------------------------------------------------

    def _take(self, exchange: Exchange) -> None:
        self.requests += 1
        self._is_in_head = False
        if self._current is None and not self._replies.is_full:
            self._current = exchange
            self.since_s = 0.0
        else:
            self._queue.append(exchange)
            self._pause()

    def wants_body(self, exchange: Exchange) -> None:
        """Tell a client that waits for it to send the body of the request that is being answered."""
        reader = self._reader
        if exchange is reader.arriving and not reader.begun_bytes and not self._is_ending:
            expected = exchange.headers.get("expect")
            if expected is not None and expected.lower() == "100-continue" and not exchange.old:
                reader.begun_bytes = 1  # so that it is told once
                self._transport.write(writing.CONTINUE)

    def has_room(self) -> None:
        """Read on, where nothing else is against it."""
        if self._is_paused and not self._queue and not self._is_ending:
            self._is_paused = False
            self._transport.resume_reading()

    def threw_away(self, size_bytes: int) -> None:
        """Take notice of what came of a body that nobody wants."""
        if size_bytes > _REST_BYTES:
            self._end()

    async def lost(self) -> None:
        """Return when the connection is closed."""
        if self._transport.is_closing():
            return
        if self._gone is None:
            self._gone = asyncio.Event()
        await self._gone.wait()

    # -- one request after the other ------------------------------------------------------------------------------

    def _begin(self, exchange: Exchange) -> None:
        self._is_begun = True
        self._site.company.coming += 1
        if self._next is None:
            self._task = self._site.loop.create_task(self._serve(exchange))
        else:
            self._next.set_result(exchange)

    async def _serve(self, first: Exchange) -> None:
        """Answer the requests of this connection; a task for each would cost more than reading it."""
        site = self._site
        exchange: Exchange | None = first
        while exchange is not None:
            site.company.coming -= 1
            keep = await self._answer(exchange)
            if self._is_lost:
                return
            self._next = site.loop.create_future()
            self._done(exchange, keep=keep)
            exchange = await self._next

    async def _answer(self, exchange: Exchange) -> bool:
        """Answer one request; whether another may follow."""
        try:
            reply = await self._site.handle(exchange.method, exchange.path, exchange.headers, exchange)
            keep = self._keeps(exchange, reply)
            if reply.chunks is not None:
                return await self._replies.stream(exchange, reply, reply.chunks, keep=keep) and keep
            self._replies.write(exchange, reply, keep=keep)
        except asyncio.CancelledError:
            self._transport.abort()
            raise
        except Exception:
            log.exception("a reply could not be written")
            self._transport.abort()
            return False
        return keep

    def _keeps(self, exchange: Exchange, reply: Reply) -> bool:
        """Whether the connection stays open behind a reply."""
        if not exchange.keep_alive or self._site.is_leaving or CLOSE in reply.headers:
            return False
        if exchange.old and reply.chunks is not None:
            return False  # nothing else says where a body of unknown length ends
        if exchange.is_whole:
            return True  # what cannot be read, if anything, came later, and is told so
        # Who waits to be told to send a body may send it or not: what comes next cannot be told from it.
        is_coming = self._reader.begun_bytes > 0 or exchange.headers.get("expect") is None
        return is_coming and self._reader.failure is None

    def _done(self, exchange: Exchange, *, keep: bool) -> None:
        """Go on behind the reply to a request."""
        self._current = None
        self._is_begun = False
        if not keep or self._site.is_stopping:
            self._end()
        elif exchange.is_whole:
            if self._queue or self._replies.is_full or self._reader.failure is not None:
                self._go_on()
            else:
                self.since_s = self._site.loop.time()
        elif not self._transport.is_closing():
            exchange.drop()
            self.has_room()
            self._site.loop.call_later(_REST_S, self._give_up, exchange)

    def _go_on(self) -> None:
        """Begin the next request, if it is there and the client takes what it is sent."""
        if self._is_ending:
            return
        if self._replies.is_full:
            self._wait()
        elif self._queue:
            self._current = self._queue.popleft()
            self.since_s = 0.0
            self._begin(self._current)
            if not self._current.is_full:
                self.has_room()
        elif self._reader.failure is not None:
            self._replies.refuse(self._reader.failure)
            self._end()
        elif self._reader.arriving is None:
            self._wait()

    def _wait(self) -> None:
        """Wait for the client; ``sweep`` says for how long."""
        if not self.since_s:
            self.since_s = self._site.loop.time()

    def _give_up(self, exchange: Exchange) -> None:
        """Close a connection on which the rest of a body, whose request was answered, does not come."""
        if exchange is self._reader.arriving:
            self._end()

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _throw_away(self, size_bytes: int) -> None:
        self._away_bytes += size_bytes
        if self._away_bytes > _REST_BYTES:
            self._pause()

    # -- the end --------------------------------------------------------------------------------------------------

    def end_idle(self) -> None:
        """Close the connection unless a request is being answered; then its reply is the last."""
        if self._current is None:
            self._end()

    def sweep(self, before_s: float) -> bool:
        """Close the connection if its client has let it wait since before a time; whether that was so."""
        if not 0.0 < self.since_s < before_s:
            return False
        if self._is_ending or self._replies.is_full:
            self._transport.abort()
        else:
            self._end()
        return True

    def _end(self) -> None:
        """Close behind what was written. Data that nobody reads would have the client see a reset and no reply."""
        if self._is_ending:
            return
        self._is_ending = True
        self.since_s = self._site.loop.time()
        if self._reader.arriving is None and self._reader.failure is None:
            self._transport.close()
            return
        self._away_bytes = 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._site.loop.call_later(_REST_S, self._transport.close)
