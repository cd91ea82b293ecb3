"""Bytes of a connection -> exchanges: what httptools finds, held to limits; what a head that it refuses said. No I/O.

Source: RFC 9112, 3 (request line, Host), 5 (fields), 6 and 7 (bodies); RFC 9110, 7.8 (upgrades may be ignored).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from functools import partial
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from tailcut.errors import BadRequest, ClientGone, HeadTooLarge, TailcutError
from tailcut.protocol.http import HeaderMap, by_name, is_repeated

if TYPE_CHECKING:
    from tailcut.transport.http1.connection import Connection


AHEAD_BYTES = 256 * 1024
"""Of a body that nobody reads: more is left to the kernel, and by it to the client."""


class Exchange:
    """A request's head and its body.

    Args:
        body: where it has come already.

    Attributes:
        method: as it was sent.
        path: without the query, as it was sent.
        keep_alive: whether the client wants to send another one on its connection.
        old: whether it speaks HTTP/1.0.
        is_whole: whether the body has arrived.
        is_dropped: whether it was answered, so that the rest of its body is thrown away.
        held_bytes: of the body that nobody has read yet; where it is dropped, that were thrown away.
    """

    is_dropped = False
    held_bytes = 0
    _is_gathering = False
    _waiter: asyncio.Future[None] | None = None
    _fault: Callable[[], TailcutError] | None = None  # made when it is raised: kept, it would keep who met it

    def __init__(
        self,
        wire: Connection,
        method: str,
        path: str,
        headers: HeaderMap,
        body: bytes | None = None,
        *,
        keep_alive: bool = True,
        old: bool = False,
    ) -> None:
        self._wire = wire
        self.method = method
        self.path = path
        self.headers = headers
        self.keep_alive = keep_alive
        self.old = old
        self.is_whole = body is not None
        self._pieces = [] if body is None else [body]

    # -- what the routes read -------------------------------------------------------------------------------------

    async def __call__(self) -> bytes:
        """Return the whole body, once; whoever asks for it knows that its declared length is not too large.

        Raises:
            ClientGone: the client left in its middle.
            BadRequest: it is no chunked encoding.
        """
        while not self.is_whole:
            self._is_gathering = True
            await self._more()
        pieces, self._pieces = self._pieces, []  # who asked has it: the connection outlives its requests
        if len(pieces) == 1:
            return pieces[0]
        return b"".join(pieces)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body in pieces as they arrive, and hold the client up where they are not taken."""
        while True:
            pieces, self._pieces, self.held_bytes = self._pieces, [], 0
            for piece in pieces:
                yield piece
            if not self._pieces:
                if self.is_whole:
                    return
                await self._more()

    async def client_disconnect(self) -> None:
        """Return when the client has closed the connection."""
        await self._wire.lost()

    @property
    def is_full(self) -> bool:
        """Whether nothing more of it should be read for now; asked while it arrives."""
        return self.held_bytes > AHEAD_BYTES and not (self._is_gathering or self.is_dropped)

    async def _more(self) -> None:
        """Wait for more of the body, or its end."""
        if self._fault is not None:
            raise self._fault()
        self._waiter = asyncio.get_running_loop().create_future()
        self._wire.wants_body(self)
        self._wire.has_room()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._fault is not None:
            raise self._fault()

    # -- what the connection writes -------------------------------------------------------------------------------

    def came(self, data: bytes) -> None:
        """Take a piece of the body."""
        if self.is_dropped:
            self.held_bytes += len(data)
            self._wire.threw_away(self.held_bytes)
            return
        self._pieces.append(data)
        self.held_bytes += len(data)
        if self._waiter is not None and not self._is_gathering:
            self._wake()

    def ended(self) -> None:
        """The body is whole."""
        self.is_whole = True
        if self._waiter is not None:
            self._wake()
        if self.is_dropped:
            self._wire.wait()

    def gone(self) -> None:
        """The client has closed the connection."""
        self._fail(_gone)

    def broken(self, reason: str) -> None:
        """The body cannot be read any further."""
        self._fail(partial(_malformed, reason))

    def drop(self) -> None:
        """Throw away what else comes: the request was answered."""
        self.is_dropped = True
        self._pieces = []
        self.held_bytes = 0

    def _fail(self, fault: Callable[[], TailcutError]) -> None:
        if not self.is_whole and self._fault is None:
            self._fault = fault
            if self._waiter is not None:
                self._wake()

    def _wake(self) -> None:
        assert self._waiter is not None
        if not self._waiter.done():
            self._waiter.set_result(None)


