"""Bodies that were compressed on the way: gzip and deflate requests, and replies where the manifest asks for it.

Source: RFC 9110, 8.4.1 (``gzip`` is RFC 1952, ``deflate`` is the zlib format of RFC 1950), 12.5.3 (Accept-Encoding).
"""

from __future__ import annotations

import asyncio
import zlib
from reprlib import repr as shown

from tailcut.errors import BadRequest, TooLarge, UnsupportedEncoding
from tailcut.protocol.http import HeaderMap, Reply

_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_PIECE_BYTES = 256 * 1024
"""Decompressed at most between two turns of the event loop: about a millisecond."""

_SLICE_BYTES = 64 * 1024

_LEVEL = 1
_INLINE_BYTES = 64 * 1024


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


def accepts_gzip(headers: HeaderMap) -> bool:
    """Return whether the client takes gzip: it is named, or covered by ``*``, and not with quality 0."""
    quality: dict[str, float] = {}
    for part in (headers.get("accept-encoding") or "").split(","):
        name, _, parameter = part.partition(";")
        text = parameter.strip().removeprefix("q=") if parameter else "1"
        try:
            quality[name.strip().lower()] = float(text)
        except ValueError:
            continue
    return quality.get("gzip", quality.get("*", 0.0)) > 0


async def compressed(reply: Reply, headers: HeaderMap, least_bytes: int) -> Reply:
    """Compress a reply that is large enough, for a client that takes it; a large one in a thread."""
    if len(reply.body) < least_bytes or reply.chunks is not None:
        return reply
    reply.headers.append(("vary", "accept-encoding"))
    if not accepts_gzip(headers):
        return reply
    body = reply.body
    small = _deflated(body) if len(body) <= _INLINE_BYTES else await asyncio.to_thread(_deflated, body)
    reply.headers.append(("content-encoding", "gzip"))
    reply.body = small
    return reply


def _deflated(body: bytes) -> bytes:
    return zlib.compress(body, _LEVEL, wbits=31)
