"""The same application as ASGI: for mounting in a user's FastAPI or Starlette app, and for tests without a socket.

Source: ASGI specification 3.0 (https://asgi.readthedocs.io), http and lifespan.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tailcut.errors import ClientGone
from tailcut.manifest import Manifest
from tailcut.manifest.host import HostManifest, load_host
from tailcut.protocol.app import Application
from tailcut.protocol.auth import Guard
from tailcut.protocol.data_plane import DataPlane
from tailcut.protocol.http import Chunks, Reply, by_name
from tailcut.protocol.middleware import Middleware
from tailcut.serving.engine import Engine
from tailcut.serving.host import Host
from tailcut.serving.tracing import with_current_span
from tailcut.transport.in_process import paths_of

log = logging.getLogger("tailcut.server")

_LAST_WORD_S = 1.0
"""Behind a stream's deadline, for the event that says so."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class ASGIApplication:
    """An ASGI 3 application.

    The process belongs to the mounting app, so its floating point mode is left as it is: `tailcut serve` flushes
    subnormals to zero, this does not.

    The models are loaded with the lifespan, which a server sends to an application that stands alone. Frameworks send
    none to what is mounted in them: give ``lifespan`` to the mounting application. Where nobody starts it, the first
    request does, and requests are told 503 until it is ready.

    Raises:
        StartError: a file of tokens cannot be read.
    """

    def __init__(self, manifest: Manifest | HostManifest) -> None:
        self._manifest = HostManifest.of(manifest) if isinstance(manifest, Manifest) else manifest
        self.host = Host(self._manifest)
        self.host.observed.begin(in_application=True)
        self.application = Application(DataPlane(self.host, Guard.of(self._manifest)))
        self._middleware: Middleware | None = None
        self._failure: Exception | None = None
        self._loading: asyncio.Task[None] | None = None

    @property
    def engine(self) -> Engine:
        """The only model."""
        return self.host.only

    async def start(self) -> None:
        """Load and warm up.

        Raises:
            TailcutError: what could not be loaded.
        """
        middleware = self._begin()
        if self._loading is not None:  # a request came before the lifespan
            await asyncio.shield(self._loading)
            if self._failure is not None:
                raise self._failure
            return
        try:
            await self.host.start()
        except BaseException:
            self._middleware = None
            middleware.close()
            raise

    async def stop(self) -> None:
        """Stop the executors and close connections."""
        if self._loading is not None:
            self._loading.cancel()
        await self.host.stop(timeout_s=5.0)
        if self._middleware is not None:
            self._middleware.close()

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncGenerator[None, None]:
        """Start at the begin of the block and stop at its end: the ``lifespan`` of a Starlette or FastAPI app.

        Args:
            app: the mounting application; nothing is asked of it.
        """
        await self.start()
        try:
            yield
        finally:
            await self.stop()

    def _begin(self) -> Middleware:
        """Make what stands before the routes; not earlier, because it may start a thread."""
        if self._middleware is None:
            self._middleware = Middleware(self.application.handle, self._manifest)
        return self._middleware

    def _start_late(self) -> Middleware:
        """Start where nobody has, in the background."""
        middleware = self._begin()
        self._loading = asyncio.get_running_loop().create_task(self._load())
        return middleware

    async def _load(self) -> None:
        try:
            await self.host.start()
        except Exception as error:
            self._failure = error
            log.exception("no model could be loaded")  # requests are told why

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"tailcut answers http, not {scope['type']!r}")
        middleware = self._middleware or self._start_late()
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        headers = by_name(with_current_span(pairs) if self.host.observed.traces.has_provider else pairs)
        if "transfer-encoding" in headers:  # goes before the length (RFC 9112, 6.3), which is then no limit of the body
            headers.pop("content-length", None)
        body = _Body(receive)
        root = scope.get("root_path", "")
        path = scope["path"].removeprefix(root) if root else scope["path"]
        try:
            reply = await middleware.handle(scope["method"], path, headers, body)
        except BaseException:
            body.close()
            raise
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
        if reply.chunks is not None:
            await _stream(reply, reply.chunks, raw, send)
            return
        body.close()
        raw.append((b"content-length", str(len(reply.body)).encode()))
        await send({"type": "http.response.start", "status": reply.status, "headers": raw})
        await send({"type": "http.response.body", "body": reply.body if scope["method"] != "HEAD" else b""})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.start()
                except Exception as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


async def _stream(reply: Reply, chunks: Chunks, raw: list[tuple[bytes, bytes]], send: Send) -> None:
    """Send a body as it is made; what makes it is closed at its end, or when the client is gone."""
    try:
        await send({"type": "http.response.start", "status": reply.status, "headers": raw})
        async for chunk in chunks:
            async with asyncio.timeout(max(chunks.left_s(), 0.0) + _LAST_WORD_S):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    except OSError:
        return  # ASGI 2.4 and later: the client is gone. TimeoutError: it does not read, and the deadline has passed
    finally:
        await chunks.aclose()


class _Body:
    """Reads an ASGI body; tells of a disconnect by reading on behind the body."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ended = False
        self._gone = asyncio.Event()

    async def __call__(self) -> bytes:
        return b"".join([piece async for piece in self])

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while not self._ended:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._ended = True
                self._gone.set()
                raise ClientGone("the client closed the connection before it had sent its request")
            self._ended = not message.get("more_body", False)
            yield message.get("body", b"")

    async def client_disconnect(self) -> None:
        while not self._gone.is_set():
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._gone.set()

    def close(self) -> None:
        self._ended = True


def asgi(*manifests: Manifest | Path | str, overrides: Sequence[str] = ()) -> ASGIApplication:
    """Make the ASGI application of one deployment or several; see ``tailcut.asgi``."""
    if len(manifests) == 1 and isinstance(manifests[0], Manifest):
        return ASGIApplication(manifests[0])
    return ASGIApplication(load_host(paths_of(manifests), overrides=overrides))