def _gone() -> ClientGone:
    return ClientGone("the client closed the connection before it had sent its request")


def _malformed(reason: str) -> BadRequest:
    return BadRequest(f"the request's body is malformed: {reason}", hint="send a body framed as in RFC 9112")


_HEAD_BYTES = 64 * 1024
_MOST_HEADERS = 256
_BESIDE_BYTES = _HEAD_BYTES + 8 * 1024
"""That may come of a head with its line breaks, or beside a body."""

_FRAMING = 8
"""Bytes of chunked framing that a byte of a body may have beside it: chunks of one byte have five."""

_MOST_DIGITS = 20
"""Of a body's length: 64 bits. Any number of zeros may stand before it, and Python reads some thousands at most."""

_MOST_MISSES = 8
"""Heads that were not like the ones before them, until this connection's are not compared any more."""

_ENCODING = b"transfer-encoding"
_NO_HOST = re.compile(r"[\s,/@?#]")
"""What no host and port have in them (RFC 3986, 3.2.2). A comma is what two of them are joined with on the way."""

_OF_UPGRADE = frozenset({b"upgrade", b"http2-settings"})

Fields = list[tuple[bytes, bytes]]


class Reader:
    """Reads the requests of one connection. The ``on_`` methods are httptools' callbacks.

    Args:
        wire: the connection, for the exchanges.
        take: given every request once its head is there; its body may still come.

    Attributes:
        arriving: the exchange whose body is coming; None between two requests.
        begun_bytes: of its body that have come; one more where the client was told to send it.
        failure: why nothing more can be read; None while it can.
        was_answered: whether that is of the body of a request whose reply the client has.
    """

    __slots__ = (
        "_alike",
        "_ended",
        "_head_bytes",
        "_is_at_head",
        "_is_between",
        "_is_host",
        "_known",
        "_known_raw",
        "_last",
        "_misses",
        "_parser",
        "_raw",
        "_read_bytes",
        "_take",
        "_upgrade",
        "_url",
        "_wire",
        "arriving",
        "begun_bytes",
        "failure",
        "was_answered",
    )

    def __init__(self, wire: Connection, take: Callable[[Exchange], None]) -> None:
        self._wire: Any = wire
        self._take = take
        self._parser: Any = HttpRequestParser(self)
        self._url = b""
        self._raw: Fields = []
        self._known_raw: Fields = []
        self._known: dict[str, str] = {}
        self._is_at_head = self._is_between = self._is_host = True
        self._upgrade = False
        self._read_bytes = self._head_bytes = 0
        self._ended = 0  # requests that have come whole
        self._last: tuple[str, str, int] | None = None  # method, path and size of the last body that had a length
        self._alike: HeadAlike | None = None
        self._misses = 0
        self.begun_bytes = 0
        self.arriving: Exchange | None = None
        self.failure: TailcutError | None = None
        self.was_answered = False

    @property
    def is_in_head(self) -> bool:
        """Whether a head has begun and not ended."""
        return not self._is_between and self.arriving is None

    def feed(self, data: bytes) -> None:
        """Read what came; not to be asked any more where there is a ``failure``."""
        if not self._is_between or self._misses == _MOST_MISSES:
            self._parse(data)
            return
        alike = self._alike
        if alike is not None and (body := alike.body_of(data)) is not None:
            self._misses = 0
            self._take(Exchange(self._wire, alike.method, alike.path, alike.headers, body))
            return
        self._misses += 1
        ended = self._ended
        self._parse(data)
        if self._ended == ended + 1 and self._is_between and self._last is not None and self.failure is None:
            # It came whole, alone and in one piece.
            method, path, size_bytes = self._last
            self._alike = HeadAlike.of(data[: len(data) - size_bytes], method, path, self._known)

    def _parse(self, data: bytes) -> None:
        self._read_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._read_without_upgrade(data[upgrade.args[0] :])
        except HttpParserCallbackError:
            raise  # a fault of ours
        except HttpParserError as error:
            self._fail(_unparsed(error, self._url, data))
        if self._read_bytes > _BESIDE_BYTES and self._read_bytes > _BESIDE_BYTES + _FRAMING * self.begun_bytes:
            if self.arriving is None:
                self._fail(_head_too_large())
            else:
                self._fail(
                    BadRequest(
                        "the framing of the chunked body (sizes, extensions, trailers) exceeds the limit of "
                        f"{_BESIDE_BYTES} bytes and eight more for each byte of the body",
                        hint="send larger chunks, without extensions, or content-length",
                    )
                )

    def close(self) -> None:
        """Let go of who knows this reader, and of what came: cycles would live until the collector comes."""
        self._parser = self._wire = self._alike = self.arriving = None

    # -- of the parser --------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._url = b""
        self._raw = []
        self._head_bytes = 0
        self._is_at_head = True
        self._is_between = False

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_at_head:  # what comes behind a chunked body is not looked at
            self._raw.append((name, value))
            self._count(len(name) + len(value))

    def _count(self, size_bytes: int) -> None:
        self._head_bytes += size_bytes
        if self._head_bytes > _HEAD_BYTES:
            self._fail(_head_too_large())
        elif len(self._raw) > _MOST_HEADERS:
            self._fail(
                HeadTooLarge(
                    f"the request's head is over the limit of {_MOST_HEADERS} headers", hint="send fewer headers"
                )
            )

    def on_headers_complete(self) -> None:
        self._is_at_head = False
        self._read_bytes = 0
        parser = self._parser
        if self.failure is not None:
            return
        if parser.should_upgrade():
            self._upgrade = True
            return
        raw = self._raw
        if raw != self._known_raw:  # most clients say the same each time
            self._known_raw = raw
            self._known = by_name([(name.lower().decode("latin-1"), value.decode("latin-1")) for name, value in raw])
            length = self._known.get("content-length", "")
            if len(length) > _MOST_DIGITS:
                self._fail(
                    BadRequest(
                        f"content-length is {shown(length)}, a number of {len(length)} digits",
                        hint="send it without leading zeros",
                    )
                )
                return
            self._is_host = _NO_HOST.search(self._known.get("host", "").strip(" \t")) is None
        version = parser.get_http_version()
        if ("host" not in self._known and version == "1.1") or not self._is_host or is_repeated(self._known, "host"):
            hosts = [value.decode("latin-1") for name, value in raw if name.lower() == b"host"]
            said = (
                f"names {shown(', '.join(hosts))} in Host, which is not a single host"
                if hosts
                else "has no Host header"
            )
            self._fail(BadRequest(f"the request {said}", hint="send one Host header, the server's name and port"))
            return
        if version != "1.1" or "transfer-encoding" in self._known:
            self._check_framing(version)
            if self.failure is not None:
                return
        path, _, _ = self._url.partition(b"?")
        if path[:1] != b"/":
            path = _path_of(path)
        self.arriving = Exchange(
            self._wire,
            parser.get_method().decode("ascii"),
            path.decode("latin-1"),
            self._known,
            keep_alive=parser.should_keep_alive(),
            old=version != "1.1",
        )
        self._take(self.arriving)

    def on_body(self, data: bytes) -> None:
        if self.arriving is not None:  # else of a request that cannot be answered
            self.begun_bytes += len(data)
            self.arriving.came(data)

    def on_message_complete(self) -> None:
        self._is_between = True
        size_bytes = self.begun_bytes
        self._read_bytes = self.begun_bytes = 0
        exchange = self.arriving
        if exchange is None or self._upgrade:
            return
        self.arriving = None
        self._ended += 1
        if not self._parser.should_keep_alive():  # a trailer may say so, too
            exchange.keep_alive = False
        headers = exchange.headers
        plain = exchange.keep_alive and not exchange.old and "content-length" in headers and "expect" not in headers
        self._last = (exchange.method, exchange.path, size_bytes) if plain else None
        exchange.ended()

    def _check_framing(self, version: str) -> None:
        """Refuse what others may take for another request's begin (RFC 9112, 6.1)."""
        encoding = ", ".join(value.decode("latin-1") for name, value in self._raw if name.lower() == _ENCODING)
        if version not in {"1.0", "1.1"}:
            self._fail(BadRequest(f"this server speaks HTTP/1.1, not HTTP/{version}", hint="use HTTP/1.1"))
        elif encoding and (version == "1.0" or encoding.lower() != "chunked"):
            self._fail(
                BadRequest(
                    f"transfer-encoding is {shown(encoding)} in HTTP/{version}; only chunked in HTTP/1.1 is supported",
                    hint="send content-length, or chunked in HTTP/1.1",
                )
            )

    # -- what cannot be read as it is -----------------------------------------------------------------------------

    def _fail(self, failure: TailcutError) -> None:
        if self.failure is None:
            self.failure = failure
            if self.arriving is not None:
                self.was_answered = self.arriving.is_dropped
                self.arriving.broken(failure.message)
                self.arriving = None

    def _read_without_upgrade(self, rest: bytes) -> None:
        """Read on behind the head of a request that would like another protocol, as if it had not asked for it.

        The parser takes all behind that head for the other protocol, also the body.
        """
        try:
            while self._reread_head():
                try:
                    self._parser.feed_data(rest)
                    return
                except HttpParserUpgrade as upgrade:
                    rest = rest[upgrade.args[0] :]
        except HttpParserCallbackError:
            raise
        except HttpParserError as error:
            self._fail(_unparsed(error, self._url, rest))

    def _reread_head(self) -> bool:
        """Have the head read that was read last, without what asks for another protocol; False where that is all."""
        self._upgrade = False
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._fail(
                BadRequest("CONNECT is not supported: this server is not a proxy", hint="request a path of this server")
            )
            return False
        fields = [(name, value) for name, value in self._raw if name.lower() not in _OF_UPGRADE]
        lines = [b"%b: %b\r\n" % (name, _without_upgrade(name, value)) for name, value in fields]
        version = self._parser.get_http_version().encode()
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (method, self._url, version, b"".join(lines))
        self._parser = HttpRequestParser(self)
        self._parser.feed_data(head)
        return True


