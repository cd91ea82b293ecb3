"""The application on Granian's RSGI interface: one event loop in one worker process.

Source: RSGI specification 1.x (https://github.com/emmett-framework/granian, docs/spec/RSGI.md).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from granian.rsgi import ProtocolClosed  # type: ignore[attr-defined]  # re-exported without saying so

from tailcut.engine.engine import Engine
from tailcut.errors import TailcutError
from tailcut.manifest import Manifest
from tailcut.runtimes.onnxruntime import flush_subnormals
from tailcut.server.app import Application
from tailcut.server.auth import Guard
from tailcut.server.bodies import Bodies
from tailcut.server.front import Front
from tailcut.server.http import HeaderMap
from tailcut.server.remains import Remains
from tailcut.server.saying import say
from tailcut.server.scheduling import Scheduling
from tailcut.server.sending import send_stream
from tailcut.server.silent import SilentConnections
from tailcut.server.stopping import STOP, before_stop

if TYPE_CHECKING:
    from tailcut.server.grpc.server import GRPCServer

log = logging.getLogger("tailcut.server")

EXIT_START_FAILED = 3
"""The worker's exit code where the deployment could not be loaded; the supervisor passes it on."""

_GC_THRESHOLDS = (10_000, 20, 50)
"""Requests make no cycles in the common case, so the collector looks less often than Python's 700 allocations."""

_CLOSE = ("connection", "close")

_PARENT_CHECK_S = 1.0

_REFUSED = 400
_OVERLOADED = 429
_REST_S = 1.0
_REST_BYTES = 1024 * 1024


def _ignore() -> None:
    """Do nothing."""


class RSGIApplication:
    """What Granian calls. Loads the deployment in the background, so that health answers meanwhile."""

    def __init__(self, manifest: Manifest, url: str, address: str, supervisor_pid: int) -> None:
        self._manifest = manifest
        self._url = url
        self._address = address
        self._engine = Engine(manifest)
        self._engine.say = _say
        self._guard = Guard.of(manifest, address=address)
        self._front = Front(Application(self._engine, (ProtocolClosed,), self._guard).handle, manifest)
        self._handle = self._front.handle
        self._bodies = Bodies(int(manifest.deployment.server.max_body_bytes))
        self._remains = Remains()
        self._scheduling = Scheduling(self._engine, manifest.deployment.server.scheduling)
        self._engine.exposition.add(self._scheduling.samples)
        self._draining = False
        self._supervisor_pid = supervisor_pid
        self._loading: asyncio.Task[None] | None = None
        self._grpc: GRPCServer | None = None

    def __rsgi_init__(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_signal_handler(signal.SIGUSR1, self._drain)
        loop.add_signal_handler(signal.SIGTERM, self._on_sigterm)
        # They reach the whole process group; the supervisor decides when this process stops.
        for number in (signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, _ignore)
        before_stop(self._engine.streams.stop)
        # In this thread, because inline executors run in it and thread executors inherit from it.
        flush_subnormals()
        self._loading = loop.create_task(self._load())
        self._watch_parent(loop)
        SilentConnections(self._manifest, urlsplit(self._url).port or 0).watch(loop)
        self._scheduling.watch(loop)

    def __rsgi_del__(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_until_complete(self._stop())

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        reply = await self._handle(scope.method, scope.path, scope.headers, protocol)
        left = False  # of a body that was refused unread: who still sends it would see the connection close, no reply
        if reply.status >= _REFUSED and scope.http_version == "2":
            await _read_rest(protocol)
        elif reply.status == _OVERLOADED:
            left = not self._comes(scope.headers, protocol)
        if self._draining:
            reply.headers.append(_CLOSE)
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

    def _watch_parent(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop when the supervisor was killed: nobody could stop this process any more, and it holds the port."""
        if os.getppid() != self._supervisor_pid:
            os.kill(os.getpid(), STOP)
        else:
            loop.call_later(_PARENT_CHECK_S, self._watch_parent, loop)

    def _on_sigterm(self) -> None:
        """Drain, and leave the stop to the supervisor, which may not have got the signal itself."""
        if not self._draining and os.getppid() == self._supervisor_pid:
            os.kill(self._supervisor_pid, signal.SIGUSR2)
        self._drain()

    def _drain(self) -> None:
        self._draining = True
        self._engine.drain()

    async def _stop(self) -> None:
        server = self._manifest.deployment.server
        if self._grpc is not None:
            # Half of what is left until the kill: requests that were begun are answered, connections told to go.
            await self._grpc.stop(max(float(server.kill_s) - float(server.drain_s), 0.2) / 2)
        await self._engine.stop(timeout_s=1.0)
        self._front.close()

    async def _listen_grpc(self) -> str:
        """Listen for gRPC where that is wanted, from before the model is loaded; return its address."""
        port = self._manifest.deployment.server.grpc_port
        if not port:
            return ""
        from tailcut.server.grpc.server import GRPCServer

        self._grpc = GRPCServer(self._engine, self._address, port, self._guard, self._front.log)
        await self._grpc.start()
        return f" and for gRPC on port {self._grpc.port}"

    async def _load(self) -> None:
        started_s = perf_counter()
        try:
            grpc = await self._listen_grpc()
            await self._engine.start()
        except TailcutError as error:
            _fail(f"error: {error}")
        except Exception:
            log.exception("the deployment could not be loaded")
            _fail("error: the deployment could not be loaded (traceback above)")
        # What loading left behind lives as long as the process: keep the collector from walking it again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        opened = self._engine.opened
        batch_ms = {rows: round(ns / 1e6, 3) for rows, ns in opened.warm_up_ns.items()}
        say(
            f"tailcut: {self._manifest.deployment.name} is ready on {self._url}{grpc} after "
            f"{perf_counter() - started_s:.1f} s: variant {opened.variant.name} ({opened.variant.runtime}, version "
            f"{opened.variant.version}), {opened.executor} executor, ms per batch of rows {batch_ms}"
            f"{'' if opened.merges else ', requests do not share batches'}"
            f"{f'; the gate refused it: {opened.variant.refused}' if opened.variant.refused else ''}"
        )


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


def _say(text: str) -> None:
    say(f"tailcut: {text}")


def _fail(message: str) -> None:
    """End the worker at once: its load failed, nothing was served, and the supervisor must not exit with 0."""
    say(message)
    os._exit(EXIT_START_FAILED)
