"""HTTP/1.1 of the server's own, without a socket: what is answered, what stays open, and what is read no further."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.http1_kit import Link, settle, statuses
from tests.wait_kit import until

from tailcut.protocol.http import Body, HeaderMap, Reply

HOST = b"host: h\r\n"


async def echo(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
    """Answer with what was asked; /unread and /shed refuse it and leave the body."""
    if path in {"/unread", "/shed"}:
        return Reply(413 if path == "/unread" else 429, [], b"no")
    data = await body() if headers.get("content-length") else b"".join([piece async for piece in body])
    return Reply(200, [("x-path", path)], b"%b %b" % (method.encode(), data))


def post(body: bytes, path: bytes = b"/", more: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n%b" % (path, HOST, more, len(body), body)


def get(path: bytes = b"/", version: bytes = b"1.1", more: bytes = b"") -> bytes:
    return b"GET %b HTTP/%b\r\n%b%b\r\n" % (path, version, HOST, more)


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"POST / HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n" + body + end


def run(test: Callable[[Link], Awaitable[None]], handle: object = echo, **how: int) -> None:
    async def main() -> None:
        await test(Link(handle, **how))  # type: ignore[arg-type]

    asyncio.run(main())


def body_of(written: bytes) -> bytes:
    return written.partition(b"\r\n\r\n")[2]


def test_an_answer_says_its_length_and_the_time() -> None:
    async def test(link: Link) -> None:
        written = await link.send(post(b"abc", b"/p?q=1"))
        head, _, body = written.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        assert lines[0] == b"HTTP/1.1 200 OK"
        assert b"x-path: /p" in lines
        assert b"content-length: 8" in lines
        assert any(line.startswith(b"date: ") and line.endswith(b" GMT") for line in lines)
        assert b"connection" not in head
        assert body == b"POST abc"
        assert link.wire.events == []

    run(test)


def test_requests_on_one_connection_are_answered_in_their_order() -> None:
    async def test(link: Link) -> None:
        for number in range(3):
            assert body_of(await link.send(post(b"%d" % number))) == b"POST %d" % number
        together = await link.send(post(b"a") + get() + chunked(b"b", b"c") + post(b"d"))
        assert [part.partition(b"\r\n\r\n")[2] for part in together.split(b"HTTP/1.1 ")[1:]] == [
            b"POST a",
            b"GET ",
            b"POST bc",
            b"POST d",
        ]
        assert not link.wire.is_paused

    run(test)


def test_one_request_is_not_begun_before_the_other_is_answered() -> None:
    gate = asyncio.Event()
    begun: list[str] = []

    async def wait(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        begun.append(path)
        if path == "/slow":
            await gate.wait()
        return Reply(200, [], path.encode())

    async def test(link: Link) -> None:
        assert await link.send(get(b"/slow"), get(b"/1") + get(b"/2")) == b""
        assert begun == ["/slow"]
        assert link.wire.is_paused, "what else comes is left to the kernel"
        gate.set()
        await settle()
        assert begun == ["/slow", "/1", "/2"]
        assert not link.wire.is_paused
        assert statuses(bytes(link.wire.written)) == [200] * 3

    run(test, wait)


@pytest.mark.parametrize(
    ("raw", "connection", "stays"),
    [
        (get(), b"", True),
        (get(more=b"connection: close\r\n"), b"connection: close", False),
        (get(version=b"1.0"), b"connection: close", False),
        (get(version=b"1.0", more=b"connection: keep-alive\r\n"), b"connection: keep-alive", True),
    ],
)
def test_whether_it_stays_open_is_the_clients_choice(raw: bytes, connection: bytes, stays: bool) -> None:
    async def test(link: Link) -> None:
        written = await link.send(raw)
        assert statuses(written) == [200]
        assert [line for line in written.split(b"\r\n") if line.startswith(b"connection")] == [connection] * bool(
            connection
        )
        assert (link.wire.events == []) is stays

    run(test)


def test_while_it_drains_every_reply_is_the_last() -> None:
    async def test(link: Link) -> None:
        await link.send(get())
        link.worker.on_drain()
        assert b"connection: close" in await link.send(get())
        assert link.wire.events == ["close"]

    run(test)


def test_head_has_the_length_and_no_body() -> None:
    async def test(link: Link) -> None:
        written = await link.send(get().replace(b"GET", b"HEAD"), get())
        first, second = written.split(b"HTTP/1.1 ")[1:]
        assert b"content-length: 5" in first
        assert first.endswith(b"\r\n\r\n")
        assert second.endswith(b"GET ")

    run(test)


def test_a_status_without_a_body_has_no_length() -> None:
    async def empty(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        return Reply(204, [], b"")

    async def test(link: Link) -> None:
        assert b"content-length" not in await link.send(get())

    run(test, empty)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"nonsense\r\n\r\n", b"Invalid method"),
        (b"GET / HTTP/9.9\r\n\r\n", b"Invalid HTTP version"),
        (b"GET /\xff HTTP/1.1\r\n\r\n", b"Invalid char"),
        (b"GET / HTTP/1.1\r\nhost : h\r\n\r\n", b"Invalid header token"),
        (post(b"").replace(b"host", b"content-length: 1\r\nhost"), b"Content-Length"),
        (chunked(b"a").replace(b"host", b"content-length: 1\r\nhost"), b"Content-Length"),
        (b"CONNECT h:1 HTTP/1.1\r\nhost: h\r\n\r\n", b"not a proxy"),
    ],
)
def test_what_is_no_http_is_told_so_and_ends(raw: bytes, says: bytes) -> None:
    async def test(link: Link) -> None:
        written = await link.send(raw)
        assert statuses(written) == [400]
        assert says in written
        assert b"connection: close" in written
        assert link.wire.events == ["eof"], "the reply is read before the connection is reset"
        assert await link.send(get()) == b""
        link.clock.pass_s(1.1)
        assert link.wire.events == ["eof", "close"]

    run(test)


def test_who_comes_with_http_2_is_told_what_to_do() -> None:
    async def test(link: Link) -> None:
        written = await link.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
        assert statuses(written) == [400]
        assert b"put a proxy in front" in written

    run(test)


def test_nonsense_behind_a_request_is_told_after_its_answer() -> None:
    async def test(link: Link) -> None:
        assert statuses(await link.send(get() + b"nonsense")) == [200, 400]
        assert link.wire.events == ["eof"]

    run(test)


def test_a_body_that_is_no_chunked_encoding_is_a_400() -> None:
    async def refuse(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        from tailcut.errors import BadRequest
        from tailcut.protocol.http import error_reply

        try:
            return Reply(200, [], b"".join([piece async for piece in body]))
        except BadRequest as error:
            return error_reply(error)

    async def test(link: Link) -> None:
        written = await link.send(chunked(b"abc", end=b""), b"zz\r\n")
        assert statuses(written) == [400]
        assert b"the request's body is malformed: " in written
        assert b"connection: close" in written
        assert link.wire.events == ["eof"]

    run(test, refuse)


@pytest.mark.parametrize("whole", [True, False])
def test_a_head_is_bounded(whole: bool) -> None:
    async def test(link: Link) -> None:
        lines = [b"x-%d: %b\r\n" % (number, b"a" * 200) for number in range(400)]
        pieces = [get()[:-2] + b"".join(lines)] if whole else [get()[:-2] + b"x: ", *[b"a" * 1000] * 80]
        written = await link.send(*pieces)
        assert statuses(written) == [431]
        assert link.wire.events == ["eof"]

    run(test)


def test_what_stands_beside_a_body_is_bounded() -> None:
    """Trailers and extensions of chunks, which a client could send for ever; chunks of one byte are none of that."""

    async def test(link: Link) -> None:
        small = await link.send(chunked(*[b"a"] * 40_000))
        assert statuses(small) == [200]
        await link.send(chunked(b"a", end=b"0\r\n"))
        for number in range(100):
            await link.send(b"t-%d: %b\r\n" % (number, b"a" * 1000))
            if link.wire.events:
                break
        assert 60 < number < 80

    run(test)


def test_a_body_that_nobody_reads_is_left_to_the_kernel() -> None:
    taken: list[bytes] = []
    gate = asyncio.Event()

    async def slow(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        await gate.wait()
        async for piece in body:
            taken.append(piece)
        return Reply(200, [], b"")

    async def test(link: Link) -> None:
        piece = b"a" * 100_000
        head = post(b"").replace(b"content-length: 0", b"content-length: 1000000")
        await link.send(head)
        sent = 0
        while not link.wire.is_paused:
            await link.send(piece)
            sent += 1
        assert sent == 3
        gate.set()
        await settle()
        assert not link.wire.is_paused
        for _ in range(sent, 10):
            await link.send(piece)
        assert len(b"".join(taken)) == 1_000_000
        assert statuses(bytes(link.wire.written)) == [200]

    run(test, slow)


def test_the_rest_of_a_body_that_was_refused_is_read_away_and_the_connection_goes_on() -> None:
    async def test(link: Link) -> None:
        raw = post(b"x" * 1000, b"/unread")
        assert statuses(await link.send(raw[:-900])) == [413]
        assert statuses(await link.send(raw[-900:-1])) == []
        assert statuses(await link.send(raw[-1:] + get())) == [200]
        link.clock.pass_s(2)
        assert statuses(await link.send(get())) == [200]

    run(test)


def test_who_sends_a_large_body_whole_before_reading_is_told_of_the_end_and_read_away() -> None:
    """As Python's own client does, which hears of a broken pipe otherwise."""

    async def test(link: Link) -> None:
        raw = post(b"", b"/unread").replace(b"content-length: 0", b"content-length: 100000000")
        reply = await link.send(raw)
        assert statuses(reply) == [413]
        assert b"connection: close" in reply
        for _ in range(200):
            await link.send(b"x" * 100_000)
        assert not link.wire.is_paused
        for _ in range(200):
            await link.send(b"x" * 100_000)
        assert link.wire.is_paused, "but not without end"
        link.clock.pass_s(1.1)
        assert link.wire.events == ["eof", "close"]

    run(test)


