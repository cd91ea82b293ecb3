"""Heads of replies and pieces of streamed bodies as bytes. No I/O.

Source: RFC 9112, 4 (status line), 5 (fields), 7.1 (chunked).
"""

from __future__ import annotations

from http import HTTPStatus

from tailcut.server.http import Headers

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_NO_BODY = frozenset({204, 304})


def head(status: int, headers: Headers, framing: str) -> bytes:
    """Return a reply's head.

    Args:
        headers: names in lower case, values in Latin-1.
        framing: lines of the connection: the date, the length of the body, whether it stays open.

    Raises:
        ValueError: a header has a line break, which would begin another header or the body.
    """
    fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
    if fields.count("\n") != len(headers) or fields.count("\r") != len(headers) or "\0" in fields:
        raise ValueError(f"a header of the reply has a line break or NUL in it: {headers!r}")
    line = _LINES.get(status) or f"HTTP/1.1 {status} \r\n"
    return f"{line}{fields}{framing}\r\n".encode("latin-1")


def has_body(status: int) -> bool:
    """Whether a reply of this status has a body, and with it a length (RFC 9110, 6.4.1)."""
    return status not in _NO_BODY


def chunk(data: bytes) -> bytes:
    """Return a piece of a streamed body; an empty one would end the body, and is left out."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
