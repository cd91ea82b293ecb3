"""Processor time of one request through the ASGI application, without sockets: what ``checkouts --in-process`` runs.

    python -m benchmarks.in_process MANIFEST [PATH=VALUE ...]

Sockets and a load generator make a server's figure vary by a tenth from round to round on a shared machine; this one
varies by a fiftieth. 32 requests are in flight. The figure is the lower quartile of chunks of some 2,000 requests: what
the machine disturbed is left out.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import MutableMapping
from statistics import quantiles
from typing import Any

import tailcut
from benchmarks.mlp import BODY_FLOATS

CONNECTIONS = 32
_CHUNKS, _EACH = 60, 62
_PATH = "/v2/models/mlp/infer"
_HEADERS = [
    (b"host", b"127.0.0.1"),
    (b"content-type", b"application/json"),
    (b"content-length", str(len(BODY_FLOATS)).encode()),
]
_SCOPE = {
    "type": "http",
    "asgi": {"version": "3.0"},
    "http_version": "1.1",
    "method": "POST",
    "scheme": "http",
    "path": _PATH,
    "raw_path": _PATH.encode(),
    "query_string": b"",
    "root_path": "",
    "client": ("127.0.0.1", 5),
    "server": ("127.0.0.1", 80),
}


async def ask(application: Any) -> None:
    """Send one request, and check that it is answered."""
    bodies, statuses = [BODY_FLOATS], []

    async def receive() -> dict[str, Any]:
        if not bodies:
            await asyncio.sleep(3600)
        return {"type": "http.request", "body": bodies.pop(), "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        statuses.append(message.get("status", 200))

    await application({**_SCOPE, "headers": list(_HEADERS), "state": {}}, receive, send)
    if set(statuses) != {200}:
        sys.exit(f"error: it answered {statuses}")


async def several(application: Any) -> None:
    for _ in range(_EACH):
        await ask(application)


async def main(manifest: str, settings: list[str]) -> None:
    application = tailcut.asgi(manifest, overrides=settings)
    sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    received: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
    lifespan = asyncio.create_task(
        application({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, sent.get, received.put)
    )
    await sent.put({"type": "lifespan.startup"})
    started = await received.get()
    if started["type"] != "lifespan.startup.complete":
        sys.exit(f"error: it did not start: {started.get('message')}")
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)  # as `tailcut serve` has it
    figures = []
    for _ in range(_CHUNKS):
        began_s = time.process_time()
        await asyncio.gather(*(several(application) for _ in range(CONNECTIONS)))
        figures.append((time.process_time() - began_s) / (CONNECTIONS * _EACH) * 1e6)
    print(quantiles(figures)[0])
    await sent.put({"type": "lifespan.shutdown"})
    await lifespan


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
