"""A Litestar application with a function of its own wherever the framework calls one: each naps for one path."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
from dozing import doze, nap, naps  # noqa: F401  (naps is asked for from outside)
from litestar import Controller, Litestar, Request, Response, asgi, post
from litestar.di import Provide
from litestar.middleware import ASGIMiddleware
from litestar.response import Stream


class Body(msgspec.Struct):
    n: int = 0


class Checked(msgspec.Struct):
    n: int = 0

    def __post_init__(self) -> None:
        nap()


class Shown:
    pass


def show(_: Shown) -> int:
    nap()
    return 1


class Refused(Exception):
    pass


def refused(request: Request[Any, Any, Any], error: Exception) -> Response[str]:
    nap()
    return Response("refused", status_code=200)


class Stamping(ASGIMiddleware):
    async def handle(self, scope: Any, receive: Any, send: Any, next_app: Any) -> None:
        async def stamped(message: Any) -> None:
            if scope["path"] == "/after" and message["type"] == "http.response.start":
                nap()
            await send(message)

        await next_app(scope, receive, stamped)


def around(app: Any) -> Any:
    async def passing(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/before":
            nap()
        await app(scope, receive, send)

    return passing


async def guard(connection: Any, handler: Any) -> None:
    await doze()


async def needed() -> int:
    await doze()
    return 1


def needed_in_thread() -> int:
    nap()
    return 1


@post(["/plain", "/before", "/after"])
async def plain(data: Body) -> int:
    return data.n


@post("/async")
async def awaiting(data: Body) -> int:
    await doze()
    return data.n


@post("/sync", sync_to_thread=False)
def blocking(data: Body) -> int:
    nap()
    return data.n


@post("/thread", sync_to_thread=True)
def in_thread(data: Body) -> int:
    nap()
    return data.n


class Things(Controller):
    path = "/controller"

    @post()
    async def thing(self, data: Body) -> int:
        nap()
        return data.n


@post("/guarded", guards=[guard])
async def guarded(data: Body) -> int:
    return data.n


@post("/dependency", dependencies={"one": Provide(needed)})
async def depending(data: Body, one: int) -> int:
    return one


@post("/dependency-thread", dependencies={"one": Provide(needed_in_thread, sync_to_thread=True)})
async def depending_on_thread(data: Body, one: int) -> int:
    return one


@post("/handled")
async def handled(data: Body) -> int:
    raise Refused


@post("/decode")
async def decode(data: Checked) -> int:
    return data.n


@post("/encode", type_encoders={Shown: show})
async def encode(data: Body) -> Shown:
    return Shown()


async def pieces() -> AsyncIterator[bytes]:
    for _ in range(3):
        await doze(0.003)
        yield b"piece"


def pieces_in_thread() -> Iterator[bytes]:
    for _ in range(3):
        nap(0.003)
        yield b"piece"


@post("/stream")
async def stream(data: Body) -> Stream:
    return Stream(pieces())


@post("/stream-thread")
async def stream_in_thread(data: Body) -> Stream:
    return Stream(pieces_in_thread())


@asgi("/mounted", is_mount=True)
async def mounted(scope: Any, receive: Any, send: Any) -> None:
    nap()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"mounted"})


app = Litestar(
    [
        plain, awaiting, blocking, in_thread, Things, guarded, depending, depending_on_thread, handled, decode, encode,
        stream, stream_in_thread, mounted,
    ],
    middleware=[Stamping(), around],
    exception_handlers={Refused: refused},
)  # fmt: skip
