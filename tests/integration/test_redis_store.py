"""A real Redis that is there, killed, paused, full of somebody else's data, and back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

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
SLACK_S = 0.4


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


async def until_hit(service: FeatureService) -> None:
    async def hit() -> bool:
        return (await ask(service))[0] == 1

    await until(hit)


def test_values_are_kept_for_their_life_and_shared(server) -> None:
    async def test(service, source) -> None:
        await ask(service)
        await until_hit(service)
        client = redis.Redis.from_url(server.url)
        (key,) = client.keys()
        assert key.startswith(KEY_PREFIX)
        assert 9_000 < client.pttl(key) <= 10_000
        client.close()
        other = await FeatureService.open(setup_of(server), resolve=resolver({"g": source}))
        assert (await ask(other))[0] == 1
        await other.close()
        assert len(source.calls) == 1

    run(server, test)


def test_redis_killed_and_back(server) -> None:
    async def test(service, source) -> None:
        await until_hit(service)
        server.kill()
        for _ in range(30):
            assert (await ask(service))[1] < TIMEOUT_S + SLACK_S
        assert service.statistics().store.bypassed
        assert service.statistics().bypasses > 0
        server.start()
        await until_hit(service)
        assert service.statistics().store.recoveries == 1

    run(server, test)


def test_redis_paused_and_back(server) -> None:
    async def test(service, source) -> None:
        await until_hit(service)
        server.pause()
        took_s = [(await ask(service))[1] for _ in range(30)]
        assert max(took_s) < TIMEOUT_S + SLACK_S
        assert service.statistics().store.timeouts >= 3
        bypasses = service.statistics().bypasses
        assert (await ask(service))[1] < TIMEOUT_S + SLACK_S
        assert service.statistics().bypasses > bypasses
        server.resume()
        await until_hit(service)

    run(server, test)


def test_many_requests_at_once_while_redis_is_paused(server) -> None:
    async def test(service, source) -> None:
        await asyncio.gather(*[ask(service, i) for i in range(100)])
        server.pause()
        took_s = [took for _, took in await asyncio.gather(*[ask(service, i) for i in range(100)])]
        assert max(took_s) < TIMEOUT_S + SLACK_S
        server.resume()
        await until_hit(service)

    run(server, test)


def test_a_late_reply_never_reaches_another_request(server) -> None:
    async def test(service, source) -> None:
        for i in (1, 2, 3):
            await ask(service, i)
        for _ in range(3):
            server.pause()
            tasks = [asyncio.create_task(ask(service, i)) for i in (1, 2, 3)]
            await asyncio.sleep(0)
            tasks[0].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            server.resume()
            # ask() compares every row with what it must be.
            await asyncio.gather(*[ask(service, i) for i in (3, 2, 1)])
            await until_hit(service)

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


def test_garbled_values_count_as_missing(server) -> None:
    async def test(service, source) -> None:
        await ask(service)
        client = redis.Redis.from_url(server.url)
        (key,) = client.keys()
        good = client.get(key)
        for bad in (b"", b"\xc1", good[:-1], good + b"\0", b"\x93\x01\x02\x03", b"\xc0"):
            client.set(key, bad)
            assert (await ask(service))[0] == 0
        client.delete(key)
        client.rpush(key, "a list")
        assert (await ask(service))[0] == 0
        client.close()
        assert not service.statistics().store.bypassed

    run(server, test)


def test_a_full_redis_still_answers_look_ups(server) -> None:
    async def test(service, source) -> None:
        await until_hit(service)
        client = redis.Redis.from_url(server.url)
        client.config_set("maxmemory", "1")
        for i in range(10):
            await ask(service, 100 + i)
        assert (await ask(service))[0] == 1
        assert not service.statistics().store.bypassed
        client.close()

    run(server, test)


def test_a_redis_that_is_down_at_the_start_is_found_when_it_comes() -> None:
    server = RedisServer()

    async def test(service, source) -> None:
        assert (await ask(service))[0] == 0
        assert service.statistics().store.bypassed
        server.start()
        await until_hit(service)

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
