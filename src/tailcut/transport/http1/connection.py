"""One connection: its requests one after the other, each answered before the next begins.

Source: RFC 9112, 9.3 (persistence, pipelining) and 9.6 (tear-down); RFC 9110, 10.1.1 (Expect).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from tailcut.errors import Shed
from tailcut.protocol.http import CLOSE, Reply
from tailcut.transport.http1 import writing
from tailcut.transport.http1.exchange import Exchange
from tailcut.transport.http1.incoming import REST_BYTES, Incoming
from tailcut.transport.http1.replying import Replies

if TYPE_CHECKING:
    from tailcut.transport.http1.site import Site

log = logging.getLogger("tailcut.server")

_SHED_PAUSE_S = 0.01
"""Who was refused and comes back at once is read again after a moment: a few such clients would have most of a core."""

_REST_S = 1.0
"""For the rest of a body whose request was answered before it had come, and for the client to read the last reply."""


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
        self._incoming = Incoming(self)
        self._current: Exchange | None = None
        self._next: asyncio.Future[bool] | None = None
        self._task: asyncio.Task[None] | None = None  # kept, because the loop does not keep it
        self._is_ending = self._is_in_head = self._is_lost = self._is_shed = False
        self._gone: asyncio.Event | None = None
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
        self._incoming.begin(transport)
        self._replies = Replies(self._site, transport)
        self.since_s = self._site.loop.time()
        self._site.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._site.left(self)
        self._is_ending = self._is_lost = True
        if self._next is not None and not self._next.done():
            self._next.set_result(False)
        for exchange in (self._incoming.reader.arriving, self._current):
            if exchange is not None:
                exchange.gone()
        self._current = None
        self._incoming.close()
        self._replies.has_room()
        if self._gone is not None:
            self._gone.set()

    def data_received(self, data: bytes) -> None:
        incoming = self._incoming
        if self._is_ending or incoming.reader.failure is not None:
            incoming.throw_away(len(data))
            return
        try:
            incoming.read(data)
        except Exception:
            self._fail("a request could not be taken up")
        self._turn()

    def pause_writing(self) -> None:
        self._replies.fill()
        if self._current is None:
            self.since_s = self._site.loop.time()

    def resume_writing(self) -> None:
        self._replies.has_room()
        if self._current is None and not self._is_ending:
            self.since_s = self._site.loop.time()  # it kept up until now
        self._turn()

    # -- of exchanges ---------------------------------------------------------------------------------------------

    def wants_body(self, exchange: Exchange) -> None:
        """Tell a client that waits for it to send the body of the request that is being answered."""
        reader = self._incoming.reader
        if exchange is reader.arriving and not reader.begun_bytes and not self._transport.is_closing():
            expected = exchange.headers.get("expect")
            if expected is not None and expected.lower() == "100-continue" and not exchange.old:
                reader.begun_bytes = 1  # so that it is told once
                self._transport.write(writing.CONTINUE)

    def has_room(self) -> None:
        """Read on, or no more for now."""
        if not self._is_ending:
            self._incoming.go_on()

    def threw_away(self, size_bytes: int) -> None:
        """Count bytes of a body that is discarded."""
        if size_bytes > REST_BYTES:
            self._end()

    async def lost(self) -> None:
        """Return when the connection is closed."""
        if self._transport.is_closing():
            return
        if self._gone is None:
            self._gone = asyncio.Event()
        await self._gone.wait()

    # -- one request after the other ------------------------------------------------------------------------------

    def _turn(self, is_over: bool = False) -> None:
        """Go on with what has come already; ``is_over``: a refusal's pause."""
        self._is_shed = self._is_shed and not is_over
        if self._current is None and not (self._is_ending or self._is_shed):
            try:
                self._go_on()
            except Exception:
                self._fail("a request could not be taken up")
        self.has_room()

    def _go_on(self) -> None:
        """Begin the next request, if it is there and the client takes what it is sent."""
        if self._replies.is_full:
            self.wait()
            return
        self._current = exchange = self._incoming.next()
        reader = self._incoming.reader
        if self._is_ending:  # by what it read
            self._current = None
        elif exchange is not None:
            self.requests += 1
            self._is_in_head = False
            self.since_s = 0.0
            self._wake()
        elif reader.failure is not None:
            if not reader.was_answered:
                self._replies.refuse(reader.failure)
            self._end()
        elif reader.is_in_head:
            if not self._is_in_head:
                self._is_in_head = True
                self.since_s = self._site.loop.time()  # from its first bytes on
        elif reader.arriving is None:
            self.wait()

    def _wake(self) -> None:
        """Have the current request answered, in the next turn of the loop."""
        if self._next is None:
            self._site.in_flight_count.coming += 1
            self._task = self._site.loop.create_task(self._serve())
        elif not self._next.done():  # else the client has gone
            self._site.in_flight_count.coming += 1
            self._next.set_result(True)

    async def _serve(self) -> None:
        """Answer the requests of this connection; a task for each would cost more than reading it.

        It keeps nothing of a request while it waits for the next one, which may be long.
        """
        site = self._site
        is_more = True
        while is_more:
            site.in_flight_count.coming -= 1
            keep = await self._answer()
            if self._is_lost:
                return
            self._next = site.loop.create_future()
            try:
                self._done(keep=keep)
            except Exception:
                self._fail("a connection could not go on")
            is_more = await self._next

    async def _answer(self) -> bool:
        """Answer the current request; whether another may follow."""
        exchange = self._current
        if exchange is None:
            return False  # the client has gone
        try:
            reply = await self._site.handle(exchange.method, exchange.path, exchange.headers, exchange)
            keep = self._keeps(exchange, reply)
            if reply.chunks is not None:
                return await self._replies.stream(exchange, reply, reply.chunks, keep=keep) and keep
            self._replies.write(exchange, reply, keep=keep)
            self._is_shed = reply.status == Shed.status and keep
        except asyncio.CancelledError:
            self._transport.abort()
            raise
        except Exception:
            self._fail("a reply could not be written")
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
        if self._incoming.lacks(exchange) > REST_BYTES:
            return False  # so it is told, and not only closed while more comes than is thrown away
        reader = self._incoming.reader
        return (reader.begun_bytes > 0 or exchange.headers.get("expect") is None) and reader.failure is None

    def _done(self, *, keep: bool) -> None:
        """Go on behind the reply to the current request."""
        exchange, self._current = self._current, None
        if exchange is None or not keep or self._site.is_stopping:
            self._end()
            return
        if not exchange.is_whole:
            exchange.drop()
            self._site.loop.call_later(_REST_S, self._give_up, exchange)
        if self._is_shed:
            self.wait()
            self._site.loop.call_later(_SHED_PAUSE_S, self._turn, True)
        # In a turn of its own: other connections have theirs between two requests of this one.
        elif self._incoming.is_quiet and not self._replies.is_full:
            self.since_s = self._site.loop.time() if exchange.is_whole else 0.0
            self._is_in_head = self._incoming.reader.is_in_head
        else:
            self._site.loop.call_soon(self._turn)

    def wait(self) -> None:
        """Wait for the client; ``sweep`` says for how long."""
        if not self.since_s:
            self.since_s = self._site.loop.time()

    def _give_up(self, exchange: Exchange) -> None:
        """Close a connection on which the rest of a body, whose request was answered, does not come."""
        if exchange is self._incoming.reader.arriving:
            self._end()

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
            if not self._replies.give_up():
                self.since_s = self._site.loop.time()
                return False
        else:
            self._end()
        return True

    def _end(self) -> None:
        """Close behind what was written. Data that nobody reads would have the client see a reset and no reply."""
        if self._is_ending or self._transport.is_closing():
            return
        self._is_ending = True
        self.since_s = self._site.loop.time()
        if self._incoming.reader.arriving is None and self._incoming.is_quiet:
            self._transport.close()
            return
        self._incoming.read_away()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._site.loop.call_later(_REST_S, self._transport.close)

    def _fail(self, what: str) -> None:
        log.exception(what)  # a fault of ours: this is called in its handler
        self._is_ending = True
        self._transport.abort()
