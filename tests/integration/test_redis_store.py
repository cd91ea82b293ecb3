"""A real Redis that is there, killed, paused, full of somebody else's data, and back."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
import redis
from tests.features_kit import features, group, resolver
from tests.integration.servers import RedisServer, free_port, redis_server

from tailcut.cache import BypassedStore, RedisStore
from tailcut.cache.redis import KEY_PREFIX
from tailcut.errors import StartError
from tailcut.features import FeatureService
from tailcut.features.entry import StoredEntry
from tailcut.testing import StubSource

TIMEOUT_S = 0.1
# What a request may take beyond the store's time-out on a machine that does other things too.
SLACK_S = 2.0


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


def setup_of(server: RedisServer, **settings):
    chosen = {"cache": "redis", "redis": server.url, "redis_timeout_s": TIMEOUT_S, "refresh_ahead": False}
    return features(group(), **(chosen | settings))


def run(server: RedisServer, test: Callable[[FeatureService, StubSource], Awaitable[None]], **settings) -> None:
    source = StubSource(lambda key: {"value": key[0] * 10})

    async def main() -> None:
        service = await FeatureService.open(setup_of(server, **settings), resolve=resolver({"g": source}))
        try:
            await test(service, source)
        finally:
            await service.close()

    asyncio.run(main())


async def ask(service: FeatureService, id_: int = 1) -> tuple[int, float]:
    """Hits of one fetch, and how long it took."""
    began_s = time.monotonic()
    found = await service.fetch([(id_,)], "", began_s + 5)
    assert found.rows == [{"id": id_, "value": id_ * 10}]
    return found.hits, time.monotonic() - began_s


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Keep asking, as clients do, until the condition holds."""
    async with asyncio.timeout(15):
        while not await condition():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def another(server: RedisServer, source: StubSource) -> AsyncIterator[FeatureService]:
    """Another server on the same Redis, with nothing in its own memory."""
    service = await FeatureService.open(setup_of(server), resolve=resolver({"g": source}))
    try:
        yield service
    finally:
        await service.close()


NEW_IDS = itertools.count(1000)


async def until_shared(server: RedisServer, service: FeatureService, source: StubSource) -> None:
    """Until another server finds in Redis what ``service`` has just fetched."""

    async def shared() -> bool:
        id_ = next(NEW_IDS)
        await ask(service, id_)
        async with another(server, source) as other:
            return (await ask(other, id_))[0] == 1

    await until(shared)


async def keys_in(server: RedisServer) -> list[bytes]:
    """All keys, once there are any: a request is answered before its values are written."""
    client = redis.Redis.from_url(server.url)

    async def written() -> bool:
        return bool(client.keys())

    await until(written)
    keys = client.keys()
    client.close()
    return keys


def test_values_are_kept_for_their_life_and_shared(server) -> None:
    async def test(service, source) -> None:
        await ask(service)
        (key,) = await keys_in(server)
        assert key.startswith(KEY_PREFIX)
        client = redis.Redis.from_url(server.url)
        assert 9_000 < client.pttl(key) <= 10_000
        client.close()
        async with another(server, source) as other:
            assert (await ask(other))[0] == 1
        assert len(source.calls) == 1

    run(server, test)


def test_redis_killed_and_back(server) -> None:
    async def test(service, source) -> None:
        await until_shared(server, service, source)
        server.kill()
        for i in range(30):
            assert (await ask(service, i))[1] < TIMEOUT_S + SLACK_S
        assert service.statistics().store.bypassed
        assert service.statistics().bypasses > 0
        for i in range(30):
            assert (await ask(service, i))[0] == 1, "kept in memory"
        server.start()
        await until_shared(server, service, source)
        assert service.statistics().store.recoveries == 1

    run(server, test)


def test_redis_paused_and_back(server) -> None:
    async def test(service, source) -> None:
        await until_shared(server, service, source)
        server.pause()
        took_s = [(await ask(service, i))[1] for i in range(30)]
        assert max(took_s) < TIMEOUT_S + SLACK_S
        assert service.statistics().store.timeouts >= 3
        bypasses = service.statistics().bypasses
        assert (await ask(service, 30))[1] < TIMEOUT_S + SLACK_S
        assert service.statistics().bypasses > bypasses
        server.resume()
        await until_shared(server, service, source)

    run(server, test)


def test_many_requests_at_once_while_redis_is_paused(server) -> None:
    async def test(service, source) -> None:
        await asyncio.gather(*[ask(service, i) for i in range(100)])
        server.pause()
        found = await asyncio.gather(*[ask(service, i) for i in range(200)])
        assert [hits for hits, _ in found] == [1] * 100 + [0] * 100
        assert max(took_s for _, took_s in found) < TIMEOUT_S + SLACK_S
        server.resume()
        await until_shared(server, service, source)

    run(server, test)


def test_a_late_reply_never_reaches_another_request(server) -> None:
    async def test(service, source) -> None:
        for i in (1, 2, 3):
            await ask(service, i)
        for _ in range(3):
            async with another(server, source) as other:
                server.pause()
                tasks = [asyncio.create_task(ask(other, i)) for i in (1, 2, 3)]
                await asyncio.sleep(0)
                tasks[0].cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                server.resume()
                # ask() compares every row with what it must be; these are not in memory yet.
                found = await asyncio.gather(*[ask(other, next(NEW_IDS)) for _ in range(3)])
                assert [hits for hits, _ in found] == [0, 0, 0]
                await asyncio.gather(*[ask(other, i) for i in (3, 2, 1)])
                await until_shared(server, other, source)

    run(server, test)


