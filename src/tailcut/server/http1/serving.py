"""The worker process that serves HTTP/1.1: its event loop, from the first to the last."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import uvloop
from granian.log import configure_logging

from tailcut.server.http1.listener import Listener
from tailcut.server.http1.site import Site
from tailcut.server.signals import STOP
from tailcut.server.tls import Tls, context_of
from tailcut.server.worker import Worker, fail


class Http1:
    """What the supervisor hands over to its worker.

    Args:
        address: an IP address.
    """

    def __init__(self, worker: Worker, address: str, port: int, tls: Tls | None) -> None:
        self._worker = worker
        self._address = address
        self._port = port
        self._tls = tls

    def run(self) -> None:
        """Serve until told to stop."""
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.run_until_complete(self._serve(loop))

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        stopped = asyncio.Event()
        loop.add_signal_handler(STOP, stopped.set)
        server = self._worker.manifest.deployment.server
        context = context_of(self._tls) if self._tls is not None else None
        site = Site(self._worker, loop)
        self._worker.expose(site.samples)
        listener = Listener(site, self._worker.manifest, self._listen(server.backlog), context)
        self._worker.begin(loop)
        listener.start()
        await stopped.wait()
        self._worker.end_streams()
        await listener.stop()
        await self._worker.end()

    def _listen(self, backlog: int) -> socket.socket:
        """Listen; the supervisor has seen that the port is free, but somebody may have been faster."""
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        try:
            return socket.create_server((self._address, self._port), family=family, backlog=backlog)
        except OSError as error:
            fail(f"cannot listen on {self._address}:{self._port}: {error.strerror}")


def spawn(
    worker_id: int,
    name: str | None,
    load: Callable[[], Http1],
    sockets: Any,
    pipe: Any,
    loop: Any,
    log_enabled: bool,
    log_level: Any,
    log_config: dict[str, Any] | None,
    *_: Any,
) -> None:
    """Serve, in the process that Granian's supervisor has begun for it. The arguments are those of its own workers."""
    configure_logging(log_level, log_config, log_enabled)
    load().run()
