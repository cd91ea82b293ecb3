"""The event loop of the worker process, from the first to the last."""

from __future__ import annotations

import asyncio
import socket

import uvloop

from tailcut.transport.http1.listener import Listener
from tailcut.transport.http1.site import Site
from tailcut.transport.signals import STOP
from tailcut.transport.tls import Tls, context_of
from tailcut.transport.worker import Worker


def serve_http1(worker: Worker, listening: socket.socket, tls: Tls | None) -> None:
    """Serve until told to stop.

    Args:
        listening: bound, and listening.
    """
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(_serve(worker, listening, tls, loop))


async def _serve(worker: Worker, listening: socket.socket, tls: Tls | None, loop: asyncio.AbstractEventLoop) -> None:
    stopped = asyncio.Event()
    loop.add_signal_handler(STOP, stopped.set)
    site = Site(worker, loop)
    worker.expose(site.samples)
    listener = Listener(site, worker.server, listening, context_of(tls) if tls is not None else None)
    worker.begin(loop)
    listener.start()
    await stopped.wait()
    worker.end_streams()
    await listener.stop()
    await worker.end()
