"""What the routes need of HTTP, whatever server carries it: headers and bodies in, replies out, errors as replies.

Source: RFC 9110, 8.4.1 (``gzip`` is RFC 1952, ``deflate`` is the zlib format of RFC 1950).
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import count
from math import ceil
from reprlib import repr as shown
from secrets import token_hex
from typing import Protocol

import msgspec

from tailcut.errors import (
    BadRequest,
    MethodNotAllowed,
    NotReady,
    RequestTimeout,
    Shed,
    TailcutError,
    TooLarge,
    Unauthorized,
    UnsupportedEncoding,
)

Headers = list[tuple[str, str]]
HeaderMap = Mapping[str, str]
"""Request headers by lower-case name."""

LONGEST_TENANT = 256
_LONGEST_SHOWN = 200

_TRACEPARENT = re.compile("00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""Source: https://www.w3.org/TR/trace-context/#traceparent-header-field-values, version 00."""

_REQUEST_ID = re.compile("[!-~]{1,128}")
_PROCESS = token_hex(6)
_NUMBERS = count(1)

JSON = ("content-type", "application/json")
CLOSE = ("connection", "close")
REQUEST_ID = "x-request-id"
TIMEOUT = "x-tailcut-timeout-ms"
EVENT_STREAM = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-store"),
    ("x-accel-buffering", "no"),  # or nginx would send it in one piece
)


class Body(Protocol):
    """A request's body and its connection."""

    async def __call__(self) -> bytes:
        """Return the whole body."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body in pieces as they arrive."""
        ...

    async def client_disconnect(self) -> None:
        """Return when the client has closed the connection."""
        ...


class Chunks(Protocol):
    """A body that is made while it is sent. Whoever sends it closes it, whether or not it was sent to its end."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def left_s(self) -> float:
        """Return the seconds until its deadline; below 0 where it has passed."""
        ...

    async def aclose(self) -> None:
        """End what makes it."""
        ...

    @property
    def failure(self) -> Mapping[str, str] | None:
        """What ended it before its end, as ``code`` and ``incident``; None at its end, and before it is closed."""
        ...


class Reply:
    """Status, headers and body of an answer.

    Attributes:
        chunks: yields the body in pieces as they are made, in place of ``body``; None for a body that is whole.
    """

    __slots__ = ("body", "chunks", "headers", "status")

    def __init__(self, status: int, headers: Headers, body: bytes, chunks: Chunks | None = None) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.chunks = chunks


class Repeated(dict[str, str]):
    """Headers by name, the last value of each; it knows the others, too."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._pairs = list(pairs)
        super().__init__(self._pairs)

    def get_all(self, key: str) -> list[str]:
        """Return every value of a header."""
        return [value for name, value in self._pairs if name == key]


