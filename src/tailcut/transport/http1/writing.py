"""Heads of replies and pieces of streamed bodies as bytes. No I/O.

Source: RFC 9112, 4 (status line), 5 (fields), 7.1 (chunked).
"""

from __future__ import annotations

from http import HTTPStatus

from tailcut.protocol.http import Headers

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}" for status in HTTPStatus}
_NO_BODY = frozenset({204, 304})
_field = ": ".join


def head(status: int, headers: Headers, framing: str, size_bytes: int | None = None) -> bytes:
    """Return a reply's head.

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
