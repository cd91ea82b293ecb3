"""A FastAPI application with a function of its own wherever the framework calls one: each naps for one path."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from dozing import doze, nap, naps  # noqa: F401  (naps is asked for from outside)
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from starlette.endpoints import HTTPEndpoint
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import Route


class Refused(Exception):
    pass


class Frozen:
    """A middleware whose ``app`` cannot be set from outside."""

    def __init__(self, app: Any) -> None:
        self._app = app

    @property
    def app(self) -> Any:
        return self._app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def passing(message: Any) -> None:
            if scope["path"] == "/sending" and message["type"] == "http.response.start":
                nap()
            await send(message)

        if scope["path"] == "/frozen":
            nap()
        await self._app(scope, receive, passing)


class Stamping(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: Any) -> Any:
        reply = await call_next(request)
        if request.url.path == "/after":
            await doze()
        return reply


app = FastAPI()
app.add_middleware(Frozen)
app.add_middleware(Stamping)


@app.middleware("http")
async def before(request: Request, call_next: Any) -> Any:
    if request.url.path == "/before":
        nap()
    return await call_next(request)


@app.exception_handler(Refused)
async def refused(request: Request, error: Exception) -> JSONResponse:
    nap()
    return JSONResponse("refused")


class Timed(APIRoute):
    def get_route_handler(self) -> Callable[..., Any]:
        handler = super().get_route_handler()

        async def timed(request: Request) -> Any:
            reply = await handler(request)
            nap()
            return reply

        return timed


class Classy(HTTPEndpoint):
    async def post(self, request: Request) -> JSONResponse:
        await request.body()
        nap()
        return JSONResponse("classy")


async def mounted(scope: Any, receive: Any, send: Any) -> None:
    nap()
    await JSONResponse("mounted")(scope, receive, send)


class Instance:
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await mounted(scope, receive, send)


custom = APIRouter(route_class=Timed)


@custom.post("/custom")
async def customised(body: dict[str, int]) -> int:
    return body["n"]


for path in ("/plain", "/before", "/after", "/frozen", "/sending"):

    @app.post(path)
    async def answer(body: dict[str, int]) -> int:
        return body["n"]


@app.post("/handled")
async def handled() -> int:
    raise Refused


async def pieces() -> AsyncIterator[bytes]:
    for _ in range(3):
        await doze(0.003)
        yield b"piece"


@app.post("/stream")
async def stream() -> StreamingResponse:
    return StreamingResponse(pieces())


@app.post("/generator")
async def generate() -> AsyncIterator[int]:
    for number in range(3):
        nap(0.003)
        yield number


app.include_router(custom)
app.mount("/mounted", mounted)
app.router.routes += [
    Route("/classy", Classy),
    Route("/instance", Instance()),
]


async def outer(scope: Any, receive: Any, send: Any) -> None:
    """What the user puts around the whole application."""
    nap()
    await app(scope, receive, send)
