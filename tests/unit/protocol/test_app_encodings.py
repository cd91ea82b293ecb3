"""Compressed bodies: read up to the limit of what they become, never further; replies where the manifest asks."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import tracemalloc
import zlib
from pathlib import Path

import pytest
from tests.app_kit import GOOD, INFER, Client, deployment, running

from tailcut.errors import BadRequest, TailcutError, TooLarge, UnsupportedEncoding
from tailcut.protocol.http import decoded
from tailcut.protocol.middleware import accepts_gzip

BODY = json.dumps(GOOD).encode()
LIMIT = 1_000_000


def undone(raw: bytes, encoding: str, limit: int = LIMIT) -> bytes:
    return asyncio.run(decoded(raw, {"content-encoding": encoding}, limit))


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP", " gzip "])
@pytest.mark.parametrize("size", [0, 1, 262_144, LIMIT])
def test_gzip_is_undone(encoding: str, size: int) -> None:
    assert undone(gzip.compress(b"a" * size), encoding) == b"a" * size


def test_deflate_is_undone_and_identity_is_nothing_to_undo() -> None:
    assert undone(zlib.compress(BODY), "deflate") == BODY
    assert undone(BODY, "identity") == BODY
    assert asyncio.run(decoded(b"\x1f", {}, LIMIT)) == b"\x1f"


@pytest.mark.parametrize(
    ("raw", "encoding", "kind", "says"),
    [
        (gzip.compress(b"a" * (LIMIT + 1)), "gzip", TooLarge, "more than 1000000 bytes once decompressed"),
        (gzip.compress(BODY, mtime=0)[:-1], "gzip", BadRequest, "ends too early"),
        (b"", "gzip", BadRequest, "ends too early"),
        (b"\x1f\x8b", "gzip", BadRequest, "ends too early"),
        (b"nonsense", "gzip", BadRequest, "not gzip data"),
        (gzip.compress(BODY, mtime=0), "deflate", BadRequest, "not deflate data"),
        (gzip.compress(BODY, mtime=0) + b"x", "gzip", BadRequest, "1 bytes follow"),
        (zlib.compress(BODY) + b"xy", "deflate", BadRequest, "2 bytes follow"),
        (gzip.compress(b"") * 50_000, "gzip", BadRequest, "follow the end"),
        (BODY, "br", UnsupportedEncoding, "content-encoding 'br'"),
        (BODY, "gzip, gzip", UnsupportedEncoding, "not supported"),
    ],
)
def test_what_cannot_be_undone_is_refused(raw: bytes, encoding: str, kind: type[TailcutError], says: str) -> None:
    with pytest.raises(kind, match=says) as caught:
        undone(raw, encoding)
    assert caught.value.hint


def test_a_bomb_takes_no_more_memory_than_the_limit() -> None:
    bomb = gzip.compress(bytes(200_000_000), 9)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            undone(bomb, "gzip")
        assert tracemalloc.get_traced_memory()[1] < 4 * LIMIT
    finally:
        tracemalloc.stop()


def test_the_event_loop_turns_while_a_large_body_is_decompressed() -> None:
    async def main() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        await decoded(gzip.compress(bytes(5_000_000)), {"content-encoding": "gzip"}, 5_000_000)
        counting.cancel()
        return turns

    assert asyncio.run(main()) >= 15


def test_what_is_left_of_a_large_body_is_not_copied_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that does not shrink leaves nearly all of the body over each time that a piece is made."""
    raw = os.urandom(5_000_000)
    fed = 0
    made = zlib.decompressobj

    class Counting:
        def __init__(self, bits: int) -> None:
            self._inflater = made(bits)

        def decompress(self, data: bytes, most: int) -> bytes:
            nonlocal fed
            fed += len(data)
            return self._inflater.decompress(data, most)

        def __getattr__(self, name: str) -> object:
            return getattr(self._inflater, name)

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    body = gzip.compress(raw, 0)
    assert asyncio.run(decoded(body, {"content-encoding": "gzip"}, len(raw))) == raw
    assert fed <= 2 * len(body)


def test_a_member_behind_the_first_is_refused_wherever_it_begins() -> None:
    first = gzip.compress(os.urandom(100_000), 0)
    for more in (b"x", bytes(200_000)):
        with pytest.raises(BadRequest, match=f"{len(more)} bytes follow"):
            asyncio.run(decoded(first + more, {"content-encoding": "gzip"}, 1_000_000))


def test_a_chunked_body_is_limited_whatever_length_it_says_beside(tmp_path: Path) -> None:
    """Some ASGI servers hand both headers on."""

    async def main() -> None:
        async with running(deployment(tmp_path, overrides=["server.max_body=10000B"])) as client:
            answer = await client.post(INFER, b" " * 20_000, {"content-length": "5", "transfer-encoding": "chunked"})
            assert (answer.status, answer.json["code"]) == (413, "too_large")

    asyncio.run(main())


def test_requests_are_read_whether_they_are_compressed_or_not(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        for encoding, raw in (
            ("gzip", gzip.compress(BODY, mtime=0)),
            ("deflate", zlib.compress(BODY)),
            ("identity", BODY),
            ("gzip", BODY),  # as it was meant; the header is wrong, the body says so itself
        ):
            answer = await client.post(INFER, raw, {"content-encoding": encoding})
            assert (answer.status, answer.json.get("outputs", [{}])[0].get("data")) == (200, [3.0, 7.0])
        refused = await client.post(INFER, b"\x00", {"content-encoding": "zstd"})
        assert (refused.status, refused.headers["accept-encoding"]) == (415, "gzip, deflate")
        bomb = await client.post("/predict/m", gzip.compress(b" " * 30_000), {"content-encoding": "gzip"})
        assert (bomb.status, bomb.json["code"]) == (413, "too_large")
        reply = await client.post(INFER, GOOD, {"accept-encoding": "gzip"})
        assert "content-encoding" not in reply.headers

    async def main() -> None:
        async with running(deployment(tmp_path, overrides=["server.max_body=20000B"])) as client:
            await test(client)

    asyncio.run(main())


def test_replies_are_compressed_where_the_manifest_and_the_client_say_so(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        small = await client.get("/v2/health/live", headers={"accept-encoding": "gzip"})
        assert "content-encoding" not in small.headers
        for accepted in ("gzip", "br, gzip;q=0.5", "*"):
            large = await client.get("/openapi.json", headers={"accept-encoding": accepted})
            assert (large.headers["content-encoding"], large.headers["vary"]) == ("gzip", "accept-encoding")
            assert int(large.headers["content-length"]) == len(large.body)
            assert json.loads(gzip.decompress(large.body))["openapi"]
        for refused in ("", "identity", "gzip;q=0", "br"):
            plain = await client.get("/openapi.json", headers={"accept-encoding": refused})
            assert plain.json["openapi"]
            assert plain.headers["vary"] == "accept-encoding"

    async def main() -> None:
        async with running(deployment(tmp_path, overrides=["server.compress_from=1KiB"])) as client:
            await test(client)

    asyncio.run(main())


def test_quality_that_is_no_number_is_not_taken() -> None:
    assert not accepts_gzip({"accept-encoding": "gzip;q=x"})
    assert not accepts_gzip({})
