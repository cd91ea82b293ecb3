"""A service that hands work over: to worker processes, to threads, and to background tasks; each route one way.

What takes time computes for a fixed CPU time, so that a busy machine changes nothing of it. Each way has a route that
does without.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from fastapi import BackgroundTasks, FastAPI, Request
from pydantic import BaseModel

TABLE = [float(one) for one in range(400_000)]
threads = ThreadPoolExecutor(1)
running: set[asyncio.Task[None]] = set()


class Body(BaseModel):
    ms: float = 15.0


def compute(ms: float) -> float:
    end_ns = time.thread_time_ns() + int(ms * 1e6)
    while time.thread_time_ns() < end_ns:
        pass
    return ms


def score(ms: float) -> float:
    return compute(ms)


def total(table: list[float]) -> float:
    return sum(table)


def audit(ms: float) -> None:
    compute(ms)


async def notify(ms: float) -> None:
    compute(ms)


async def follow_up(ms: float) -> None:
    await asyncio.sleep(0)
    compute(ms)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.pool = ProcessPoolExecutor(1)
    app.state.workers = multiprocessing.Pool(1)
    app.state.pool.submit(compute, 1.0).result()
    yield
    app.state.pool.shutdown()
    app.state.workers.terminate()


app = FastAPI(lifespan=lifespan)


@app.post("/pool")
async def pool(body: Body, request: Request) -> float:
    return await asyncio.get_running_loop().run_in_executor(request.app.state.pool, score, body.ms)


@app.post("/pool/inline")
async def pool_inline(body: Body) -> float:
    return score(body.ms)


@app.post("/pool/without")
async def pool_without(body: Body) -> float:
    return body.ms


@app.post("/workers")
def workers(body: Body, request: Request) -> float:
    return request.app.state.workers.apply(score, (body.ms,))


@app.post("/shipped")
async def shipped(body: Body, request: Request) -> float:
    return await asyncio.get_running_loop().run_in_executor(request.app.state.pool, total, TABLE)


@app.post("/shipped/inline")
async def shipped_inline(body: Body) -> float:
    return total(TABLE)


@app.post("/background")
async def background(body: Body, tasks: BackgroundTasks) -> float:
    tasks.add_task(notify, body.ms)
    return compute(5.0)


@app.post("/background/thread")
async def background_thread(body: Body, tasks: BackgroundTasks) -> float:
    tasks.add_task(audit, body.ms)
    return compute(5.0)


@app.post("/task")
async def task(body: Body) -> float:
    later = asyncio.create_task(follow_up(body.ms))
    running.add(later)
    later.add_done_callback(running.discard)
    return compute(5.0)


@app.post("/soon")
async def soon(body: Body) -> float:
    asyncio.get_running_loop().call_soon(audit, body.ms)
    return compute(5.0)


@app.post("/thread")
async def thread(body: Body) -> float:
    threading.Thread(target=audit, args=(body.ms,)).start()
    return compute(5.0)


@app.post("/submitted")
async def submitted(body: Body) -> Any:
    threads.submit(audit, body.ms)
    return compute(5.0)


@app.post("/plain")
async def plain(body: Body) -> float:
    return compute(5.0)
