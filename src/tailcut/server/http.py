"""What the routes need of HTTP, whatever server carries it: a request in, a reply out, errors as replies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from math import ceil
from reprlib import repr as shown
from typing import Protocol

import msgspec

from tailcut.errors import BadRequest, Shed, TailcutError, TooLarge

Headers = list[tuple[str, str]]
_LONGEST_LENGTH = 20

JSON = ("content-type", "application/json")


class HeaderMap(Protocol):
    """Request headers by lower-case name."""

    def get(self, key: str, /) -> str | None: ...


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


class Reply:
    """Status, headers and body of an answer."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


async def read_body(body: Body, headers: HeaderMap, limit_bytes: int) -> bytes:
    """Return the body, refused before it is buffered where it is larger than ``limit_bytes``.

    Raises:
        TooLarge: the declared or the received length exceeds the limit.
    """
    declared = headers.get("content-length")
    if declared is not None and declared.isdecimal():
        # Python refuses to read a number of thousands of digits.
        if len(declared) > _LONGEST_LENGTH or int(declared) > limit_bytes:
            raise _too_large(f"a body of {declared[:_LONGEST_LENGTH]} bytes", limit_bytes)
        return await body()  # the HTTP layer hands over no more than was declared
    pieces: list[bytes] = []
    size = 0
    async for piece in body:
        size += len(piece)
        if size > limit_bytes:
            raise _too_large(f"a body of more than {limit_bytes} bytes", limit_bytes)
        pieces.append(piece)
    return b"".join(pieces)


def timeout_ns(headers: HeaderMap) -> int:
    """Return the client's ``x-tailcut-timeout-ms`` in nanoseconds, 0 where it sent none.

    Raises:
        BadRequest: it is no positive number.
    """
    text = headers.get("x-tailcut-timeout-ms")
    if text is None:
        return 0
    try:
        value_ms = float(text)
    except ValueError:
        value_ms = -1.0
    if not 0 < value_ms < 1e9:
        raise BadRequest(
            f"header x-tailcut-timeout-ms is {shown(text)}, expected milliseconds above 0 and below 1e9",
            hint="e.g. x-tailcut-timeout-ms: 250",
        )
    return max(int(value_ms * 1e6), 1)


def json_reply(value: object, status: int = 200) -> Reply:
    """Return ``value`` as a JSON reply."""
    return Reply(status, [JSON], msgspec.json.encode(value))


def error_reply(error: TailcutError) -> Reply:
    """Return an error as the Open Inference Protocol has it, with its code and the way out beside it."""
    headers: Headers = [JSON]
    if isinstance(error, Shed):
        # Whole seconds is all that Retry-After can say (RFC 9110, 10.2.3).
        headers.append(("retry-after", str(max(1, ceil(error.retry_after_s)))))
    body = {"error": error.message, "code": error.code, "hint": error.hint}
    return Reply(error.status, headers, msgspec.json.encode(body))


def _too_large(what: str, limit_bytes: int) -> TooLarge:
    return TooLarge(
        f"{what} is over the limit of {limit_bytes} bytes", hint="send fewer rows at once, or raise server.max_body"
    )
