"""Run as a program: calls a hooked application as a server would, path by path, and tells what was recorded.

Arguments: applications as "module:attribute", then paths. On stdout: MessagePack, of each application and path what
``Said`` holds. Without a server and a load it takes a second, and nothing runs beside the application.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from typing import Any

import msgspec

from tailcut.profiler.hooks import install_hooks
from tailcut.profiler.recording.middleware import Profiled
from tailcut.profiler.recording.spans import requests_of
from tailcut.profiler.recording.tracing import tracer
from tailcut.profiler.records import RecordedRequest

ROUNDS = 8
"""Of each path, of which the one is kept that spent least time elsewhere and waited least for a core: the first finds
nothing ready, and on a busy machine others have the core now and then."""
BODY = b'{"n": 3}'


class Said(msgspec.Struct):
    """One path of one application: its request, its reply, and what the application timed itself of it."""

    application: str
    path: str
    request: RecordedRequest
    body: bytes
    naps_ns: int
    notes: list[str]


async def ask(application: Any, number: int, path: str) -> bytes:
    """Send a request; the client stays until it has the reply."""
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"host", b"here"), (b"content-type", b"application/json"),
                    (b"content-length", str(len(BODY)).encode()), (b"x-tailcut-profile", str(number).encode())],
        "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 80), "state": {}, "extensions": {},
    }  # fmt: skip
    body, answered, parts = [BODY], asyncio.get_running_loop().create_future(), []

    async def receive() -> dict[str, Any]:
        if body:
            return {"type": "http.request", "body": body.pop(), "more_body": False}
        await asyncio.shield(answered)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            parts.append(bytes(message.get("body", b"")))
            if not message.get("more_body", False):
                answered.set_result(None)

    await asyncio.wait_for(asyncio.create_task(application(scope, receive, send)), 10)
    return b"".join(parts)


async def main(targets: list[str], paths: list[str]) -> list[Said]:
    found = []
    for target in targets:
        name, _, attribute = target.partition(":")
        module = importlib.import_module(name)
        profiled = Profiled(getattr(module, attribute))
        for path in paths:
            asked = [await once(target, module, profiled, path) for _ in range(ROUNDS)]
            found.append(min(asked, key=lost_ns))
    return found


def lost_ns(said: Said) -> int:
    """Time of a request in which it did not nap, or had no core."""
    delay_ns = sum(max(span.delay_ns, 0) for span in said.request.spans)
    return said.request.left_ns - said.request.entered_ns - said.naps_ns + delay_ns


async def once(target: str, module: Any, profiled: Any, path: str) -> Said:
    tracer.clear()
    module.naps.clear()
    body = await ask(profiled, 1, path)
    (request,) = requests_of(tracer)
    return Said(target, path, request, body, sum(module.naps), list(tracer.notes))


if __name__ == "__main__":
    install_hooks()
    sys.path.insert(0, os.getcwd())
    targets = [one for one in sys.argv[1:] if ":" in one]
    sys.stdout.buffer.write(msgspec.msgpack.encode(asyncio.run(main(targets, sys.argv[1 + len(targets) :]))))
