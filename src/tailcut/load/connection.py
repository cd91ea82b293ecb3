"""One keep-alive HTTP/1.1 connection with at most one request on it."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol, cast

import httptools

from tailcut.load.recorder import Failure


class Owner(Protocol):
    """Who hands requests to connections and hears how they ended."""

    def connected(self, connection: Connection) -> None:
        """The connection can take its first request."""
        ...

    def header(self, index: int, name: bytes, value: bytes) -> None:
        """A reply header that the owner asked for."""
        ...

    def answered(self, connection: Connection, index: int, status: int, body: bytes) -> None:
        """A reply is complete; ``body`` is kept only where the status is a failure."""
        ...

    def unheard(self, connection: Connection, index: int) -> None:
        """A connection that had answered before ended at once after a request was written to it, without a byte."""
        ...

    def broken(self, connection: Connection, index: int, failure: Failure) -> None:
        """The connection ended with a request on it (index >= 0), or while idle (index -1)."""
        ...


_WANTED = {b"server-timing", b"x-tailcut-cache"}
_KEPT_BYTES = 512
_AT_ONCE_NS = 100_000_000
"""What ended within this of the writing had most likely ended before: the peer's word of it was on its way. What ends
later ended with the request in hand, and is a failure."""


class Connection(asyncio.Protocol):
    """Parses replies and tells its owner. Reused for request after request until either side closes it."""

    __slots__ = (
        "_answers", "_body", "_body_until_eof", "_heard", "_keep_alive", "_owner", "_parser", "_status", "_transport",
        "_written_ns", "index", "open",
    )  # fmt: skip

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
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
        """Close at once, without telling the owner."""
        self.index = -1
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: the owner may use the connection."""
        self._transport = cast(asyncio.Transport, transport)
        self.open = True
        self._owner.connected(self)

    def data_received(self, data: bytes) -> None:
        """Feed the parser. A reply that nobody asked for, or that is garbled, ends the connection."""
        if self.index < 0:
            self._break(Failure.PROTOCOL)
            return
        self._heard = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._break(Failure.PROTOCOL)

    def eof_received(self) -> bool:
        """Handle a peer that is done sending: the end of a reply without a length, or a lost one."""
        return False

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
            self._owner.unheard(self, index)
        else:
            self._owner.broken(self, index, Failure.EOF)

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
                self._owner.header(self.index, lower, value)
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
            self._owner.answered(self, index, self._status, self._body)

    def _break(self, failure: Failure) -> None:
        index = self.index
        self.abort()
        self._owner.broken(self, index, failure)
