"""Requests mean the same however the network cuts them."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.http1_kit import Link, settle

from tailcut.protocol.http import Body, HeaderMap, Reply

Seen = list[tuple[str, str, bytes]]

BODIES = st.one_of(st.binary(max_size=40), st.integers(10_000, 60_000).map(lambda size: b"x" * size))
PATHS = st.sampled_from([b"/", b"/v2/health/live", b"/p?q=1", b"http://h/abs"])
UPGRADE = b"connection: upgrade\r\nupgrade: h2c\r\n"


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    path, body, kind = draw(PATHS), draw(BODIES), draw(st.sampled_from(["get", "length", "chunked", "upgrade"]))
    more = draw(st.sampled_from([b"", b"x-a: 1\r\nx-a: 2\r\n", b"x: %b\r\n" % (b"a" * 300)]))
    if kind == "get":
        return b"GET %b HTTP/1.1\r\nhost: h\r\n%b\r\n" % (path, more)
    head = b"POST %b HTTP/1.1\r\nhost: h\r\n%b" % (path, more + (UPGRADE if kind == "upgrade" else b""))
    if kind == "chunked":
        size = draw(st.integers(1, 7)) if len(body) < 100 else len(body) // draw(st.integers(1, 7))
        chunks = [body[start : start + size] for start in range(0, len(body), size)]
        lines = b"".join(b"%x;e=1\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
        return (
            head
            + b"transfer-encoding: chunked\r\n\r\n"
            + lines
            + b"0\r\n"
            + draw(st.sampled_from([b"", b"t: 1\r\n"]))
            + b"\r\n"
        )
    return head + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def played(pieces: list[bytes], turns: list[int]) -> tuple[Seen, bytes, list[str]]:
    """What the routes saw, what was written but for the date, and what became of the connection."""
    seen: Seen = []

    async def handle(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        data = await body() if headers.get("content-length") else b"".join([piece async for piece in body])
        seen.append((method, path, data))
        return Reply(200, [("x-seen", str(len(seen)))], data)

    async def main() -> tuple[Seen, bytes, list[str]]:
        link = Link(handle)
        for piece, count in zip(pieces, turns, strict=True):
            while link.wire.is_paused:
                await asyncio.sleep(0)
            link.connection.data_received(piece)
            for _ in range(count):
                await asyncio.sleep(0)
        await settle()
        while link.connection.is_busy:
            await settle()
        events = list(link.wire.events)
        await link.leave()
        lines = [line for line in bytes(link.wire.written).split(b"\r\n") if not line.startswith(b"date: ")]
        return seen, b"\r\n".join(lines), events

    return asyncio.run(main())


@given(st.lists(requests(), min_size=1, max_size=4), st.data())
@settings(max_examples=300, deadline=None)
def test_requests_mean_the_same_however_they_are_cut(raws: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(raws)
    whole = played([raw], [0])
    assert len(whole[0]) == len(raws)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1), max_size=12)))
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    turns = data.draw(st.lists(st.integers(0, 6), min_size=len(pieces), max_size=len(pieces)))
    assert played(pieces, turns) == whole


@given(st.lists(st.one_of(requests(), st.binary(max_size=200)), max_size=6), st.lists(st.integers(0, 3), min_size=6))
@settings(max_examples=300, deadline=None)
def test_whatever_comes_ends_in_replies_and_never_in_a_fault_of_the_server(raws: list[bytes], turns: list[int]) -> None:
    async def main() -> None:
        async def handle(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
            return Reply(200, [], b"")

        link = Link(handle)
        for raw, count in zip(raws, turns, strict=False):
            if link.wire.is_closing():
                break
            link.connection.data_received(raw)
            for _ in range(count):
                await asyncio.sleep(0)
        await settle()
        assert b"HTTP/1.1 5" not in link.wire.written
        assert "abort" not in link.wire.events
        assert link.worker.arrivals.coming == 0
        await link.leave()

    asyncio.run(main())


@given(
    BODIES, st.lists(st.tuples(st.sampled_from([b"same", b"other", b"longer", b"cut", b"case"]), BODIES), max_size=5)
)
@settings(max_examples=300, deadline=None)
def test_a_head_that_is_known_again_means_what_it_says(first: bytes, more: list[tuple[bytes, bytes]]) -> None:
    """One after the other on a connection, each in one piece: whole, with another head, or without its end."""

    def made(kind: bytes, body: bytes) -> bytes:
        name = b"CONTENT-length" if kind == b"case" else b"content-length"
        path = b"/other" if kind == b"other" else b"/p"
        size = len(body) + (3 if kind == b"longer" else 0)
        head = b"POST %b HTTP/1.1\r\nhost: h\r\n%b: %d\r\nx-a: 1\r\n\r\n" % (path, name, size)
        return head + body + (b"abc" if kind == b"longer" else b"")

    expected = [(b"p", first)]
    pieces = [made(b"same", first)]
    for kind, body in more:
        raw = made(kind, body)
        pieces += [raw[:-1], raw[-1:]] if kind == b"cut" else [raw]
        expected.append((b"other" if kind == b"other" else b"p", body + (b"abc" if kind == b"longer" else b"")))
    seen, written, events = played(pieces, [8] * len(pieces))
    assert [(path[1:].encode(), data) for _, path, data in seen] == expected
    assert written.count(b"HTTP/1.1 200 OK") == len(expected)
    assert events == []