@pytest.mark.parametrize("comes", [0, 2_000_000])
def test_a_rest_that_does_not_come_or_is_large_ends_the_connection(comes: int) -> None:
    async def test(link: Link) -> None:
        raw = post(b"", b"/unread").replace(b"content-length: 0", b"content-length: 100000000")
        assert statuses(await link.send(raw)) == [413]
        for _ in range(comes // 100_000):
            await link.send(b"x" * 100_000)
        if not comes:
            link.clock.pass_s(1.1)
        assert link.wire.events[:1] == ["eof"]
        link.clock.pass_s(1.1)
        assert link.wire.events == ["eof", "close"]

    run(test)


def test_who_waits_to_be_told_to_send_a_body_is_told_once_it_is_read() -> None:
    async def test(link: Link) -> None:
        raw = post(b"abc", more=b"expect: 100-continue\r\n")
        assert await link.send(raw[:-3]) == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert await link.send(raw[-3:-2]) == b""
        assert body_of(await link.send(raw[-2:])) == b"POST abc"
        assert statuses(await link.send(raw)) == [200], "it did not wait"
        refused = await link.send(raw[:-3].replace(b" / ", b" /unread "))
        assert statuses(refused) == [413]
        assert b"connection: close" in refused, "what comes next may be the body or a request"

    run(test)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("raw", [get(more=b"connection: upgrade, x\r\nupgrade: h2c\r\n")])
def test_an_upgrade_is_not_taken(raw: bytes, times: int) -> None:
    async def test(link: Link) -> None:
        with_body = post(b"abc", more=b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: x\r\n")
        written = await link.send((raw + with_body) * times + get())
        assert statuses(written) == [200, 200] * times + [200]
        assert written.count(b"POST abc") == times
        half = await link.send(with_body[:30], with_body[30:-2], with_body[-2:])
        assert body_of(half) == b"POST abc"

    run(test)


@pytest.mark.parametrize("more", [b"", b"\r\n"])
def test_a_head_is_known_again_with_its_own_body_only(more: bytes) -> None:
    """A line break behind a body, which is tolerated, must not shift where the next one begins."""

    async def test(link: Link) -> None:
        for body in (b"abc", b"abc", b"abxyz", b"ab"):
            assert body_of(await link.send(post(body) + more)) == b"POST " + body
        head = post(b"abc")[:-3]
        written = await link.send(head + b"abxyz")
        assert written.count(b"POST abx") == 1, "what is over is no part of it"
        assert b"yz" not in written

    run(test)


def test_a_target_may_be_a_whole_url() -> None:
    async def test(link: Link) -> None:
        for target, path in ((b"http://h/p?q", b"/p"), (b"http://h", b"/"), (b"*", b"*")):
            raw = get(target).replace(b"GET", b"OPTIONS" if target == b"*" else b"GET")
            assert b"x-path: %b\r\n" % path in await link.send(raw)

    run(test)


def test_repeated_headers_are_known_as_such() -> None:
    from tailcut.protocol.http import is_repeated

    seen: list[bool] = []

    async def look(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        seen.append(is_repeated(headers, "x-a"))
        return Reply(200, [], b"")

    async def test(link: Link) -> None:
        for more in (b"x-a: 1\r\n", b"X-A: 1\r\nx-a: 2\r\n", b"x-a: 1\r\n"):
            await link.send(get(more=more))
        assert seen == [False, True, False]

    run(test, look)


def test_who_leaves_is_noticed_by_who_reads_and_by_who_asks() -> None:
    from tailcut.errors import ClientGone

    seen: list[str] = []

    async def wait(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        try:
            await body()
            await body.client_disconnect()
            seen.append("asked")
        except ClientGone:
            seen.append("read")
        return Reply(200, [], b"nobody reads this")

    async def test(link: Link) -> None:
        await link.send(post(b"abc"))
        link.wire.close()
        await settle()
        other = Link(wait)
        await other.send(post(b"abc")[:-1])
        other.wire.close()
        await settle()
        assert seen == ["asked", "read"]
        assert link.wire.written == other.wire.written == b""
        assert not link.site.connections
        assert link.worker.arrivals.coming == 0

    run(test, wait)


class Parts:
    """A streamed body, and until when it may be sent."""

    def __init__(self, parts: list[bytes], left_s: float = 10.0) -> None:
        self.parts = parts
        self.made = 0
        self.is_closed = False
        self.seconds = left_s
        self.failure = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            self.made += 1
            yield part
            if self.seconds <= 0:
                yield b"late"
                return

    def left_s(self) -> float:
        return self.seconds

    async def aclose(self) -> None:
        self.is_closed = True


def streaming(parts: Parts) -> object:
    async def stream(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        return Reply(200, [], b"", parts)

    return stream


@pytest.mark.parametrize(
    ("version", "body"),
    [(b"1.1", b"3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n"), (b"1.0", b"abcd")],
)
def test_a_stream_is_chunked_or_ends_with_the_connection(version: bytes, body: bytes) -> None:
    parts = Parts([b"abc", b"", b"d"])

    async def test(link: Link) -> None:
        written = await link.send(get(version=version, more=b"connection: keep-alive\r\n"))
        assert body_of(written) == body
        assert (b"transfer-encoding: chunked" in written) is (version == b"1.1")
        assert parts.is_closed
        assert link.wire.events == ([] if version == b"1.1" else ["close"])

    run(test, streaming(parts))


def test_a_stream_is_made_as_fast_as_it_is_taken() -> None:
    parts = Parts([b"x" * 1000] * 20)

    async def test(link: Link) -> None:
        await link.send(get())
        assert parts.made == 4
        link.wire.take_all()
        await settle()
        assert parts.made == 8
        while not parts.is_closed:
            link.wire.take_all()
            await settle()
        assert link.wire.written.endswith(b"0\r\n\r\n")

    run(test, streaming(parts), high_bytes=3500)


def test_a_stream_that_is_not_taken_ends_at_its_deadline_and_is_cut_off() -> None:
    parts = Parts([b"x" * 1000] * 20)

    async def test(link: Link) -> None:
        await link.send(get())
        parts.seconds = 0.0
        await until(lambda: parts.is_closed)
        assert parts.made < 8
        assert b"late" in link.wire.written
        link.clock.pass_s(2.1)
        assert link.wire.events[-1] == "abort"

    run(test, streaming(parts), high_bytes=3500)


def test_a_stream_whose_client_leaves_is_closed() -> None:
    parts = Parts([b"x" * 1000] * 20)

    async def test(link: Link) -> None:
        await link.send(get())
        link.wire.close()
        await settle()
        await until(lambda: parts.is_closed)
        assert parts.made < 8

    run(test, streaming(parts), high_bytes=3500)


@pytest.mark.parametrize("value", ["1\r\nx-b: 2", "1\nx-b: 2", "1\rx-b: 2", "1\0"])
def test_a_reply_that_would_smuggle_a_header_is_not_sent(caplog: pytest.LogCaptureFixture, value: str) -> None:
    async def smuggle(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        return Reply(200, [("x-a", value)], b"")

    async def test(link: Link) -> None:
        assert await link.send(get()) == b""
        assert link.wire.events == ["abort"]

    with caplog.at_level(logging.ERROR):
        run(test, smuggle)
    assert "line break" in caplog.text


def test_connections_on_which_nothing_comes_are_closed_and_those_that_wait_for_an_answer_are_not() -> None:
    async def wait(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        if path == "/slow":
            await asyncio.Event().wait()
        return Reply(200, [], b"")

    async def test(silent: Link) -> None:
        links = {name: Link(wait) for name in ("head", "busy", "idle", "fresh", "body")}
        await links["head"].send(get()[:-2])
        await links["busy"].send(get(b"/slow"))
        await links["idle"].send(get())
        await links["fresh"].send(get())
        await links["body"].send(post(b"a", b"/slow")[:-1])
        for link in (silent, *links.values()):
            link.clock.pass_s(5)
        links["head"].connection.data_received(b"x: 1\r\n")  # that something comes does not help
        await links["fresh"].send(get())
        links["fresh"].clock.pass_s(5)
        swept = {name: link.connection.sweep(1000.0 + 2) for name, link in links.items()}
        assert silent.connection.sweep(1000.0 + 2)
        assert swept == {"head": True, "busy": False, "idle": True, "fresh": False, "body": False}

    run(test, wait)


def test_a_client_that_takes_no_replies_is_cut_off() -> None:
    async def test(link: Link) -> None:
        await link.send(*[post(b"x" * 1000)] * 5)
        assert len(link.wire.written) < 4 * 1100, "no further request is begun"
        link.clock.pass_s(10)
        assert link.connection.sweep(1005.0)
        assert link.wire.events == ["abort"]

    run(test, high_bytes=2500)


@pytest.mark.parametrize("last", [b"", b"connection: close\r\n"])
@pytest.mark.parametrize("stops", [False, True])
def test_a_client_that_reads_slowly_is_cut_off_once_it_reads_no_more(last: bytes, stops: bool) -> None:
    async def large(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        return Reply(200, [], b"z" * 300_000)

    async def test(link: Link) -> None:
        await link.send(get(more=last))
        for _ in range(3):
            link.clock.pass_s(10)
            link.wire.untaken -= 1000
            link.site.is_stopping = stops
            assert link.connection.sweep(link.clock.now_s - 5) == stops
            if stops:
                return
            assert not link.connection.sweep(link.clock.now_s - 5), "it has as long again"
        link.clock.pass_s(10)
        assert link.connection.sweep(link.clock.now_s - 5)
        assert link.wire.events[-1] == "abort"

    run(test, large, high_bytes=2500)


def test_requests_that_came_together_know_of_each_other() -> None:
    """Who is alone does not wait for company; those whose turn is still to come are company."""
    seen: list[int] = []
    links: list[Link] = []

    async def look(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        seen.append(links[0].site.arrivals.coming)
        return Reply(200, [], b"")

    async def test(first: Link) -> None:
        links.append(first)
        others = [Link(look) for _ in range(3)]
        for _ in range(2):
            seen.clear()
            for link in others:
                link.site.arrivals = first.site.arrivals
                link.connection.data_received(get())
            first.connection.data_received(get())
            await settle()
            assert seen == [3, 2, 1, 0]

    run(test, look)
