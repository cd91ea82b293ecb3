"""tailcut's own HTTP/1.1 with a handler that reads the body and answers a constant: what of tailcut is not its HTTP."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any, cast

import uvloop

from tailcut.pipeline.request_context import Arrivals
from tailcut.protocol.http import JSON, Body, HeaderMap, Reply
from tailcut.transport.http1.connection import Connection, Site


async def _noop(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
    await body()
    return Reply(200, [JSON], b'{"outputs":[]}')


async def _serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    site = Site(cast(Any, SimpleNamespace(handle=_noop, arrivals=Arrivals(), on_drain=None)), loop)
    server = await loop.create_server(lambda: Connection(site), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
