"""What a client is told of a request that cannot be read as HTTP/1.1."""

from __future__ import annotations

import re
from collections.abc import Sequence
from reprlib import repr as shown

from tailcut.errors import BadRequest, HeadTooLarge

NO_HOST = re.compile(r"[\s,/@?#]")
"""What no host and port have in them (RFC 3986, 3.2.2). A comma is what two of them are joined with on the way."""


def head_bytes(most: int) -> HeadTooLarge:
    """Return that a head is too long."""
    return HeadTooLarge(
        f"the request's head is over the limit of {most} bytes", hint="send less, such as fewer or shorter headers"
    )


def headers(most: int) -> HeadTooLarge:
    """Return that a head has too many headers."""
    return HeadTooLarge(f"the request's head is over the limit of {most} headers", hint="send fewer headers")


def framing(most_bytes: int) -> BadRequest:
    """Return that too much stands beside a chunked body."""
    return BadRequest(
        f"the framing of the chunked body (sizes, extensions, trailers) exceeds the limit of {most_bytes} bytes and "
        "eight"
        " more for each byte of the body",
        hint="send larger chunks, without extensions, or content-length",
    )


def host(hosts: Sequence[str]) -> BadRequest:
    """Return that a request does not say once which host it is for (RFC 9112, 3.2).

    Args:
        hosts: what its Host headers say.
    """
    said = f"names {shown(', '.join(hosts))} in Host, which is not a single host" if hosts else "has no Host header"
    return BadRequest(f"the request {said}", hint="send one Host header, the server's name and port")


def length(said: str) -> BadRequest:
    """Return that the body's length is no number of bytes that anybody has."""
    return BadRequest(
        f"content-length is {shown(said)}, a number of {len(said)} digits", hint="send it without leading zeros"
    )


def parsed(error: Exception, url: bytes, data: bytes) -> BadRequest:
    """Return what the parser did not like.

    Args:
        url: of the request, as far as it came.
        data: in which it was found.
    """
    if url == b"*" and b"HTTP/2" in data:
        return BadRequest("this server speaks HTTP/1.1, not HTTP/2", hint="use HTTP/1.1, or put a proxy in front")
    return BadRequest(f"this is not HTTP/1.1: {error}", hint="send requests in the format of RFC 9112")
