"""What stands before the routes where the manifest asks for it: CORS, compression, the access log.

Source: RFC 9110, 12.5.3 (Accept-Encoding).
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Sequence

from tailcut.manifest.host import HostManifest
from tailcut.protocol.access_log import AccessLog
from tailcut.protocol.http import Body, HeaderMap, Reply

Handle = Callable[[str, str, HeaderMap, Body], Awaitable[Reply]]

_LEVEL = 1
_INLINE_BYTES = 64 * 1024
"""Of a body that is compressed on the event loop; a larger one is in a thread."""


class Middleware:
    """Wraps what handles requests; close it at the end.

    Attributes:
        log: the access log; None where there is none.

    Raises:
        StartError: the access log cannot be opened.
    """

    def __init__(self, handle: Handle, manifest: HostManifest) -> None:
        server = manifest.server
        self.log: AccessLog | None = None
        if server.compress_bytes:
            handle = _compressing(handle, int(server.compress_bytes))
        if server.cors_origins:
            handle = Cors(handle, server.cors_origins).handle
        if server.access_log:
            self.log = AccessLog(handle, manifest)
            handle = self.log.handle
        self.handle = handle

    def close(self) -> None:
        """Write what is left to write."""
        if self.log is not None:
            self.log.close()


def _compressing(handle: Handle, least_bytes: int) -> Handle:
    async def wrapped(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        return await compressed(await handle(method, path, headers, body), headers, least_bytes)

    return wrapped


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


# -- CORS --------------------------------------------------------------------------------------------------------------


# Cross-origin requests of web pages, for origins that the manifest names.
#
# Source: Fetch standard, "CORS protocol" (https://fetch.spec.whatwg.org/#http-cors-protocol).

_ALLOWED_HEADERS = (
    "authorization, content-type, content-encoding, inference-header-content-length, traceparent, x-tailcut-timeout-ms"
)
_EXPOSED_HEADERS = (
    "inference-header-content-length, retry-after, server-timing, traceparent, x-tailcut-cache, x-tailcut-variant, "
    "x-tailcut-version"
)
_PREFLIGHT_S = 600


class Cors:
    """Answers preflight requests, and tells browsers which pages may read a reply."""

    def __init__(self, handle: Handle, origins: Sequence[str]) -> None:
        self._handle = handle
        self._origins = frozenset(origins)
        self._all = "*" in origins

    async def handle(self, method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        """Answer one request."""
        origin = headers.get("origin")
        if origin is None:
            reply = await self._handle(method, path, headers, body)
            reply.headers.append(("vary", "origin"))
            return reply
        allowed = self._all or origin in self._origins
        if method == "OPTIONS" and headers.get("access-control-request-method") is not None:
            reply = Reply(204, [], b"")
            if allowed:
                asked = headers.get("access-control-request-headers")
                reply.headers += [
                    ("access-control-allow-methods", "GET, HEAD, POST"),
                    # What is asked for is allowed: the names hold no secret, and models' gateways add their own.
                    ("access-control-allow-headers", asked if asked and _is_names(asked) else _ALLOWED_HEADERS),
                    ("access-control-max-age", str(_PREFLIGHT_S)),
                ]
        else:
            reply = await self._handle(method, path, headers, body)
            if allowed:
                reply.headers.append(("access-control-expose-headers", _EXPOSED_HEADERS))
        if allowed:
            reply.headers.append(("access-control-allow-origin", "*" if self._all else origin))
        reply.headers.append(("vary", "origin"))
        return reply


def _is_names(text: str) -> bool:
    """Whether text is a list of header names, fit to be sent back."""
    if len(text) > 1000:
        return False
    return all(name.strip().replace("-", "").replace("_", "").isalnum() and name.isascii() for name in text.split(","))
