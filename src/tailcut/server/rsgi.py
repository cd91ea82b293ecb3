"""The deployment on Granian's RSGI interface, for HTTP/2 and HTTP/1.1: one event loop in one worker process.

Source: RSGI specification 1.x (https://github.com/emmett-framework/granian, docs/spec/RSGI.md).
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from granian.rsgi import ProtocolClosed  # type: ignore[attr-defined]  # re-exported without saying so

from tailcut.errors import Shed
from tailcut.manifest import Manifest
from tailcut.server.bodies import Bodies
from tailcut.server.http import CLOSE, HeaderMap
from tailcut.server.remains import Remains
from tailcut.server.sending import send_stream
from tailcut.server.silent import SilentConnections
from tailcut.server.stopping import before_stop
from tailcut.server.worker import Worker

log = logging.getLogger("tailcut.server")

_REFUSED = 400
_REST_S = 1.0
_REST_BYTES = 1024 * 1024


class RSGIApplication:
    """What Granian calls."""

    def __init__(self, manifest: Manifest, url: str, address: str, supervisor_pid: int) -> None:
        self._worker = Worker(manifest, url, address, supervisor_pid, (ProtocolClosed,))
        self._handle = self._worker.handle
        self._bodies = Bodies(int(manifest.deployment.server.max_body_bytes))
        self._remains = Remains()
        self._silent = SilentConnections(manifest, urlsplit(url).port or 0)

    def __rsgi_init__(self, loop: asyncio.AbstractEventLoop) -> None:
        before_stop(self._worker.end_streams)
        self._worker.begin(loop)
        self._silent.watch(loop)

    def __rsgi_del__(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_until_complete(self._worker.end())

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        reply = await self._handle(scope.method, scope.path, scope.headers, protocol)
        left = False  # of a body that was refused unread: who still sends it would see the connection close, no reply
        if reply.status >= _REFUSED and scope.http_version == "2":
            await _read_rest(protocol)
        elif reply.status == Shed.status:
            left = not self._comes(scope.headers, protocol)
        if self._worker.is_draining:
            reply.headers.append(CLOSE)
        if reply.chunks is not None:
            await send_stream(scope.client, protocol, reply, reply.chunks)
            return
        try:
            protocol.response_bytes(reply.status, reply.headers, reply.body)
        except RuntimeError:
            log.debug("the client was gone before its reply could be written")
        if left:
            await _read_rest(protocol)

    def _comes(self, headers: HeaderMap, protocol: Any) -> bool:
        """Have the HTTP layer read what is left of a small body, and nobody wait for it: refusals must cost little."""
        if not self._bodies.is_small(headers):
            return False
        with suppress(RuntimeError):  # it was read, or the client is gone
            self._remains.expect(protocol())  # reads from here on, not only once it is awaited
        return True


async def _read_rest(protocol: Any) -> None:
    """Read what is left of the body of a request that was refused before it was read, for a bounded time and size.

    Over HTTP/2 the stream is reset otherwise, and clients such as curl then report that instead of the reply. Over
    HTTP/1.1 the connection is closed otherwise.
    """
    size = 0
    with suppress(TimeoutError, RuntimeError):  # RuntimeError: it was read, or the client is gone
        async with asyncio.timeout(_REST_S):
            async for piece in protocol:
                size += len(piece)
                if size > _REST_BYTES:
                    return
