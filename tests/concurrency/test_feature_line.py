"""Source calls under pressure: few at a time, the rest waits in line and is asked for together."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tests.features_kit import features, get, group, run

from tailcut.errors import FeatureTimeout, FeatureUnavailable
from tailcut.testing import FaultyStore, StubSource

SOURCE_S = 0.05
RATE = 400
KEYS = 300


def values(key):
    return {"value": key[0] * 10}


def single(calls: list[list[tuple[int]]]) -> list[list[int]]:
    return [[key for (key,) in call] for call in calls]


async def started(service, clock, *ids: int, within_s: float = 5.0) -> list[asyncio.Task]:
    """One request per id, each as far as it gets."""
    tasks = []
    for id_ in ids:
        tasks.append(asyncio.create_task(get(service, clock, id_, within_s=within_s)))
        await clock.settle()
    return tasks


def test_keys_missed_while_two_calls_run_are_asked_for_together() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        source.hold()
        tasks = await started(service, clock, 1, 2, 3, 4, 3, 5, 1)
        assert single(source.calls) == [[1], [2]]
        source.release()
        found = await asyncio.gather(*tasks)
        assert single(source.calls) == [[1], [2], [3, 4, 5]]
        assert [one.rows[0]["value"] for one in found] == [10, 20, 30, 40, 30, 50, 10]
        assert service.statistics().groups[0].single_flight_joins == 2

    run(test, features(group()), {"g": source})


def test_groups_and_tenants_have_lines_of_their_own() -> None:
    sources = {name: StubSource(lambda key, name=name: {name: key[0]}) for name in "ab"}
    setup = features(group("a", columns=("a",), per_tenant=True), group("b", columns=("b",)))

    async def test(service, clock) -> None:
        sources["a"].hold()
        tasks = await started(service, clock, 1, 2, 3)
        assert single(sources["b"].calls) == [[1], [2], [3]]
        tasks.append(asyncio.create_task(get(service, clock, 1, tenant="other")))
        await clock.settle()
        assert single(sources["a"].calls) == [[1], [2], [1]]
        sources["a"].release()
        await asyncio.gather(*tasks)

    run(test, setup, sources)


def test_one_large_request_is_asked_for_in_parts_and_answered_whole() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        found = await get(service, clock, *range(1000))
        assert [row["value"] for row in found.rows] == [10 * i for i in range(1000)]
        assert [len(call) for call in source.calls] == [256, 256, 256, 232]

    run(test, features(group()), {"g": source})


def test_hung_calls_do_not_block_their_group_for_longer_than_the_time_out() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        source.hold()
        tasks = await started(service, clock, 1, 2, 3, 4)
        await clock.pass_time(0.49)
        assert single(source.calls) == [[1], [2]]
        await clock.pass_time(0.02)
        assert single(source.calls) == [[1], [2], [3, 4]]
        for task in tasks[:2]:
            with pytest.raises(FeatureUnavailable, match=r"no answer within 0\.5 s"):
                await task
        assert not tasks[2].done(), "a call's time-out starts with the call"
        source.release()
        await clock.settle()
        assert [task.result().rows[0]["value"] for task in tasks[2:]] == [30, 40]

    run(test, features(group()), {"g": source})


def test_who_waits_in_line_has_its_own_deadline_and_the_key_is_still_fetched() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        source.hold()
        first = await started(service, clock, 1, 2)
        (late,) = await started(service, clock, 3, within_s=0.2)
        await clock.pass_time(0.19)
        assert not late.done()
        await clock.pass_time(0.02)
        with pytest.raises(FeatureTimeout):
            await late
        (wanted,) = await started(service, clock, 4)
        source.release()
        await asyncio.gather(*first, wanted)
        await clock.settle()
        assert single(source.calls) == [[1], [2], [4], [3]], "who is still waited for goes first"
        assert service.fetch_nowait([(3,)], "") is not None

    run(test, features(group()), {"g": source})


def test_who_is_cancelled_in_line_hurts_nobody() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        source.hold()
        tasks = await started(service, clock, 1, 2, 3, 3, 4)
        for task in (tasks[0], tasks[2]):
            task.cancel()
        await clock.settle()
        source.release()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(one, asyncio.CancelledError) for one in found] == [True, False, True, False, False]
        assert single(source.calls) == [[1], [2], [3, 4]]
        assert source.cancelled == 0

    run(test, features(group()), {"g": source})


def test_a_stale_value_is_served_in_time_while_its_key_waits_in_line() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        await clock.pass_time(11)
        source.hold()
        hung = await started(service, clock, 2, 3)
        (task,) = await started(service, clock, 1, within_s=0.4)
        await clock.pass_time(0.21)
        assert task.result().stale == [True]
        source.release()
        await asyncio.gather(*hung)

    run(test, features(group(stale_for_s=60), refresh_ahead=False), {"g": source})


def test_a_slow_write_to_the_shared_store_holds_up_no_call() -> None:
    source, store = StubSource(values), FaultyStore()

    async def test(service, clock) -> None:
        store.mode = "hangs_writing"
        tasks = await started(service, clock, 1, 2, 3, 4)
        assert all(task.done() for task in tasks)
        assert len(source.calls) == 4

    setup = features(group(), cache="redis", refresh_ahead=False, redis_timeout_s=1.0)
    run(test, setup, {"g": source}, store=store)


def test_closing_ends_all_who_wait_in_line() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        source.hold()
        tasks = await started(service, clock, 1, 2, 3, 4)
        await service.close()
        await clock.settle()
        assert all(task.done() for task in tasks)
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(found, FeatureUnavailable)
            assert "closing" in str(found)
        assert single(source.calls) == [[1], [2]], "nobody is asked any more"
        with pytest.raises(FeatureUnavailable, match="closing"):
            await get(service, clock, 5)

    run(test, features(group()), {"g": source})


@pytest.mark.parametrize("cache", ["memory", "off"])
def test_closing_ends_those_whose_call_has_not_begun(cache) -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        task = asyncio.create_task(get(service, clock, 1))
        await asyncio.sleep(0)
        assert source.calls == []
        await service.close()
        await clock.settle()
        assert task.done()
        with pytest.raises(FeatureUnavailable, match="closing"):
            await task
        assert source.calls == []

    run(test, features(group(), cache=cache, refresh_ahead=False), {"g": source})


class SmallDatabase:
    """Takes a while per call and works on two at a time; the others wait for it."""

    def __init__(self) -> None:
        self.calls = 0
        self._places = asyncio.Semaphore(2)

    async def __call__(self, keys, context):
        self.calls += 1
        async with self._places:
            await asyncio.sleep(SOURCE_S)  # takes time: a query, on the fake clock
        return [values(key) for key in keys]


@pytest.mark.parametrize("cache", ["memory", "redis"])
def test_a_cold_start_under_traffic_fills_the_cache(cache) -> None:
    database, random = SmallDatabase(), Random(1)

    async def test(service, clock) -> None:
        tasks = []
        for _ in range(4 * RATE):
            tasks.append(asyncio.create_task(get(service, clock, random.randrange(KEYS), within_s=0.5)))
            await clock.pass_time(1 / RATE)
        await clock.pass_time(0.5)
        assert all(task.done() for task in tasks)
        assert [task.exception() for task in tasks if task.exception() is not None] == []
        assert all(service.fetch_nowait([(i,)], "") is not None for i in range(KEYS))
        group_statistics = service.statistics().groups[0]
        assert (group_statistics.errors, group_statistics.source_keys) == (0, KEYS), "each key once"
        assert database.calls < 100

    run(test, features(group(), cache=cache), {"g": database}, store=FaultyStore())
