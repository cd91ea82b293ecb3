"""One call per key at a time: who joins, who leaves and who fails never hurts anybody else."""

from __future__ import annotations

import asyncio

import pytest
from tests.features_kit import features, get, group, run

from tailcut.errors import FeatureTimeout, FeatureUnavailable
from tailcut.testing import FaultyStore, StubSource


def values(key):
    return {"value": key[0] * 10}


def joins(service) -> int:
    return service.statistics().groups[0].single_flight_joins


def test_concurrent_misses_share_one_call() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        source.hold()
        tasks = [asyncio.create_task(get(service, clock, 1)) for _ in range(50)]
        await clock.settle()
        source.release()
        assert [(await task).rows[0]["value"] for task in tasks] == [10] * 50
        assert source.calls == [[(1,)]]
        assert joins(service) == 49

    run(test, features(group()), {"g": source})


def test_a_batch_asks_only_for_the_keys_that_are_not_in_flight() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        source.hold()
        tasks = [asyncio.create_task(get(service, clock, *ids)) for ids in ([1, 2], [2, 3], [1, 3])]
        await clock.settle()
        assert source.calls == [[(1,), (2,)], [(3,)]]
        source.release()
        assert [[row["value"] for row in (await task).rows] for task in tasks] == [[10, 20], [20, 30], [10, 30]]

    run(test, features(group()), {"g": source})


def test_tenants_and_groups_never_share_a_call() -> None:
    sources = {name: StubSource(lambda key, name=name: {name: 1}) for name in "ab"}
    setup = features(group("a", columns=("a",), per_tenant=True), group("b", columns=("b",), per_tenant=True))

    async def test(service, clock) -> None:
        for source in sources.values():
            source.hold()
        tasks = [asyncio.create_task(get(service, clock, 1, tenant=tenant)) for tenant in "xyx"]
        await clock.settle()
        for source in sources.values():
            assert [context.tenant for context in source.contexts] == ["x", "y"]
            source.release()
        await asyncio.gather(*tasks)

    run(test, setup, sources)


@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_a_client_that_leaves_hurts_nobody(leaver) -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        source.hold()
        tasks = [asyncio.create_task(get(service, clock, 1)) for _ in range(3)]
        await clock.settle()
        tasks[leaver].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[leaver]
        source.release()
        for i in {0, 1, 2} - {leaver}:
            assert (await tasks[i]).rows[0]["value"] == 10
        assert source.cancelled == 0

    run(test, features(group()), {"g": source})


def test_when_all_leave_the_value_is_still_kept_for_the_next() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        source.hold()
        task = asyncio.create_task(get(service, clock, 1))
        await clock.settle()
        task.cancel()
        await clock.settle()
        source.release()
        await clock.settle()
        assert service.fetch_nowait([(1,)], "").rows[0]["value"] == 10

    run(test, features(group()), {"g": source})


def test_a_client_that_leaves_before_its_fetch_began_asks_for_nothing() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        task = asyncio.create_task(get(service, clock, 1))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert source.calls == []

    run(test, features(group()), {"g": source})


def test_each_waiter_keeps_its_own_deadline() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        source.hold()
        hasty = asyncio.create_task(get(service, clock, 1, within_s=0.1))
        patient = asyncio.create_task(get(service, clock, 1, within_s=0.4))
        await clock.pass_time(0.1)
        with pytest.raises(FeatureTimeout, match='"g"'):
            await hasty
        assert not patient.done()
        source.release()
        assert (await patient).rows[0]["value"] == 10
        assert source.calls == [[(1,)]]

    run(test, features(group()), {"g": source})


def test_a_failed_call_fails_all_its_waiters_and_is_forgotten() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        source.hold()
        source.error = ConnectionError("gone")
        tasks = [asyncio.create_task(get(service, clock, 1)) for _ in range(3)]
        await clock.settle()
        source.release()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(error, FeatureUnavailable) for error in errors)
        assert len({id(error) for error in errors}) == 3, "an exception that tasks share mixes up their tracebacks"
        source.error = None
        assert (await get(service, clock, 1)).rows[0]["value"] == 10

    run(test, features(group()), {"g": source})


def test_a_call_that_hangs_ends_with_the_groups_timeout() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        source.hold()
        task = asyncio.create_task(get(service, clock, 1, within_s=5))
        await clock.pass_time(0.49)
        assert not task.done()
        await clock.pass_time(0.02)
        with pytest.raises(FeatureUnavailable, match=r"no answer within 0\.5 s"):
            await task
        assert source.cancelled == 1
        source.release()
        assert (await get(service, clock, 1)).rows[0]["value"] == 10

    run(test, features(group()), {"g": source})


def test_a_source_that_ignores_its_cancellation_holds_up_nobody() -> None:
    forever = []

    async def stubborn(keys, context):
        while not forever:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                if len(keys) > 1:
                    raise
        return [values(key) for key in keys]

    async def test(service, clock) -> None:
        for _ in range(2):
            task = asyncio.create_task(get(service, clock, 1))
            await clock.pass_time(0.6)
            with pytest.raises(FeatureUnavailable, match="no answer within"):
                await task
        forever.append(True)
        # Woken once more by close(), it now ends.

    run(test, features(group()), {"g": stubborn})


def test_who_comes_while_the_value_is_being_written_uses_it_at_once() -> None:
    source, store = StubSource(values), FaultyStore()

    async def test(service, clock) -> None:
        source.hold()
        first = asyncio.create_task(get(service, clock, 1))
        await clock.settle()
        store.mode = "hangs_writing"
        source.release()
        await clock.settle()
        assert (await first).rows[0]["value"] == 10, "an answer does not wait for the store"
        second = asyncio.create_task(get(service, clock, 1))
        await clock.settle()
        assert (await second).rows[0]["value"] == 10
        assert source.calls == [[(1,)]]

    run(test, features(group(), cache="redis", redis_timeout_s=0.02), {"g": source}, store=store)


def test_with_the_cache_off_a_client_that_leaves_ends_its_call() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        source.hold()
        leaving, staying = (asyncio.create_task(get(service, clock, 1)) for _ in range(2))
        await clock.settle()
        leaving.cancel()
        await clock.settle()
        assert source.cancelled == 1
        source.release()
        assert (await staying).rows[0]["value"] == 10

    run(test, features(group(), cache="off"), {"g": source})


def test_a_neighbours_bad_key_in_a_shared_call_fails_the_neighbour_only() -> None:
    gate = asyncio.Event()

    async def source(keys, context):
        await gate.wait()
        if (13,) in keys:
            raise ValueError("unlucky")
        return [values(key) for key in keys]

    async def test(service, clock) -> None:
        batch = asyncio.create_task(get(service, clock, 1, 13))
        await clock.settle()
        neighbour = asyncio.create_task(get(service, clock, 1))
        await clock.settle()
        gate.set()
        with pytest.raises(FeatureUnavailable, match="unlucky"):
            await batch
        assert (await neighbour).rows[0]["value"] == 10

    run(test, features(group()), {"g": source})