def test_refresh_ahead_works_over_redis(server) -> None:
    async def test(service, source) -> None:
        await ask(service)

        async def refreshed() -> bool:
            return service.statistics().groups[0].refreshes >= 2

        await until(refreshed)
        assert (await ask(service))[0] == 1

    async def main() -> None:
        source = StubSource(lambda key: {"value": key[0] * 10})
        setup = features(
            group(ttl="500ms"), cache="redis", redis=server.url, redis_timeout_s=TIMEOUT_S, refresh_ahead=True
        )
        service = await FeatureService.open(setup, resolve=resolver({"g": source}))
        try:
            await test(service, source)
        finally:
            await service.close()

    asyncio.run(main())


async def misses_at_first(server: RedisServer, source: StubSource) -> None:
    async with another(server, source) as other:
        assert [(await ask(other))[0] for _ in range(2)] == [0, 1]
        assert not other.statistics().store.bypassed


def test_garbled_values_count_as_missing(server) -> None:
    async def test(service, source) -> None:
        await ask(service)
        (key,) = await keys_in(server)
        client = redis.Redis.from_url(server.url)
        good = client.get(key)
        for bad in (b"", b"\xc1", good[:-1], good + b"\0", b"\x93\x01\x02\x03", b"\xc0"):
            client.set(key, bad)
            await misses_at_first(server, source)
        client.delete(key)
        client.rpush(key, "a list")
        await misses_at_first(server, source)
        client.close()

    run(server, test)


def test_a_full_redis_still_answers_look_ups(server) -> None:
    async def test(service, source) -> None:
        await ask(service)
        await keys_in(server)
        client = redis.Redis.from_url(server.url)
        client.config_set("maxmemory", "1")
        for i in range(10):
            await ask(service, 100 + i)
        assert not service.statistics().store.bypassed
        async with another(server, source) as other:
            assert (await ask(other))[0] == 1
            assert (await ask(other, 100))[0] == 0, "there was no room"
            assert (await ask(other, 100))[0] == 1, "but in memory there is"
        client.close()

    run(server, test)


def test_a_redis_that_is_down_at_the_start_is_found_when_it_comes() -> None:
    server = RedisServer()

    async def test(service, source) -> None:
        assert (await ask(service))[0] == 0
        assert service.statistics().store.bypassed
        server.start()
        await until_shared(server, service, source)

    try:
        run(server, test)
    finally:
        server.kill()


def test_something_that_is_no_redis_is_bypassed() -> None:
    async def main() -> None:
        async def babble(reader, writer) -> None:
            await reader.read(10)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()
            writer.close()

        port = free_port()
        stranger = await asyncio.start_server(babble, "127.0.0.1", port)
        store: BypassedStore[StoredEntry] = BypassedStore(
            RedisStore(f"redis://127.0.0.1:{port}", StoredEntry, timeout_s=TIMEOUT_S), TIMEOUT_S
        )
        for _ in range(4):
            assert await store.get_many([b"a", b"b"]) == [None, None]
        assert store.statistics().bypassed
        await store.close()
        stranger.close()
        await stranger.wait_closed()

    asyncio.run(main())


def test_wrong_credentials_stop_the_start(server) -> None:
    client = redis.Redis.from_url(server.url)
    client.config_set("requirepass", "secret")
    client.close()

    async def main() -> None:
        setup = features(group(), cache="redis", redis=server.url.replace("//", "//:wrong@"), redis_timeout_s=1.0)
        with pytest.raises(StartError, match=r"features\.redis refuses the credentials"):
            await FeatureService.open(setup, resolve=resolver({"g": StubSource({})}))

    asyncio.run(main())


def without_look_ups(server: RedisServer) -> str:
    """URL of a user who may ping and write but not look up."""
    client = redis.Redis.from_url(server.url)
    client.execute_command("ACL", "SETUSER", "writer", "on", ">secret", "~*", "+ping", "+set")
    client.close()
    return server.url.replace("//", "//writer:secret@")


def test_a_redis_that_answers_pings_but_no_look_ups_stays_bypassed(server) -> None:
    """Seen before: it came back after every ping, so that three look-ups failed ten times a second."""

    async def main() -> None:
        store: BypassedStore[StoredEntry] = BypassedStore(
            RedisStore(without_look_ups(server), StoredEntry, timeout_s=TIMEOUT_S), TIMEOUT_S
        )
        for _ in range(3):
            assert await store.get_many([b"a", b"b"]) == [None, None]
        assert not await store.probe()
        assert store.statistics().bypassed
        client = redis.Redis.from_url(server.url)
        client.execute_command("ACL", "SETUSER", "writer", "+mget")
        client.close()

        async def back() -> bool:
            return not store.statistics().bypassed

        await until(back)
        await store.close()

    asyncio.run(main())


def test_rights_that_are_missing_stop_the_start(server) -> None:
    async def main() -> None:
        setup = features(group(), cache="redis", redis=without_look_ups(server), redis_timeout_s=1.0)
        with pytest.raises(StartError, match=r"features\.redis refuses .*mget") as caught:
            await FeatureService.open(setup, resolve=resolver({"g": StubSource({})}))
        assert "MGET" in caught.value.hint

    asyncio.run(main())