def _path_of(target: bytes) -> bytes:
    """Return the path of a target in the absolute form (RFC 9112, 3.2.2); "*" and others as they are."""
    _, scheme, rest = target.partition(b"://")
    if not scheme:
        return target
    _, slash, path = rest.partition(b"/")
    return slash + path or b"/"


def _without_upgrade(name: bytes, value: bytes) -> bytes:
    """Return a header's value; of Connection without what asks for another protocol."""
    if name.lower() != b"connection":
        return value
    options = [option.strip() for option in value.split(b",")]
    return b", ".join(option for option in options if option.lower() not in _OF_UPGRADE)


_LENGTH = b"\r\ncontent-length:"
_MOST_ALIKE_DIGITS = 15


class HeadAlike:
    """A head that was read, to know it again.

    Attributes:
        method, path: of its request.
        headers: of the one that was read last.
    """

    __slots__ = ("_after", "_before", "_head", "_size_bytes", "headers", "method", "path")

    def __init__(self, method: str, path: str, headers: dict[str, str], before: bytes, after: bytes) -> None:
        self.method = method
        self.path = path
        self._before = before
        self._after = after
        self._set(headers)

    @staticmethod
    def of(head: bytes, method: str, path: str, headers: dict[str, str]) -> HeadAlike | None:
        """Return it for a head as it was sent, to the empty line at its end; None where it has no length."""
        at = head.lower().find(_LENGTH)
        if head.find(b"\r\n\r\n") != len(head) - 4:
            return None  # a line break that belongs to no request came before or behind this one
        if at < 0 or type(headers) is not dict:  # something is repeated
            return None
        start = at + len(_LENGTH)
        while head[start : start + 1] in {b" ", b"\t"}:
            start += 1
        end = head.find(b"\r\n", start)
        if not head[start:end].isdigit() or end - start > _MOST_ALIKE_DIGITS:
            return None
        return HeadAlike(method, path, headers, head[:start], head[end:])

    def body_of(self, data: bytes) -> bytes | None:
        """Return the body of what came, where that is one whole request, and alike; ``headers`` are its own then."""
        if data.startswith(self._head) or self._differs_in_length(data):
            body = data[len(self._head) :]
            if len(body) == self._size_bytes:
                return body
        return None

    def _differs_in_length(self, data: bytes) -> bool:
        """Whether that is all; the other length is taken over then."""
        before = self._before
        if not data.startswith(before):
            return False
        end = data.find(b"\r\n", len(before))
        digits = data[len(before) : end]
        if not digits.isdigit() or len(digits) > _MOST_ALIKE_DIGITS or not data.startswith(self._after, end):
            return False
        self._set({**self.headers, "content-length": digits.decode("ascii")})
        return True

    def _set(self, headers: dict[str, str]) -> None:
        self.headers = headers
        length = headers["content-length"]
        self._head = self._before + length.encode("ascii") + self._after
        self._size_bytes = int(length)


def _head_too_large() -> HeadTooLarge:
    return HeadTooLarge(
        f"the request's head is over the limit of {_HEAD_BYTES} bytes",
        hint="send less, such as fewer or shorter headers",
    )


def _unparsed(error: Exception, url: bytes, data: bytes) -> BadRequest:
    """Return what the parser did not like.

    Args:
        url: of the request, as far as it came.
        data: in which it was found.
    """
    if url == b"*" and b"HTTP/2" in data:
        return BadRequest("this server speaks HTTP/1.1, not HTTP/2", hint="use HTTP/1.1, or put a proxy in front")
    return BadRequest(f"this is not HTTP/1.1: {error}", hint="send requests in the format of RFC 9112")
