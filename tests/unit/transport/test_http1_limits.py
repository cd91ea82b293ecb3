"""HTTP/1.1 of the server's own, without a socket: what a client cannot have of it, and what others keep meanwhile."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from tests.http1_kit import Link, settle, statuses
from tests.unit.transport.test_http1_connection import body_of, chunked, get, post, run

from tailcut.errors import ClientGone
from tailcut.protocol.http import Body, HeaderMap, Reply


@pytest.mark.parametrize("how", ["whole", "pieces"])
@pytest.mark.parametrize("more", [b"", b"connection: upgrade\r\nupgrade: h2c\r\n"])
@pytest.mark.parametrize(("lines", "status"), [(60, 200), (64, 200), (66, 431), (80, 431)])
def test_a_head_is_as_long_as_it_may_be_however_it_is_cut(how: str, more: bytes, lines: int, status: int) -> None:
    raw = get(more=more)[:-2] + b"".join(b"x-%02d: %b\r\n" % (number, b"a" * 1000) for number in range(lines)) + b"\r\n"

    async def test(link: Link) -> None:
        pieces = [raw] if how == "whole" else [raw[start : start + 900] for start in range(0, len(raw), 900)]
        assert statuses(await link.send(*pieces)) == [status]

    run(test)


def test_a_head_that_is_too_long_is_told_so_though_its_body_has_begun() -> None:
    async def test(link: Link) -> None:
        raw = post(b"a" * 100, more=b"x: %b\r\n" % (b"a" * 100_000))
        assert statuses(await link.send(raw[:-50])) == [431]

    run(test)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (chunked(b"abc").replace(b"HTTP/1.1", b"HTTP/1.0"), b"in HTTP/1.0; only chunked in HTTP/1.1"),
        (chunked(b"abc").replace(b": chunked", b": gzip, chunked"), b"transfer-encoding is 'gzip, chunked'"),
        (chunked(b"abc").replace(b"transfer", b"transfer-encoding: gzip\r\ntransfer"), b"'gzip, chunked'"),
        (b"GET / HTTP/2.0\r\nhost: h\r\n\r\n", b"not HTTP/2.0"),
    ],
)
def test_what_others_may_cut_differently_is_refused(raw: bytes, says: bytes) -> None:
    """RFC 9112, 6.1: a server must not guess where such a body ends."""

    async def test(link: Link) -> None:
        written = await link.send(raw + get())
        assert statuses(written) == [400]
        assert says in written
        assert link.wire.events == ["eof"]

    run(test)


def test_a_trailer_may_ask_to_close() -> None:
    async def test(link: Link) -> None:
        written = await link.send(chunked(b"abc", end=b"0\r\nconnection: close\r\n\r\n"))
        assert statuses(written) == [200]
        assert b"connection: close" in written
        assert link.wire.events == ["close"]

    run(test)


@pytest.mark.parametrize("cut", [200_000, 256_000, 299_000])
def test_a_large_body_that_comes_before_it_is_asked_for_does_not_stop_the_next(cut: int) -> None:
    """A part of it fills what may be held, and the rest comes before anybody has read it."""

    async def test(link: Link) -> None:
        raw = post(b"x" * 600_000)
        for _ in range(3):
            before = len(link.wire.written)
            for piece in (raw[:cut], raw[cut : 2 * cut], raw[2 * cut :]):
                link.connection.data_received(piece)  # in one turn, as from one poll of the kernel
            await settle()
            assert len(bytes(link.wire.written[before:])) > 600_000
            assert not link.wire.is_paused
        assert statuses(await link.send(get())) == [200]

    run(test)


def test_who_sends_many_requests_at_once_waits_a_turn_for_each() -> None:
    order: list[str] = []

    async def look(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        order.append(path)
        return Reply(200, [], b"")

    async def test(many: Link) -> None:
        other = Link(look)
        many.connection.data_received(get(b"/many") * 6000)
        while len(order) < 100:
            await asyncio.sleep(0)
        assert many.wire.is_paused
        began = len(order)
        other.connection.data_received(get(b"/other"))
        while "/other" not in order:
            await asyncio.sleep(0)
        assert len(order) - began < 4
        while len(order) < 6001:
            await asyncio.sleep(0)
        await settle()
        assert not many.wire.is_paused
        assert statuses(bytes(many.wire.written)) == [200] * 6000

    run(test, look)


@pytest.mark.parametrize("size", [10_000, 17_000, 100_000, 240_000])
@pytest.mark.parametrize("path", [b"/", b"/unread"])
def test_a_large_body_may_come_in_one_piece_with_the_requests_before_it(size: int, path: bytes) -> None:
    async def test(link: Link) -> None:
        raw = post(b"x" * size, path)
        link.connection.data_received(get() + raw + get() + raw + get())
        for _ in range(200):
            await asyncio.sleep(0)
        status = 200 if path == b"/" else 413
        assert statuses(bytes(link.wire.written)) == [200, status, 200, status, 200]
        assert not link.wire.is_paused
        assert not link.connection.is_busy
        assert link.wire.events == []

    run(test)


def test_the_last_reply_is_not_reset_by_requests_that_wait() -> None:
    gate = asyncio.Event()

    async def wait(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        await gate.wait()
        return Reply(200, [], b"")

    async def test(link: Link) -> None:
        await link.send(get(), get(), get())
        link.worker.on_drain()
        gate.set()
        await settle()
        assert statuses(bytes(link.wire.written)) == [200]
        assert link.wire.events == ["eof"], "what else the client has sent is read away first"
        assert not link.wire.is_paused

    run(test, wait)


def test_a_client_that_was_slow_to_take_a_reply_has_its_time_from_then_on() -> None:
    async def test(link: Link) -> None:
        await link.send(post(b"x" * 3000))
        link.clock.now_s += 29
        link.wire.take_all()
        link.clock.now_s += 2
        assert not link.connection.sweep(link.clock.now_s - 30)
        assert statuses(await link.send(get())) == [200]

    run(test, high_bytes=2500)


def test_who_was_refused_and_comes_back_at_once_is_read_after_a_moment() -> None:
    """Its refusal comes at once; else a few clients that do not wait would take the core from the model."""

    async def test(link: Link) -> None:
        for _ in range(3):
            assert statuses(await link.send(post(b"abc", b"/shed"))) == [429]
            assert statuses(await link.send(get(b"/1"), get(b"/2"))) == []
            assert link.wire.is_paused
            before = len(link.wire.written)
            link.clock.pass_s(0.011)
            await settle()
            assert statuses(bytes(link.wire.written[before:]))[:1] == [200]
            await link.send()
            assert not link.wire.is_paused
        assert link.wire.events == []
        assert link.connection.since_s

    run(test)


def test_what_comes_behind_the_end_is_not_begun() -> None:
    begun: list[str] = []

    async def refuse(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        begun.append(path)
        return Reply(429, [], b"")

    async def test(link: Link) -> None:
        raw = post(b"x" * 1_100_000, b"/unread")
        await link.send(raw[:100])
        link.connection.data_received(raw[100:] + post(b"", b"/buy"))
        await settle()
        assert begun == ["/unread"]
        assert statuses(bytes(link.wire.written)) == [429]
        assert link.wire.events == ["eof"]

    run(test, refuse)


def test_at_the_stop_the_reply_to_what_is_under_way_says_that_it_is_the_last() -> None:
    gate = asyncio.Event()

    async def wait(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        await gate.wait()
        return Reply(200, [], b"")

    async def test(link: Link) -> None:
        await link.send(get())
        link.site.is_stopping = link.site.is_leaving = True
        link.connection.end_idle()
        assert link.wire.events == []
        gate.set()
        await settle()
        assert b"connection: close" in link.wire.written
        assert link.wire.events == ["close"]

    run(test, wait)


def test_a_connection_that_waits_holds_no_request_and_one_that_ended_nothing() -> None:
    """Without the collector, which comes seldom: bodies are large, and connections wait for minutes."""
    bodies: list[weakref.ref[object]] = []

    class Kept:
        def __init__(self, body: bytes) -> None:
            self.body = body

    async def read(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        try:
            kept = Kept(await body())
        except ClientGone:
            return Reply(499, [], b"")
        bodies.append(weakref.ref(kept))
        bodies.append(weakref.ref(body))
        return Reply(200, [], b"")

    async def test(link: Link) -> None:
        await settle()
        gc.collect()
        gc.disable()
        try:
            for raw in (post(b"x" * 1000), post(b"x" * 1000), chunked(b"y" * 1000), get()):
                await link.send(raw)
                assert [ref() for ref in bodies] == [None] * len(bodies)
            ended = Link(read)
            await ended.send(post(b"x" * 1000)[:-1])
            connection = weakref.ref(ended.connection)
            ended.wire.abort()
            await settle()
            ended.wire.protocol = None  # as uvloop's transports let go of it
            del ended
            assert connection() is None
        finally:
            gc.enable()

    run(test, read)


@pytest.mark.parametrize("raw", [post(b"x" * 40_000), chunked(b"ab", b"cd")])
def test_a_body_is_handed_over_once(raw: bytes) -> None:
    """Who asked for it has it: a model may take long, and it is not kept twice meanwhile."""

    async def twice(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        first = await body()
        return Reply(200, [], b"%d %d" % (len(first), len(await body())))

    async def test(link: Link) -> None:
        assert body_of(await link.send(raw)) in {b"40000 0", b"4 0"}

    run(test, twice)


def test_a_reply_larger_than_what_is_copied_is_whole() -> None:
    async def large(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        return Reply(200, [], b"z" * 300_000)

    async def test(link: Link) -> None:
        assert body_of(await link.send(get())) == b"z" * 300_000

    run(test, large)
