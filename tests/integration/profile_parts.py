"""Delays to plant in a FastAPI application, by part: copied as ``parts.py`` beside the applications.

The last part of a request's path says what is slow (``slow``); what that really took is written down by ``naps``.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context, ContextVar
from types import FunctionType
from typing import Any

import anyio.to_thread
import naps
from fastapi import Depends, FastAPI, Request
from naps import planted
from torch import nn

THREADS = 4
WAIT_S = float(os.environ.get("PLANTED_WAIT_S", "0.015"))
"""What others hold a request up for: longer where the model takes as long, so that it is the bottleneck anywhere."""
LONG_S = max(WAIT_S, 0.02)

slow: ContextVar[str] = ContextVar("slow", default="")
asked_ns: ContextVar[int] = ContextVar("asked_ns", default=0)
held: ContextVar[dict[str, int] | None] = ContextVar("held", default=None)
kept: set[asyncio.Task[None]] = set()

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def nap(part: str, stage: str, seconds: float) -> None:
    """Be slow where that part is to be."""
    if slow.get() == part:
        with planted(stage):
            time.sleep(seconds)


async def authorise(request: Request, part: str) -> None:
    """A hook before every request, which blocks the event loop."""
    slow.set(part)
    if part == "hook":
        with planted("code"):
            time.sleep(LONG_S)


async def take_threads(part: str) -> None:
    """All threads of the pool are taken for a while, by nobody's request."""
    if part == "pool":
        begun = asyncio.Semaphore(0)
        loop = asyncio.get_running_loop()

        def occupy() -> None:
            loop.call_soon_threadsafe(begun.release)
            time.sleep(WAIT_S)

        for _ in range(THREADS):
            kept.add(task := Context().run(asyncio.create_task, anyio.to_thread.run_sync(occupy)))
            task.add_done_callback(kept.discard)
        for _ in range(THREADS):
            await begun.acquire()
    asked_ns.set(time.perf_counter_ns())


async def let_others_go_first(part: str) -> None:
    """The event loop runs something for a while that is nobody's, before it goes on with this."""
    if part == "loop":
        Context().run(asyncio.get_running_loop().call_soon, time.sleep, WAIT_S)
        with planted("loop"):
            await asyncio.sleep(0)


def in_thread() -> None:
    """The handler has got its thread."""
    if slow.get() == "pool":
        naps.took("wait", time.perf_counter_ns() - asked_ns.get())
    if slow.get() == "gc":
        with planted("gc"):
            gc.collect()


def hold(lock: threading.Lock) -> None:
    """From now on somebody else has the lock for a while: the next to ask for it is this request (``had``)."""
    if slow.get() != "lock":
        return
    taken, times = threading.Event(), {}

    def holder() -> None:
        with lock:
            taken.set()
            time.sleep(WAIT_S)
            times["released"] = time.perf_counter_ns()

    threading.Thread(target=holder).start()
    taken.wait()
    times["asked"] = time.perf_counter_ns()
    held.set(times)


def had() -> None:
    """The request has had the lock."""
    if (times := held.get()) is not None:
        naps.took("lock", times["released"] - times["asked"])


def slowed(model: nn.Module) -> nn.Module:
    """Plant in a model's ``forward``."""
    forward = model.forward

    def slow_forward(*args: Any, **kwargs: Any) -> Any:
        if slow.get() != "model":
            return forward(*args, **kwargs)
        with planted("model"):
            time.sleep(0.02)
            return forward(*args, **kwargs)

    model.forward = slow_forward  # type: ignore[method-assign]
    return model


def plant(app: FastAPI, path: str, handler: FunctionType, *, many: int, **annotations: type) -> None:
    """Add ``path``/{part}: the same handler with other types of body and reply, and what is slow before it.

    Args:
        app: that has the handler.
        path: below which the parts are.
        handler: of a request.
        many: things that the collector has to go through.
        annotations: of the handler.
    """
    same = FunctionType(
        handler.__code__, handler.__globals__, handler.__name__, handler.__defaults__, handler.__closure__
    )
    same.__kwdefaults__ = handler.__kwdefaults__
    same.__annotations__ = {**handler.__annotations__, **annotations}
    app.add_api_route(
        f"{path}/{{part}}",
        same,
        methods=["POST"],
        dependencies=[Depends(one) for one in (naps.remember, authorise, let_others_go_first, take_threads)],
    )
    app.router.lifespan_context = _written(app.router.lifespan_context, many)


def _written(own: Lifespan, many: int) -> Lifespan:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with own(app) as state:
            anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
            # The collector goes through these, and not through all that was imported: that would take 0.1 s.
            gc.freeze()
            app.state.many = [[] for _ in range(many)]
            gc.collect()
            yield state
        naps.write()

    return lifespan
