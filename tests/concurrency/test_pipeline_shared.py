"""Answers shared between servers: another server's answer is as good, and a store that fails costs next to nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.concurrency.pipelines import REDIS_TIMEOUT_S, PipelineBench, tensors
from tests.features_kit import features, group

from tailcut.pipeline.pipeline import Pipeline
from tailcut.pipeline.shared_cache import StoredAnswer

LONG = features(group(ttl="1h"), refresh_ahead=False)
SETTINGS = [{"tensor_ttl_s": 60.0}, {"entity_ttl_s": 60.0, "features": LONG}]
both = pytest.mark.parametrize("settings", SETTINGS, ids=["tensor", "entity"])


def benches(settings: dict[str, Any], count: int = 2) -> list[PipelineBench]:
    """Servers with memories of their own and one store between them."""
    made = [PipelineBench(shared=True, **settings) for _ in range(count)]
    for bench in made[1:]:
        bench.clock = made[0].clock
        for cache in (bench.entity, bench.tensor):
            if cache is not None:
                cache.shared.store._store = made[0].remote
                cache.store.monotonic_s = bench.clock.monotonic_s
                cache.shared._wall_s = bench.clock.wall_s
    return made


async def ask(pipeline: Pipeline, bench: PipelineBench, *ids: int, within_s: float = 60.0) -> tuple[str, str]:
    call = bench.context("", within_s)
    if bench.entity is not None:
        found: Any = msgspec.json.encode(await pipeline.predict_entities(call, ids))
    else:
        found = (await pipeline.infer(call, tensors(*ids), len(ids), pipeline.outputs))["y"].tolist()
    await bench.clock.settle()  # it is written beside the request
    return str(found), call.cache


@both
def test_another_servers_answers_are_hits_and_only_new_rows_are_computed(settings: dict[str, Any]) -> None:
    one, other = benches(settings)

    async def main() -> None:
        async with one.opened() as first, other.opened() as second:
            made, _ = await ask(first, one, 1, 2)
            assert await ask(second, other, 1, 2) == (made, "hit")
            assert other.computed == []
            assert (await ask(second, other, 2, 3))[1] == "miss"
            assert other.computed == [3]
            assert one.remote is not None
            looked_up = len(one.remote.look_ups)
            assert (await ask(second, other, 1, 3))[1] == "hit"
            assert len(one.remote.look_ups) == looked_up, "from now on it is in memory"

    one.run(main())


@both
def test_an_entry_lives_as_long_as_the_one_it_was_made_for(settings: dict[str, Any]) -> None:
    one, other = benches(settings)

    async def main() -> None:
        async with one.opened() as first, other.opened() as second:
            await ask(first, one, 1)
            await one.clock.pass_time(59)
            assert (await ask(second, other, 1))[1] == "hit"
            await one.clock.pass_time(2)
            assert (await ask(second, other, 1))[1] == "miss"
            assert one.remote is not None
            assert set(one.remote.ttls_s.values()) == {60.0}

    one.run(main())


@both
@pytest.mark.parametrize("mode", ["fails", "hangs", "short", "cancels", "hangs_writing"])
def test_a_store_that_fails_costs_no_answer_and_no_more_than_its_time_out(settings: dict[str, Any], mode: Any) -> None:
    (bench,) = benches(settings, 1)

    async def main() -> None:
        async with bench.opened() as pipeline:
            assert bench.remote is not None
            bench.remote.mode = mode
            for id_ in range(1, 8):
                began_s = bench.clock.monotonic_s()
                task = asyncio.create_task(ask(pipeline, bench, id_))
                await bench.clock.pass_time(REDIS_TIMEOUT_S + 0.001)
                assert task.done()
                assert task.result()[1] == "miss"
                assert bench.clock.monotonic_s() - began_s < 2 * REDIS_TIMEOUT_S
            cache = bench.entity or bench.tensor
            assert cache is not None
            assert cache.shared is not None
            assert cache.shared.store.statistics().failures >= 3
            if mode not in {"hangs_writing", "short"}:  # look-ups, or probes, are well
                assert cache.shared.store.statistics().bypassed
            bench.remote.mode = "well"
            await bench.clock.pass_time(5)
            assert not cache.shared.store.statistics().bypassed
            before = len(bench.remote.values)
            await ask(pipeline, bench, 50)
            assert len(bench.remote.values) == before + 1, "it is written again once it is back"

    bench.run(main())


def test_a_request_with_little_time_does_not_ask_the_store() -> None:
    (bench,) = benches({"tensor_ttl_s": 60.0}, 1)

    async def main() -> None:
        async with bench.opened() as pipeline:
            assert bench.remote is not None
            await ask(pipeline, bench, 1, within_s=1.5 * REDIS_TIMEOUT_S)
            assert bench.remote.look_ups == []
            await ask(pipeline, bench, 2, within_s=3 * REDIS_TIMEOUT_S)
            assert len(bench.remote.look_ups) == 1

    bench.run(main())


@both
@pytest.mark.parametrize(
    "raw", [b"", b"\x80\x04K\x01.", b"{", b"null}", b"\xc1", b"\x91\x95\xa1y\xa4FP32\x91\x01\xc4\x01\x00\x90", b"\x01"]
)
def test_what_is_no_answer_is_a_miss(settings: dict[str, Any], raw: bytes) -> None:
    (bench,) = benches(settings, 1)

    async def main() -> None:
        async with bench.opened() as pipeline:
            made, _ = await ask(pipeline, bench, 1)
            assert bench.remote is not None
            (key,) = bench.remote.values
            wall_s = bench.clock.wall_s()
            cache = bench.entity or bench.tensor
            assert cache is not None
            for until_s in (wall_s + 60, float("nan"), float("inf"), wall_s - 1):
                bench.remote.values[key] = StoredAnswer(until_s, 60.0, raw if raw != b"\x01" else b"{}")
                if raw == b"\x01" and until_s == wall_s + 60:
                    continue
                cache.store._entries.clear()
                assert await ask(pipeline, bench, 1) == (made, "miss")

    bench.run(main())


def test_a_wrong_clock_of_another_server_never_makes_an_entry_live_longer() -> None:
    (bench,) = benches({"tensor_ttl_s": 60.0}, 1)

    async def main() -> None:
        async with bench.opened() as pipeline:
            await ask(pipeline, bench, 1)
            assert bench.remote is not None
            ((key, stored),) = bench.remote.values.items()
            bench.remote.values[key] = StoredAnswer(stored.until_wall_s + 1e6, 1e6, stored.value)
            await bench.clock.pass_time(61)
            assert (await ask(pipeline, bench, 1))[1] == "hit"
            del bench.remote.values[key]
            await bench.clock.pass_time(61)
            assert (await ask(pipeline, bench, 1))[1] == "miss"

    bench.run(main())
