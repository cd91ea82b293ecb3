"""One connection: reads its requests, answers them one after the other, and ends it.

A state machine with three parts: ``Connection`` decides whose turn it is and when the connection ends, ``Incoming``
reads and stops reading, ``Replies`` writes no faster than the client takes it. ``Site`` is what all connections share.

Source: RFC 9112, 9.3 (persistence, pipelining) and 9.6 (tear-down); RFC 9110, 10.1.1 (Expect).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from tailcut.errors import Shed, TailcutError
from tailcut.observe.sample import Sample, counter
from tailcut.protocol.http import CLOSE, Chunks, Headers, Reply, error_reply
from tailcut.transport.http1.reading import Exchange, Reader

if TYPE_CHECKING:
    from tailcut.transport.worker import Worker

PARSE_ERRORS = counter("tailcut_http_parse_errors", "Malformed HTTP/1.1 requests, by error code.", "code", of_host=True)

log = logging.getLogger("tailcut.server")

_SHED_PAUSE_S = 0.01
"""Who was refused and comes back at once is read again after a moment: a few such clients would have most of a core."""

_REST_S = 1.0
"""For the rest of a body whose request was answered before it had come, and for the client to read the last reply."""


class Site:
    """The routes, the connections that are open, and whether they are to end.

    Attributes:
        handle: answers one request.
        arrivals: see ``Worker``.
        is_leaving: whether clients are told to connect anew, elsewhere.
        is_stopping: whether every reply is the last on its connection.
        on_left: called when a connection has ended.
    """

    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.handle = worker.handle
        self.arrivals = worker.arrivals
        self.connections: set[Connection] = set()
        self.is_leaving = self.is_stopping = False
        worker.on_drain = self.leave
        self.on_left: Callable[[], None] = _nothing
        self._refused: Counter[str] = Counter()
        self._date = ""
        self._date_until_s = 0.0

    def leave(self) -> None:
        """Have every reply be the last on its connection from now on."""
        self.is_leaving = True

    def left(self, connection: Connection) -> None:
        """Note that a connection has ended."""
        self.connections.discard(connection)
        self.on_left()

    def refused(self, error: TailcutError) -> None:
        """Count what could not be read as a request: no route hears of it. The first of each kind is logged."""
        self._refused[error.code] += 1
        if self._refused[error.code] == 1:
            log.warning("refused one or more malformed requests: %s; %s", error.message, error.hint)

    def samples(self) -> Iterator[Sample]:
        """Yield what /metrics shows."""
        for code, count in sorted(self._refused.items()):
            yield PARSE_ERRORS(count, code)

    def date(self) -> str:
        """Return the header that says when a reply was made (RFC 9110, 6.6.1), to the second."""
        now_s = self.loop.time()
        if now_s >= self._date_until_s:
            wall_s = time.time()
            self._date = f"date: {formatdate(wall_s, usegmt=True)}\r\n"
            self._date_until_s = now_s + 1.0 - wall_s % 1.0
        return self._date


def _nothing() -> None:
    """Do nothing."""


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
        self._incoming = Incoming(self, transport)
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
                self._transport.write(CONTINUE)

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
            self._site.arrivals.coming += 1
            self._task = self._site.loop.create_task(self._serve())
        elif not self._next.done():  # else the client has gone
            self._site.arrivals.coming += 1
            self._next.set_result(True)

    async def _serve(self) -> None:
        """Answer the requests of this connection; a task for each would cost more than reading it.

        It keeps nothing of a request while it waits for the next one, which may be long.
        """
        site = self._site
        is_more = True
        while is_more:
            site.arrivals.coming -= 1
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


_PIECE_BYTES = 16 * 1024
"""That are read before it is seen whether requests wait for their turn: small ones in it take milliseconds to read."""

REST_BYTES = 1024 * 1024
"""Of a body whose request was answered before it had come, on a connection that goes on."""

_LAST_BYTES = 32 * REST_BYTES
"""Of what comes behind the last request while the client has time to read its reply: many read none before they have
sent all of theirs, and would be told of a broken pipe."""


class Incoming:
    """Reads a connection, and stops reading it while requests wait or a body is not taken.

    Attributes:
        reader: what has been read up to now.
        queue: requests that wait for their turn.
    """

    __slots__ = ("_away_bytes", "_held", "_is_paused", "_transport", "queue", "reader")

    def __init__(self, wire: Connection, transport: Any) -> None:
        self.queue: deque[Exchange] = deque()
        self.reader = Reader(wire, self.queue.append)
        self._held = b""  # behind requests that wait for their turn
        self._is_paused = False
        self._away_bytes = 0
        self._transport = transport

    def close(self) -> None:
        """Let go of all that came."""
        self.queue.clear()
        self._held = b""
        self.reader.close()

    def read(self, data: bytes) -> None:
        """Read what came, until a second request waits for its turn; the rest is held."""
        if self._held:
            self._held += data
        elif len(data) <= _PIECE_BYTES:
            self.reader.feed(data)
        else:
            self._read_on(data)

    def next(self) -> Exchange | None:
        """Return the request whose turn it is; None where there is none."""
        self._read_held()
        exchange = self.queue.popleft() if self.queue else None
        self._read_held()  # its body may be in what is held
        return exchange

    def _read_held(self) -> None:
        if self._held and not self.queue:
            held, self._held = self._held, b""
            self._read_on(held)

    def _read_on(self, data: bytes) -> None:
        reader = self.reader
        for start in range(0, len(data), _PIECE_BYTES):
            if reader.failure is not None:
                return
            if len(self.queue) > 1:
                self._held = data[start:]
                return
            reader.feed(data[start : start + _PIECE_BYTES])

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to go on with."""
        return not (self.queue or self._held or self._is_paused) and self.reader.failure is None

    def lacks(self, exchange: Exchange) -> int:
        """How many bytes of a request's body are still to come, by the length that it was declared with."""
        declared = exchange.headers.get("content-length") or ""
        if exchange is not self.reader.arriving or not declared.isdecimal():
            return 0
        return int(declared) - self.reader.begun_bytes

    # -- how much is read -----------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Have the transport read, or not, as what came and was not taken asks for."""
        arriving = self.reader.arriving
        if self.queue or self._held or (arriving is not None and arriving.is_full):
            self.pause()
        elif self._is_paused:
            self.resume()

    def throw_away(self, size_bytes: int) -> None:
        """Count bytes behind the last request, for as long as it is not too much."""
        self._away_bytes += size_bytes
        if self._away_bytes > _LAST_BYTES:
            self.pause()

    def read_away(self) -> None:
        """Read what else comes, to throw it away."""
        self._away_bytes = 0
        self._held = b""
        self.queue.clear()
        if self._is_paused:
            self.resume()

    def pause(self) -> None:
        """Leave what else comes to the kernel, and by it to the client."""
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self._is_paused = False
        self._transport.resume_reading()


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
        head = reply_head(reply.status, reply.headers, framing, len(body))
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
        self._transport.write(reply_head(reply.status, reply.headers, framing, len(reply.body)) + reply.body)

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
            transport.write(reply_head(reply.status, reply.headers, framing))
            async for piece in chunks:
                if transport.is_closing():
                    return False
                transport.write(piece if exchange.old else chunk(piece))
                if self.is_full and not is_late:
                    is_late = not await self._has_room_in(chunks)
            if not exchange.old and not transport.is_closing():
                transport.write(LAST_CHUNK)
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
        """Close the connection of a client that has read nothing since the last call; return whether it was closed.

        While the server stops, a client with unread data is disconnected at once.
        """
        left_bytes = self._transport.get_write_buffer_size()
        if 0 < left_bytes < self._left_bytes and not self._site.is_stopping:
            self._left_bytes = left_bytes
            return False
        if left_bytes:
            log.info("closed a connection whose client did not read the reply: %d bytes were not sent", left_bytes)
        self._transport.abort()
        return True

    def _cut_off(self) -> None:
        """Close a connection that still holds what was sent; nothing else frees that while the client stays."""
        if self.is_full:
            log.info("closed a connection whose client did not read its stream")
            self._transport.abort()


