"""An application with a known delay in each stage; the test copies this file and lets it be profiled as it is.

REDIS, POSTGRES: servers. What the delays really took is written down by ``naps`` (profile_naps.py).
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from typing import Annotated, Any

import anyio.to_thread
import asyncpg
import httpx
import naps
import redis
import redis.asyncio
import torch
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from naps import planted
from psycopg_pool import ConnectionPool
from pydantic import BaseModel, field_serializer, field_validator


def nap(stage: str, seconds: float) -> int:
    with planted(stage):
        time.sleep(seconds)
    return 1


class Slow(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nap("model", 0.008)
        return self.inner(x)


class SlowResponse(JSONResponse):
    def render(self, content: Any) -> bytes:
        nap("encode", 0.006)
        return super().render(content)


class Body(BaseModel):
    n: int = 0


class Checked(BaseModel):
    n: int = 0

    @field_validator("n")
    @classmethod
    def check(cls, value: int) -> int:
        nap("decode", 0.006)
        return value


class Shown(BaseModel):
    n: int = 0

    @field_serializer("n")
    def show(self, value: int) -> int:
        nap("encode", 0.006)
        return value


model = Slow().eval()
lock = threading.Lock()
local = threading.local()
alone = anyio.CapacityLimiter(1)
workers = ThreadPoolExecutor(2)


def database() -> sqlite3.Connection:
    if not hasattr(local, "connection"):
        local.connection = sqlite3.connect(":memory:")
        local.connection.create_function("nap", 1, lambda seconds: nap("sql", seconds))
    return local.connection


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.alock = asyncio.Lock()
    app.state.pool = ConnectionPool(os.environ["POSTGRES"], min_size=2, max_size=2, open=True)
    app.state.pg = await asyncpg.create_pool(os.environ["POSTGRES"], min_size=1, max_size=4)
    app.state.redis = redis.Redis.from_url(os.environ["REDIS"])
    app.state.aredis = redis.asyncio.Redis.from_url(os.environ["REDIS"])
    app.state.client = httpx.AsyncClient()
    yield
    naps.write()


app = FastAPI(lifespan=lifespan, dependencies=[Depends(naps.remember)])


@app.post("/sqlite")
def sqlite(body: Body) -> int:
    return database().execute("SELECT nap(0.005)").fetchall()[0][0]


@app.post("/psycopg")
def with_psycopg(body: Body, request: Request) -> int:
    with request.app.state.pool.connection() as connection, planted("sql"):
        connection.execute("SELECT pg_sleep(0.005)").fetchall()
    return 1


@app.post("/asyncpg")
async def with_asyncpg(body: Body, request: Request) -> int:
    with planted("sql"):
        await request.app.state.pg.fetch("SELECT pg_sleep(0.005)")
    return 1


@app.post("/redis")
def with_redis(body: Body, request: Request) -> int:
    with planted("cache"):
        request.app.state.redis.blpop("nothing", timeout=0.02)
    return 1


@app.post("/aredis")
async def with_async_redis(body: Body, request: Request) -> int:
    with planted("cache"):
        await request.app.state.aredis.blpop("nothing", timeout=0.02)
    return 1


@app.post("/http")
async def outgoing(body: Body, request: Request) -> int:
    with planted("http"):
        await request.app.state.client.get(f"{request.base_url}upstream")
    return 1


@app.get("/upstream")
async def upstream() -> int:
    await asyncio.sleep(0.01)
    return 1


@app.post("/gather")
async def together(body: Body, request: Request) -> int:
    client = request.app.state.client
    with planted("http"):
        await asyncio.gather(*(client.get(f"{request.base_url}upstream") for _ in range(3)))
    return 1


@app.post("/model")
def predict(body: Body) -> float:
    with torch.inference_mode():
        return float(model(torch.zeros(1, 4)).sum())


@app.post("/block")
async def block(body: Body) -> int:
    return hook()


def hook() -> int:
    return nap("code", 0.02)


@app.post("/render", response_class=SlowResponse)
async def render(body: Body) -> Any:
    return {"n": 1}


@app.post("/serialise")
async def serialise(body: Body) -> Shown:
    return Shown()


@app.post("/validate")
async def validate(body: Checked) -> int:
    return 1


def hold(taken: threading.Event) -> None:
    with lock:
        taken.set()
        time.sleep(0.01)


@app.post("/lock")
def wait_for_lock(body: Body) -> int:
    taken = threading.Event()
    thread = threading.Thread(target=hold, args=(taken,))
    thread.start()
    taken.wait()
    with planted("lock"):
        lock.acquire()
    lock.release()
    thread.join()
    return 1


@app.post("/alock")
async def wait_for_async_lock(body: Body, request: Request) -> int:
    alock = request.app.state.alock

    async def hold_it() -> None:
        async with alock:
            await asyncio.sleep(0.01)

    task = asyncio.create_task(hold_it())
    await asyncio.sleep(0)
    with planted("lock"):
        await alock.acquire()
    alock.release()
    await task
    return 1


async def slow_dependency() -> int:
    begun = time.perf_counter_ns()
    await asyncio.sleep(0.007)
    naps.took("code", time.perf_counter_ns() - begun)
    return 1


@app.post("/dependency")
async def depends(body: Body, one: Annotated[int, Depends(slow_dependency)]) -> int:
    return one


@app.post("/pool")
async def exhausted(body: Body) -> int:
    """The only thread is taken for 12 ms, by nobody's request, when this asks for it."""
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def occupy() -> None:
        loop.call_soon_threadsafe(begun.set)
        time.sleep(0.012)

    task = Context().run(asyncio.create_task, anyio.to_thread.run_sync(occupy, limiter=alone))
    await begun.wait()
    asked = time.perf_counter_ns()
    started = await anyio.to_thread.run_sync(time.perf_counter_ns, limiter=alone)
    naps.took("wait", started - asked)
    await task
    return 1


@app.post("/executor")
async def executor(body: Body) -> int:
    def work() -> int:
        found = sqlite3.connect(":memory:").execute("SELECT 1").fetchall()[0][0]
        begun, ready = time.perf_counter_ns(), naps.ready_ns()
        time.sleep(0.006)
        taken.append((time.perf_counter_ns() - begun, naps.ready_ns() - ready))
        return found

    taken: list[tuple[int, int]] = []
    await asyncio.get_running_loop().run_in_executor(None, work)
    naps.took("code", *taken[0])
    return 1


def query() -> int:
    return database().execute("SELECT nap(0.005)").fetchall()[0][0]


@app.post("/to-thread")
async def to_thread(body: Body) -> int:
    return await asyncio.to_thread(query)


@app.post("/result")
def result(body: Body) -> int:
    return workers.submit(copy_context().run, query).result()
