"""Reads the bodies of requests, bounded each and all together."""

from __future__ import annotations

import asyncio

from tailcut.errors import RequestTimeout, Shed, TooLarge
from tailcut.protocol.encodings import decoded
from tailcut.protocol.http import Body, HeaderMap

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