# -- Writing -----------------------------------------------------------------------------------------------------------


# Heads of replies and pieces of streamed bodies as bytes. No I/O.
#
# Source: RFC 9112, 4 (status line), 5 (fields), 7.1 (chunked).

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}" for status in HTTPStatus}
_NO_BODY = frozenset({204, 304})
_field = ": ".join


def reply_head(status: int, headers: Headers, framing: str, size_bytes: int | None = None) -> bytes:
    """Return the head of a reply.

    Args:
        headers: names in lower case, values in Latin-1.
        framing: lines of the connection: when it is, whether it stays open.
        size_bytes: of the body; None where that is not known.

    Raises:
        ValueError: a header has a line break, which would begin another header or the body.
    """
    lines = "\r\n".join([_LINES.get(status) or f"HTTP/1.1 {status} ", *map(_field, headers)])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers) or "\0" in lines:
        raise ValueError(f"a header of the reply has a line break or NUL in it: {headers!r}")
    if size_bytes is None or status in _NO_BODY:  # RFC 9110, 6.4.1
        return f"{lines}\r\n{framing}\r\n".encode("latin-1")
    return f"{lines}\r\ncontent-length: {size_bytes}\r\n{framing}\r\n".encode("latin-1")


def chunk(data: bytes) -> bytes:
    """Return a piece of a streamed body; an empty one would end the body, and is left out."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
