"""Sends each request at its time over as many connections as that takes, and never waits for an answer to do so."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from typing import cast

import httptools

from tailcut.load.plan import TargetUrl
from tailcut.load.recorder import LoadFailure, LoadRecorder

_WANTED = {b"server-timing", b"x-tailcut-cache"}
_KEPT_BYTES = 512
_AT_ONCE_NS = 100_000_000
"""What ended within this of the writing had most likely ended before: the peer's word of it was on its way. What ends
later ended with the request in hand, and is a failure."""


class LoadClient:
    """A connection pool for open-loop load.

    A request takes an idle connection; where there is none, one more is opened, up to ``cap``, and the request goes out
    on whichever connection is free first. Only requests that met the cap count as delayed by it. A request whose
    connection had answered others, and ends at once, before a byte of the reply, goes out again on a new one, once: the
    server most likely had closed it before the request came (RFC 9112, 9.3.1), as it may after any answer. Where no new
    one opens, it ended with its own connection.

    Args:
        target: where to connect.
        requests: the bytes of each request, by index.
        recorder: where each request's end is written.
        timeout_ns: from the intended time to giving up.
        cap: most connections.
    """

    def __init__(
        self, target: TargetUrl, requests: list[bytes], recorder: LoadRecorder, *, timeout_ns: int, cap: int
    ) -> None:
        self._target = target
        self._requests = requests
        self._recorder = recorder
        self._timeout_ns = timeout_ns
        self._cap = cap
        self._tls = ssl.create_default_context() if target.tls else None
        self._idle: list[LoadConnection] = []
        self._waiting: deque[int] = deque()
        self._flying: dict[int, LoadConnection] = {}
        self._again: dict[LoadConnection, int] = {}
        self._connections: set[LoadConnection] = set()
        self._opening: dict[LoadConnection, asyncio.Task[None] | None] = {}
        self._closed = False

    @property
    def outstanding(self) -> int:
        """Requests whose time has come and that have not ended."""
        return len(self._flying) + len(self._waiting)

    @property
    def connections(self) -> int:
        """Connections that are open or being opened."""
        return len(self._connections) + len(self._opening)

    def send(self, index: int) -> None:
        """Send request ``index`` now, or as soon as a connection can take it."""
        recorder = self._recorder
        while self._idle:
            if self._write(self._idle.pop(), index):
                break
        else:
            self._waiting.append(index)
            if self.connections < self._cap:
                self._open(LoadConnection(self))
            else:
                recorder.delayed_by_cap += 1
        recorder.max_outstanding = max(recorder.max_outstanding, self.outstanding)

    async def open_one(self) -> None:
        """Open a connection and wait for it.

        Raises:
            OSError: nobody listens there.
        """
        connection = LoadConnection(self)
        self._opening[connection] = None
        await self._connect(connection)

    def oldest_unfinished(self, next_index: int) -> int:
        """Find the lowest index that has not ended; ``next_index`` where all sent ones have."""
        flying = next(iter(self._flying), next_index)
        return min(flying, self._waiting[0] if self._waiting else next_index)

    def expire(self, now_ns: int) -> None:
        """Give up requests whose time-out has passed. The order of sending is the order of intended times."""
        recorder = self._recorder
        latest_ns = now_ns - recorder.start_ns - self._timeout_ns
        while self._flying:
            index = next(iter(self._flying))
            if recorder.intended[index] > latest_ns:
                break
            connection = self._flying.pop(index)
            self._connections.discard(connection)
            connection.abort()
            recorder.finish(index, LoadFailure.TIMEOUT, now_ns)
        while self._waiting and recorder.intended[self._waiting[0]] <= latest_ns:
            recorder.finish(self._waiting.popleft(), LoadFailure.TIMEOUT, now_ns)
        self._refill()

    def close(self) -> None:
        """Drop every connection; requests that have not ended are recorded as aborted."""
        self._closed = True
        now_ns = time.monotonic_ns()
        for index in [*self._flying, *self._waiting]:
            self._recorder.finish(index, LoadFailure.ABORTED, now_ns)
        self._flying.clear()
        self._waiting.clear()
        for task in self._opening.values():
            if task is not None:
                task.cancel()
        for connection in list(self._connections):
            connection.abort()
        self._connections.clear()

    # -- what connections report ----------------------------------------------------------------------------------

    def connected(self, connection: LoadConnection) -> None:
        """A new connection takes the request that has waited longest."""
        self._opening.pop(connection, None)
        if self._closed:
            connection.abort()
            return
        self._recorder.connections_opened += 1
        self._connections.add(connection)
        index = self._again.pop(connection, -1)
        if index not in self._flying:
            self._next(connection)
        elif self._write(connection, index):
            self._recorder.sent_again += 1
        else:
            self._give_up(index, LoadFailure.EOF)

    def header(self, index: int, name: bytes, value: bytes) -> None:
        """Record a header that the server reports its own times or cache outcome with."""
        if name == b"server-timing":
            self._recorder.server_timing(index, value)
        else:
            self._recorder.cache_outcome(index, value)

    def answered(self, connection: LoadConnection, index: int, status: int, body: bytes) -> None:
        """Record a reply and reuse its connection."""
        del self._flying[index]
        self._recorder.finish(index, status, time.monotonic_ns())
        if body:
            self._recorder.failed_body(status, body)
        if connection.open:
            self._next(connection)
        else:
            self._connections.discard(connection)
            self._refill()

    def unheard(self, connection: LoadConnection, index: int) -> None:
        """Send a request again; when it was sent is when it was sent first."""
        self._connections.discard(connection)
        self._flying[index] = fresh = LoadConnection(self)  # in its old place: that is by intended time
        self._again[fresh] = index
        self._open(fresh)

    def broken(self, connection: LoadConnection, index: int, failure: LoadFailure) -> None:
        """Record a request that was written and will get no answer."""
        self._connections.discard(connection)
        if index >= 0:
            self._give_up(index, failure)
        elif connection in self._idle:
            self._idle.remove(connection)
        self._refill()

    # -- connections ------------------------------------------------------------------------------------------------

    def _write(self, connection: LoadConnection, index: int) -> bool:
        if not connection.send(index, self._requests[index]):
            return False
        if index not in self._flying:
            self._recorder.sent[index] = time.monotonic_ns()
        self._flying[index] = connection
        return True

    def _give_up(self, index: int, failure: LoadFailure) -> None:
        del self._flying[index]
        self._recorder.finish(index, failure, time.monotonic_ns())

    def _next(self, connection: LoadConnection) -> None:
        if self._waiting:
            if self._write(connection, self._waiting[0]):
                self._waiting.popleft()
        else:
            self._idle.append(connection)

    def _refill(self) -> None:
        # A closed connection may have been the one that a waiting request counted on.
        opening = len(self._opening) - len(self._again)
        for _ in range(0 if self._closed else min(len(self._waiting) - opening, self._cap - self.connections)):
            self._open(LoadConnection(self))

    def _open(self, connection: LoadConnection) -> None:
        self._opening[connection] = asyncio.get_running_loop().create_task(self._open_for_waiting(connection))

    async def _open_for_waiting(self, connection: LoadConnection) -> None:
        try:
            async with asyncio.timeout(self._timeout_ns / 1e9):
                await self._connect(connection)
        except (OSError, TimeoutError):
            if self._opening.pop(connection, None) is None or self._closed:
                return
            index = self._again.pop(connection, None)
            if index is None:
                if self._waiting:
                    self._recorder.finish(self._waiting.popleft(), LoadFailure.CONNECT, time.monotonic_ns())
                return
            if index in self._flying:  # else its time-out has passed
                self._give_up(index, LoadFailure.EOF)
            self._refill()

    async def _connect(self, connection: LoadConnection) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: connection, self._target.host, self._target.port, ssl=self._tls)


class LoadConnection(asyncio.Protocol):
    """One keep-alive HTTP/1.1 connection with at most one request on it, used again until either side closes it."""

    __slots__ = (
        "_answers",
        "_body",
        "_body_until_eof",
        "_client",
        "_heard",
        "_keep_alive",
        "_parser",
        "_status",
        "_transport",
        "_written_ns",
        "index",
        "open",
    )  # fmt: skip

    def __init__(self, client: LoadClient) -> None:
        self._client = client
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._status = 0
        self._body = b""
        self._body_until_eof = True
        self._keep_alive = True
        self._answers = 0
        self._heard = False
        self._written_ns = 0
        self.index = -1
        self.open = False

    def send(self, index: int, request: bytes) -> bool:
        """Write a request; False where the peer closed the connection first and nothing was written."""
        transport = self._transport
        if transport is None or not self.open or transport.is_closing():
            return False
        self.index = index
        self._status = 0
        self._heard = False
        self._written_ns = time.monotonic_ns()
        transport.write(request)
        return True

    def abort(self) -> None:
        """Close at once, without telling the client."""
        self.index = -1
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: the client may use the connection."""
        self._transport = cast(asyncio.Transport, transport)
        self.open = True
        self._client.connected(self)

    def data_received(self, data: bytes) -> None:
        """Feed the parser. A reply that nobody asked for, or that is garbled, ends the connection."""
        if self.index < 0:
            self._break(LoadFailure.PROTOCOL)
            return
        self._heard = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._break(LoadFailure.PROTOCOL)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        if not self.open:
            return
        self.open = False
        if self.index >= 0 and self._status >= 200 and self._body_until_eof and exc is None:
            self._complete()
            return
        index, self.index = self.index, -1
        at_once = time.monotonic_ns() - self._written_ns < _AT_ONCE_NS
        if index >= 0 and self._answers and not self._heard and at_once:
            self._client.unheard(self, index)
        else:
            self._client.broken(self, index, LoadFailure.EOF)

    # -- httptools ----------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A reply starts."""
        self._body = b""
        self._body_until_eof = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep what is wanted and note how the body ends."""
        lower = name.lower()
        if lower in _WANTED:
            if self.index >= 0:
                self._client.header(self.index, lower, value)
        elif lower in {b"content-length", b"transfer-encoding"}:
            self._body_until_eof = False

    def on_headers_complete(self) -> None:
        """The status and the fate of the connection are known."""
        self._status = self._parser.get_status_code()
        self._keep_alive = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        """Keep the start of a failed reply's body."""
        if not 200 <= self._status < 300 and len(self._body) < _KEPT_BYTES:
            self._body += body

    def on_message_complete(self) -> None:
        """The reply is whole. Interim replies (1xx) are not the answer."""
        if self._status >= 200:
            self._complete()

    def _complete(self) -> None:
        index, self.index = self.index, -1
        self._answers += 1
        if not self._keep_alive or not self.open:
            self.open = False
            if self._transport is not None:
                self._transport.close()
        if index >= 0:
            self._client.answered(self, index, self._status, self._body)

    def _break(self, failure: LoadFailure) -> None:
        index = self.index
        self.abort()
        self._client.broken(self, index, failure)
