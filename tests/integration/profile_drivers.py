"""Calls real drivers in one request and prints the spans: run as a child, so that no test's own drivers are hooked.

POSTGRES: its address. Output: JSON, of each part the (stage, label, more) of its spans, and of its queries what each
asked for, and its line.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

from tailcut.profiler.hooks import install_hooks
from tailcut.profiler.recording.spans import requests_of
from tailcut.profiler.recording.tracing import current, open_root, tracer
from tailcut.profiler.records import Stage

install_hooks()

import http.client  # noqa: E402
import urllib.request  # noqa: E402

import aiosqlite  # noqa: E402
import asyncpg  # noqa: E402
import psycopg  # noqa: E402
from sqlalchemy import create_engine, text  # noqa: E402
from sqlalchemy.ext.asyncio import create_async_engine  # noqa: E402

ADDRESS = os.environ["POSTGRES"]
found: dict[str, list[tuple[str, str, bool]]] = {}
places: dict[str, list[tuple[str, str]]] = {}


def keep(name: str) -> None:
    spans = [span for one in requests_of(tracer) for span in one.spans[1:]]
    found[name] = [(str(span.stage), span.label, span.more) for span in spans if span.end_ns > span.start_ns]
    places[name] = [(span.label, span.place) for span in spans if span.stage is Stage.SQL and not span.more]
    current.set(None)
    tracer.clear()


def begin() -> None:
    tracer.clear()
    trace = tracer.enter(len(found), "GET", "/")
    assert trace is not None
    open_root(trace, Stage.CODE, "app", "")


def part(name: str, work: Callable[[], object]) -> None:
    begin()
    work()
    keep(name)


def apart(name: str, work: Callable[[], Awaitable[object]]) -> None:
    async def run() -> None:
        begin()
        await work()
        keep(name)

    asyncio.run(run())


def with_psycopg() -> None:
    with psycopg.connect(ADDRESS) as connection:
        with connection.transaction():
            connection.execute("SELECT generate_series(1, %s)", (9999,)).fetchall()
        with connection.cursor("pages") as cursor:
            cursor.itersize = 400
            cursor.execute("SELECT generate_series(1, %s) AS n", (1000,))
            assert len(list(cursor)) == 1000


async def with_async_psycopg() -> None:
    async with await psycopg.AsyncConnection.connect(ADDRESS) as connection:
        async with connection.transaction():
            await connection.execute("SELECT 1")
        async with connection.cursor("pages") as cursor:
            await cursor.execute("SELECT generate_series(1, 1000) AS n")
            assert len(await cursor.fetchall()) == 1000


async def with_asyncpg() -> None:
    connection = await asyncpg.connect(ADDRESS)
    async with connection.transaction():
        rows = [row async for row in connection.cursor("SELECT generate_series(1, 100)", prefetch=60)]
        assert len(rows) == 100
    statement = await connection.prepare("SELECT $1::int")
    assert await statement.fetchval(3) == 3
    await connection.close()


async def with_aiosqlite() -> None:
    async with aiosqlite.connect(":memory:") as connection:
        cursor = await connection.execute("SELECT 1")
        assert list(await cursor.fetchall()) == [(1,)]


def with_sqlalchemy() -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE t (x INTEGER)"))
        connection.execute(text("INSERT INTO t VALUES (1), (2)"))
        many = "SELECT a.x FROM " + ", ".join(f"t {name}" for name in "abcdefghijkl")
        assert len(connection.execute(text(many)).fetchall()) == 4096


async def with_async_sqlalchemy() -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    async with engine.connect() as connection:
        for value in (1, 2, 1):
            assert await connection.scalar(text("SELECT :value"), {"value": value}) == value
    await engine.dispose()


def with_parameters() -> None:
    with psycopg.connect(ADDRESS) as connection:
        for value in (1, 2, 1):
            connection.execute("SELECT %s", (value,)).fetchall()


async def with_awaited_parameters() -> None:
    connection = await asyncpg.connect(ADDRESS)
    for value in (1, 2, 1):
        assert await connection.fetchval("SELECT $1::int", value) == value
    await connection.close()


class Slowly(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(1 << 20))
        self.end_headers()
        self.wfile.write(bytes(1 << 20))

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def with_http_client(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/a?key=1")
    assert len(connection.getresponse().read()) == 1 << 20
    connection.close()


def with_urllib(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/b") as response:
        assert len(response.read()) == 1 << 20


part("psycopg", with_psycopg)
apart("async psycopg", with_async_psycopg)
apart("asyncpg", with_asyncpg)
apart("aiosqlite", with_aiosqlite)
part("sqlalchemy", with_sqlalchemy)
apart("async sqlalchemy", with_async_sqlalchemy)
part("parameters", with_parameters)
apart("awaited parameters", with_awaited_parameters)
server = HTTPServer(("127.0.0.1", 0), Slowly)
threading.Thread(target=server.serve_forever, daemon=True).start()
part("http.client", lambda: with_http_client(server.server_port))
part("urllib", lambda: with_urllib(server.server_port))
server.shutdown()
server.server_close()
sys.stdout.write(json.dumps({"found": found, "places": places, "notes": tracer.notes}))