def by_name(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return headers by name; of a repeated one the last value, and ``is_repeated`` knows."""
    headers = dict(pairs)
    return headers if len(headers) == len(pairs) else Repeated(pairs)


def is_repeated(headers: HeaderMap, name: str) -> bool:
    """Whether a header was sent more than once."""
    return isinstance(headers, Repeated) and len(headers.get_all(name)) > 1


def timeout_ns(text: str) -> int:
    """Return the value of ``x-tailcut-timeout-ms`` in nanoseconds.

    Raises:
        BadRequest: it is no positive number.
    """
    try:
        value_ms = float(text)
    except ValueError:
        value_ms = -1.0
    if not 0 < value_ms < 1e9:
        raise BadRequest(
            f"header {TIMEOUT} is {shown(text)}, expected milliseconds above 0 and below 1e9",
            hint=f"e.g. {TIMEOUT}: 250",
        )
    return max(int(value_ms * 1e6), 1)


def tenant(headers: HeaderMap, name: str) -> str:
    """Return the tenant that the header ``name`` (lower case) says.

    Raises:
        BadRequest: it is missing, empty, longer than 256 characters or not ASCII. Falling back to one tenant would
            let its cache entries be shared. It was sent twice: a proxy that adds its own to the client's leaves it to
            the client which of the two counts.
    """
    if is_repeated(headers, name):
        raise BadRequest(
            f"header {name} was sent more than once; it names one tenant",
            hint=f"send one {name}; a proxy that sets it must replace the client's",
        )
    return checked_tenant(headers.get(name), f"header {name}", f"send {name}: your-tenant")


def checked_tenant(found: str | None, where: str, hint: str) -> str:
    """Return a tenant's name.

    Raises:
        BadRequest: it is missing, empty, longer than 256 characters or not ASCII.
    """
    if not found or len(found) > LONGEST_TENANT or not found.isascii():
        seen = f"has {len(found)} characters" if found and found.isascii() else "is missing, empty or not ASCII"
        raise BadRequest(
            f"{where} {seen}; it names the tenant and has 1 to {LONGEST_TENANT} ASCII characters", hint=hint
        )
    return found


def traceparent(headers: HeaderMap) -> str | None:
    """Return the request's ``traceparent`` where it is one; anything else is not sent back."""
    found = headers.get("traceparent")
    return found if found is not None and _TRACEPARENT.fullmatch(found) else None


def request_id(headers: HeaderMap) -> str:
    """Return the id by which logs find a request: its ``x-request-id``, else the trace of its ``traceparent``.

    Empty where the client sent neither, or an id longer than 128 characters or with others than printable ASCII.
    """
    found = headers.get(REQUEST_ID)
    if found is not None and _REQUEST_ID.fullmatch(found):
        return found
    parent = traceparent(headers)
    return parent.split("-")[1] if parent is not None else ""


def log_id(headers: HeaderMap) -> str:
    """Return the id by which logs find a request that failed: its own, or a new one where it came without."""
    return request_id(headers) or f"{_PROCESS}-{next(_NUMBERS):x}"


def clipped(text: object) -> str:
    """Return text from outside for an error, cut to a bounded length."""
    said = str(text)
    return said if len(said) <= _LONGEST_SHOWN else f"{said[:_LONGEST_SHOWN]}..."


def unread(error: Exception, body: bytes | memoryview) -> str:
    """Return why a body could not be read, for the error of whoever wanted it: an empty one is called that."""
    return clipped(error) if body else "it is empty"


def json_reply(value: object, status: int = 200) -> Reply:
    """Return ``value`` as a JSON reply."""
    return Reply(status, [JSON], msgspec.json.encode(value))


def error_reply(error: TailcutError, incident: str = "") -> Reply:
    """Return an error as the Open Inference Protocol has it, with its code and the way out beside it.

    Args:
        incident: under which the server's log says more; empty where it does not.
    """
    headers: Headers = [JSON]
    if isinstance(error, Shed | NotReady) and error.retry_after_s > 0:
        # Whole seconds is all that Retry-After can say (RFC 9110, 10.2.3).
        headers.append(("retry-after", str(max(1, ceil(error.retry_after_s)))))
    elif isinstance(error, MethodNotAllowed):
        headers.append(("allow", error.allowed))
    elif isinstance(error, Unauthorized):
        headers.append(("www-authenticate", 'Bearer realm="tailcut"'))  # RFC 6750, 3
    elif isinstance(error, UnsupportedEncoding):
        headers.append(("accept-encoding", "gzip, deflate"))  # RFC 9110, 15.5.16
    elif isinstance(error, RequestTimeout):
        headers.append(CLOSE)  # RFC 9110, 15.5.9: the rest of the body is not waited for
    body = {"error": error.message, "code": error.code, "hint": error.hint}
    if incident:
        body["incident"] = incident
    return Reply(error.status, headers, msgspec.json.encode(body))


# -- Bodies ------------------------------------------------------------------------------------------------------------


_LONGEST_LENGTH = 20
_SMALL_DIGITS = 4
"""Of the length of a body that is not counted: the HTTP layer has as much for each connection whatever it does."""

_RETRY_S = 1.0
_READ_S = 10.0


class Bodies:
    """The bodies that are arriving at one server.

    A declared length is no more than a claim, so that claims alone must not shut others out. Half of the bound is for
    declared lengths, whose bodies the HTTP layer reads in one go; where they fill it, and for those of no declared
    length, the other half is for what has come, piece by piece.

    Args:
        limit_bytes: of one body.
        total_bytes: of all that are arriving; at least twice ``limit_bytes`` count.

    Attributes:
        limit_bytes: of one body.
    """

    def __init__(self, limit_bytes: int, total_bytes: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self._half_bytes = max(total_bytes // 2, limit_bytes)
        self._declared_bytes = 0
        self._received_bytes = 0
        # As many digits as that are below the limit whatever they are.
        self._small_digits = min(_SMALL_DIGITS, len(str(limit_bytes)) - 1)

    def is_small(self, headers: HeaderMap) -> bool:
        """Whether a body is declared and so small that there is nothing to ask: the HTTP layer reads no more."""
        declared = headers.get("content-length")
        return declared is not None and len(declared) <= self._small_digits and declared.isdecimal()

    async def read(self, body: Body, headers: HeaderMap) -> bytes:
        """Return a body, refused before it is buffered where it is too large.

        Raises:
            TooLarge: the declared or the received length exceeds the limit.
            Shed: too much is arriving.
        """
        declared = headers.get("content-length")
        if declared is None or not declared.isdecimal():
            return await self._in_pieces(body)
        # Python refuses to read a number of thousands of digits.
        if len(declared) > _LONGEST_LENGTH or (size := int(declared)) > self.limit_bytes:
            raise _too_large(f"a body of {declared[:_LONGEST_LENGTH]} bytes", self.limit_bytes)
        if self._declared_bytes + size > self._half_bytes:
            return await self._in_pieces(body)
        self._declared_bytes += size
        try:
            return await body()  # the HTTP layer hands over no more than was declared
        finally:
            self._declared_bytes -= size

    async def _in_pieces(self, body: Body) -> bytes:
        pieces: list[bytes] = []
        size = 0
        try:
            async for piece in body:
                size += len(piece)
                self._received_bytes += len(piece)
                if size > self.limit_bytes:
                    raise _too_large(f"a body of more than {self.limit_bytes} bytes", self.limit_bytes)
                if self._received_bytes > self._half_bytes:
                    raise Shed(
                        f"request bodies being received have {self._received_bytes} bytes, the limit is "
                        f"{self._half_bytes}",
                        hint="retry after Retry-After seconds; the limit is half of server.max_arriving",
                        retry_after_s=_RETRY_S,
                    )
                pieces.append(piece)
            return b"".join(pieces)
        finally:
            self._received_bytes -= size


def _too_large(what: str, limit_bytes: int) -> TooLarge:
    return TooLarge(
        f"{what} is over the limit of {limit_bytes} bytes", hint="send fewer rows at once, or raise server.max_body"
    )


async def read_small(headers: HeaderMap, body: Body, limit_bytes: int) -> bytes:
    """Read the body of a request that is no prediction, for a bounded time.

    It is not counted among those that are arriving: its limit is small, and what loads a model is not to wait for what
    the model is asked.

    Raises:
        TooLarge: more than ``limit_bytes``.
        RequestTimeout: it does not arrive.
        ClientGone: the client left in its middle.
    """
    try:
        async with asyncio.timeout(_READ_S):
            return await decoded(await Bodies(limit_bytes).read(body, headers), headers, limit_bytes)
    except TimeoutError as error:
        raise RequestTimeout(
            f"the request body was not complete after {_READ_S:g} s", hint="send the body at once"
        ) from error


_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_PIECE_BYTES = 256 * 1024
"""Decompressed at most between two turns of the event loop: about a millisecond."""

_SLICE_BYTES = 64 * 1024


async def decoded(raw: bytes, headers: HeaderMap, limit_bytes: int) -> bytes:
    """Undo the ``Content-Encoding`` of a body.

    At no time is more decompressed than the limit and one byte, whatever the body claims of itself.

    Args:
        limit_bytes: of the decompressed body.

    Raises:
        UnsupportedEncoding: neither gzip nor deflate.
        BadRequest: it is not what its header says.
        TooLarge: more than the limit.
    """
    named = headers.get("content-encoding")
    if named is None:
        return raw
    encoding = named.strip().lower()
    if encoding in {"", "identity"}:
        return raw
    bits = _WINDOW_BITS.get(encoding)
    if bits is None:
        raise UnsupportedEncoding(
            f"content-encoding {shown(named)} is not supported", hint="send gzip, deflate, or an uncompressed body"
        )
    try:
        return await _inflated(raw, bits, encoding, limit_bytes)
    except zlib.error as error:
        raise BadRequest(
            f"the body is not {encoding} data: {error}", hint="compress the body, or leave content-encoding out"
        ) from error


async def _inflated(raw: bytes, bits: int, encoding: str, limit_bytes: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    inflater = zlib.decompressobj(bits)
    # In slices: what is left over of one is copied, and of the whole body that would be a copy each time.
    view, at, rest = memoryview(raw), 0, b""
    while True:
        if not rest:
            rest, at = bytes(view[at : at + _SLICE_BYTES]), at + _SLICE_BYTES
        piece = inflater.decompress(rest, min(_PIECE_BYTES, limit_bytes - size + 1))
        size += len(piece)
        if size > limit_bytes:
            raise TooLarge(
                f"a body of more than {limit_bytes} bytes once decompressed is over the limit",
                hint="send fewer rows at once, or raise server.max_body",
            )
        pieces.append(piece)
        rest = inflater.unconsumed_tail
        if inflater.eof:
            unused = len(inflater.unused_data) + max(len(raw) - at, 0)
            if unused:
                raise BadRequest(
                    f"{unused} bytes follow the end of the {encoding} data",
                    hint="send one compressed body, of one gzip member",
                )
            return b"".join(pieces)
        if not piece and not rest and at >= len(raw):
            raise BadRequest(f"the {encoding} data ends too early", hint="send the whole compressed body")
        await asyncio.sleep(0)
