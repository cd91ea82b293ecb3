"""Answers in a real Redis: shared, with their life, and without harm when it is killed, paused and back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import msgspec
import pytest
import redis
from tests.integration.servers import RedisServer, redis_server
from tests.manifest_kit import written

from tailcut.cache.keys import entity_prediction_key
from tailcut.common.timings import Stage
from tailcut.errors import StartError
from tailcut.manifest import load
from tailcut.pipeline.cache_fill import CacheFill
from tailcut.pipeline.prediction_cache import PredictionStore, open_caches
from tailcut.pipeline.request_context import RequestContext

pytestmark = pytest.mark.integration
TIMEOUT_S = 0.1
SLACK_S = 2.0
"""What a request may take beyond the time-out on a machine that does other things too."""

Cache = PredictionStore[msgspec.Raw]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


class Servers:
    """Two caches of two servers of one deployment, and what each had to compute."""

    def __init__(self, one: Cache, other: Cache) -> None:
        self.one = one
        self.other = other
        self.computed: list[int] = []

    async def ask(self, cache: Cache, id_: int) -> float:
        """Ask for one entity; seconds that it took."""
        began_s = time.perf_counter()
        now_ns = time.perf_counter_ns()
        context = RequestContext("predict", now_ns, now_ns + 5 * 10**9, "", "stub")
        key = entity_prediction_key(b"v", "", (id_,), ("y",))
        found = [cache.store.get_nowait(key)]

        async def make(at: list[int]) -> tuple[list[msgspec.Raw], list[float]]:
            self.computed.append(id_)
            return [msgspec.Raw(b'{"y":%d}' % id_) for _ in at], [60.0 for _ in at]

        if None in found:
            await CacheFill(cache, context, Stage.ENTITY_CACHE, [key], found, make, fallback=False).fill()
        assert found[0] is not None
        assert bytes(found[0]) == b'{"y":%d}' % id_
        return time.perf_counter() - began_s

    async def until_shared(self, first_id: int) -> None:
        """Ask for new entities until the other server finds one that this one computed."""
        async with asyncio.timeout(15):
            for id_ in range(first_id, first_id + 1000):
                await self.ask(self.one, id_)
                await asyncio.sleep(0.02)
                before = len(self.computed)
                await self.ask(self.other, id_)
                if len(self.computed) == before:
                    return


def run(server: RedisServer, tmp_path, test: Callable[[Servers], Awaitable[None]]) -> None:
    overrides = (
        f"features.redis={server.url}",
        f"features.redis_timeout={TIMEOUT_S * 1e3:.0f}ms",
        "cache.entity={enabled=true, shared=true, ttl='60s'}",
    )
    deployment = load(written(tmp_path), environment={}, overrides=overrides).deployment

    async def main() -> None:
        one, other = await open_caches(deployment), await open_caches(deployment)
        assert one.entity is not None
        assert other.entity is not None
        assert one.tensor is None
        try:
            await test(Servers(one.entity, other.entity))
        finally:
            await one.close()
            await other.close()

    asyncio.run(main())


def test_answers_are_shared_and_live_as_long_as_they_may(server: RedisServer, tmp_path) -> None:
    async def test(servers: Servers) -> None:
        await servers.until_shared(1)
        client = redis.Redis.from_url(server.url)
        lives_ms = [client.pttl(key) for key in list(client.keys("*"))]
        client.close()
        assert lives_ms
        assert all(50_000 < life_ms <= 60_000 for life_ms in lives_ms)

    run(server, tmp_path, test)


@pytest.mark.parametrize("fault", ["killed", "paused"])
def test_an_outage_costs_no_answer_and_no_time_to_speak_of(server: RedisServer, tmp_path, fault: str) -> None:
    async def test(servers: Servers) -> None:
        await servers.until_shared(1)
        if fault == "killed":
            server.kill()
        else:
            server.pause()
        took_s = [await servers.ask(servers.one, id_) for id_ in range(5000, 5060)]
        assert max(took_s) < TIMEOUT_S + SLACK_S
        assert sum(took_s) < len(took_s) * TIMEOUT_S, "after three failures it is bypassed"
        shared = servers.one.shared
        assert shared is not None
        assert shared.store.statistics().bypasses > 0
        if fault == "killed":
            server.start()
        else:
            server.resume()
        await servers.until_shared(6000)
        assert shared.store.statistics().recoveries == 1

    run(server, tmp_path, test)


def test_garbage_in_redis_is_a_miss(server: RedisServer, tmp_path) -> None:
    async def test(servers: Servers) -> None:
        await servers.until_shared(1)
        client = redis.Redis.from_url(server.url)
        for key in list(client.keys("*")):
            client.set(key, b"\x80\x04garbage", keepttl=True)
        client.close()
        before = len(servers.computed)
        servers.other.store._entries.clear()
        with suppress(KeyError):
            await servers.ask(servers.other, 1)
        assert len(servers.computed) == before + 1

    run(server, tmp_path, test)


def test_a_redis_that_refuses_us_is_told_at_the_start(server: RedisServer, tmp_path) -> None:
    client = redis.Redis.from_url(server.url)
    client.config_set("requirepass", "secret")
    client.close()

    async def test(servers: Servers) -> None:
        raise AssertionError("it must not start")

    with pytest.raises(StartError, match=r"features\.redis refuses"):
        run(server, tmp_path, test)
