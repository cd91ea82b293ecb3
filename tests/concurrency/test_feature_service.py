"""Sources and stores that fail or hang: stale values within their limit, clear errors after it, recovery by itself."""

from __future__ import annotations

import asyncio

import pytest
from tests.features_kit import features, get, group, opened, run

from tailcut.errors import FeatureTimeout, FeatureUnavailable
from tailcut.testing import FaultyStore, StubSource


def values(key):
    return {"value": key[0] * 10}


def stale_served(service) -> int:
    return service.statistics().groups[0].stale_served


@pytest.mark.parametrize("cache", ["memory", "redis"])
def test_a_stale_value_is_served_and_marked_while_the_source_fails(cache) -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        await clock.pass_time(11)
        source.error = ConnectionError("down")
        found = await get(service, clock, 1)
        assert found.rows == [{"id": 1, "value": 10}]
        assert (found.stale, found.fresh_for_s, stale_served(service)) == ([True], [0.0], 1)
        await clock.pass_time(18.9)
        assert (await get(service, clock, 1)).stale == [True]
        await clock.pass_time(0.1)
        with pytest.raises(FeatureUnavailable, match=r'"g" .* stale limit of 20 s: .*down') as caught:
            await get(service, clock, 1)
        assert caught.value.group == "g"
        source.error = None
        assert (await get(service, clock, 1)).stale == [False]

    setup = features(group(stale_for_s=20), refresh_ahead=False, cache=cache)
    run(test, setup, {"g": source}, store=FaultyStore())


def test_without_a_stale_limit_nothing_stale_is_served() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        await clock.pass_time(10)
        source.error = ConnectionError("down")
        with pytest.raises(FeatureUnavailable):
            await get(service, clock, 1)
        assert stale_served(service) == 0

    run(test, features(group(), refresh_ahead=False), {"g": source})


def test_only_what_is_stale_is_marked() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        await clock.pass_time(6)
        await get(service, clock, 2)
        await clock.pass_time(6)
        source.error = ConnectionError("down")
        found = await get(service, clock, 1, 2)
        assert found.stale == [True, False]
        assert found.fresh_for_s == [0.0, pytest.approx(4.0)]

    run(test, features(group(stale_for_s=60), refresh_ahead=False), {"g": source})


def test_a_hanging_source_leaves_half_of_the_time_for_the_stale_answer() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        await clock.pass_time(11)
        source.hold()
        task = asyncio.create_task(get(service, clock, 1, within_s=0.2))
        await clock.pass_time(0.09)
        assert not task.done()
        await clock.pass_time(0.02)
        assert task.done()
        assert task.result().stale == [True]

    run(test, features(group(stale_for_s=60), refresh_ahead=False), {"g": source})


def test_only_the_first_request_pays_for_finding_out_that_a_source_hangs() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        await get(service, clock, *range(10))
        await clock.pass_time(11)
        source.hold()
        first = asyncio.create_task(get(service, clock, 0))
        await clock.pass_time(0.51)
        assert first.result().stale == [True]
        for i in range(10):
            later = asyncio.create_task(get(service, clock, i))
            await clock.settle()
            assert later.result().stale == [True], "at once"
        source.release()
        await clock.pass_time(1)
        await get(service, clock, 0)
        await clock.pass_time(0.2)
        assert (await get(service, clock, 0)).stale == [False], "asked again in the background, recovered"

    run(test, features(group(stale_for_s=60), refresh_ahead=False), {"g": source})


def test_while_a_source_fails_keys_without_a_stale_value_are_still_asked_for() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        source.error = ConnectionError("down")
        with pytest.raises(FeatureUnavailable):
            await get(service, clock, 1)
        source.error = None
        assert (await get(service, clock, 1)).rows[0]["value"] == 10

    run(test, features(group(stale_for_s=60)), {"g": source})


def test_a_deadline_that_has_passed_asks_nobody() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        with pytest.raises(FeatureTimeout, match='"g"'):
            await get(service, clock, 1, within_s=0)
        assert source.calls == []
        await get(service, clock, 1)
        assert (await get(service, clock, 1, within_s=0)).hits == 1, "what is there needs no time"

    run(test, features(group()), {"g": source})


def test_a_slow_group_does_not_hold_up_the_error_of_its_neighbour_beyond_the_deadline() -> None:
    slow, failing = StubSource(lambda key: {"a": 1}), StubSource(lambda key: {"b": 1})

    async def test(service, clock) -> None:
        slow.hold()
        failing.error = ConnectionError("down")
        task = asyncio.create_task(get(service, clock, 1, within_s=0.3))
        await clock.pass_time(0.3)
        with pytest.raises((FeatureTimeout, FeatureUnavailable)):
            await task

    run(test, features(group("a", columns=("a",)), group("b", columns=("b",))), {"a": slow, "b": failing})


def test_one_groups_failure_does_not_lose_what_the_other_found() -> None:
    good, failing = StubSource(lambda key: {"a": 1}), StubSource(lambda key: {"b": 1})

    async def test(service, clock) -> None:
        failing.error = ConnectionError("down")
        with pytest.raises(FeatureUnavailable) as caught:
            await get(service, clock, 1)
        assert caught.value.group == "b"
        failing.error = None
        await get(service, clock, 1)
        assert len(good.calls) == 1

    run(test, features(group("a", columns=("a",)), group("b", columns=("b",))), {"a": good, "b": failing})


@pytest.mark.parametrize("mode", ["fails", "hangs", "short"])
def test_a_broken_store_never_fails_a_request_and_costs_its_timeout_at_most(mode) -> None:
    source, store = StubSource(values), FaultyStore()
    setup = features(group(), cache="redis", refresh_ahead=False, redis_timeout_s=0.02)

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        store.mode = mode
        for i in range(20):
            began_s = clock.monotonic_s()
            task = asyncio.create_task(get(service, clock, 100 + i))
            while not task.done():
                await clock.pass_time(0.005)
            assert task.result().rows == [{"id": 100 + i, "value": 1000 + 10 * i}]
            assert clock.monotonic_s() - began_s <= 0.03
        statistics = service.statistics()
        assert statistics.store.bypassed
        assert statistics.bypasses > 0
        store.mode = "well"
        await clock.pass_time(2.1)
        assert not service.statistics().store.bypassed
        await get(service, clock, 2)
        async with opened(clock, setup, {"g": source}, store=store) as other:
            assert (await get(other, clock, 2)).hits == 1

    run(test, setup, {"g": source}, store=store)


def test_a_look_up_in_the_shared_store_takes_no_longer_than_the_request_has() -> None:
    """The store's own time-out is for requests that have the time; it goes on, and what it finds is kept."""
    source, store = StubSource(values), FaultyStore()
    setup = features(group(), cache="redis", refresh_ahead=False, redis_timeout_s=0.5)

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        store.mode = "hangs"
        began_s = clock.monotonic_s()
        task = asyncio.create_task(get(service, clock, 2, within_s=0.05))
        while not task.done():
            await clock.pass_time(0.005)
        with pytest.raises(FeatureTimeout):
            task.result()
        assert 0.049 <= clock.monotonic_s() - began_s <= 0.06
        assert (await get(service, clock, 1, within_s=0.05)).rows == [{"id": 1, "value": 10}], "what is in memory"
        assert len(source.calls) == 1, "nobody was asked for whom no time was left"
        await clock.pass_time(1.0)
        assert service.statistics().store.timeouts == 1

    run(test, setup, {"g": source}, store=store)


@pytest.mark.parametrize(("cache", "within_s", "left_s"), [("off", 0.5, 0.5), ("off", 50.0, 2.0), ("memory", 0.5, 2.0)])
def test_a_source_is_told_when_its_caller_gives_up(cache, within_s, left_s) -> None:
    """The request that alone has it; a call whose values are kept is for those who ask next, too."""
    source = StubSource(values)

    async def test(service, clock) -> None:
        began_s = clock.monotonic_s()
        await get(service, clock, 1, within_s=within_s)
        assert source.contexts[0].deadline_s == pytest.approx(began_s + left_s)

    run(test, features(group(), cache=cache, refresh_ahead=False, timeout_s=2.0), {"g": source})


@pytest.mark.parametrize("mode", ["fails", "hangs", "short"])
def test_while_the_shared_store_is_down_memory_goes_on(mode) -> None:
    source, store = StubSource(values), FaultyStore()

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        store.mode = mode
        began_s = clock.monotonic_s()
        for i in range(1, 21):
            task = asyncio.create_task(get(service, clock, i))
            while not task.done():
                await clock.pass_time(0.005)
            assert task.result().misses == (i != 1)
        assert service.statistics().store.bypassed
        assert clock.monotonic_s() - began_s < 5
        for i in range(1, 21):
            assert service.fetch_nowait([(i,)], "").rows == [{"id": i, "value": i * 10}]
        assert len(source.calls) == 20, "each once"

    run(test, features(group(), cache="redis", refresh_ahead=False), {"g": source}, store=store)


def test_an_entry_that_another_program_wrote_counts_as_a_miss() -> None:
    source, store = StubSource(values), FaultyStore()

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        (key,) = store.values
        for values_of, ttl_s in (([1, 2], 10.0), ([], 10.0), ([1], float("nan")), ([1], -1.0), ([1], 11.0)):
            store.values[key].values, store.values[key].ttl_s = values_of, ttl_s
            async with opened(clock, setup, {"g": source}, store=store) as other:
                assert (await get(other, clock, 1)).rows == [{"id": 1, "value": 10}]
                assert (await get(other, clock, 1)).rows == [{"id": 1, "value": 10}]
        assert len(source.calls) == 6

    setup = features(group(), cache="redis", refresh_ahead=False)
    run(test, setup, {"g": source}, store=store)


def test_a_writer_whose_clock_is_ahead_does_not_make_a_value_live_longer() -> None:
    source, store = StubSource(values), FaultyStore()

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        (key,) = store.values
        written_s = store.values[key].written_wall_s
        for ahead_s, hits in ((0.9, 1), (1.1, 0), (3600, 0), (-3600, 0)):
            store.values[key].written_wall_s = written_s + ahead_s
            async with opened(clock, setup, {"g": source}, store=store) as other:
                found = await get(other, clock, 1)
                assert (found.fresh_for_s, found.hits) == ([10.0], hits), ahead_s

    setup = features(group(), cache="redis", refresh_ahead=False)
    run(test, setup, {"g": source}, store=store)


def test_lists_come_back_from_a_store_as_they_went_in() -> None:
    source, store = StubSource(lambda key: {"value": [[1.0, None], "a"]}), FaultyStore()

    async def test(service, clock) -> None:
        first = (await get(service, clock, 1)).rows
        async with opened(clock, setup, {"g": source}, store=store) as other:
            second = await get(other, clock, 1)
        assert first == second.rows == [{"id": 1, "value": ((1.0, None), "a")}]
        assert second.hits == 1

    setup = features(group(), cache="redis")
    run(test, setup, {"g": source}, store=store)


def test_one_keys_bad_row_is_that_keys_error_and_not_the_sources(caplog: pytest.LogCaptureFixture) -> None:
    """Seen before: whoever asked for that key made everybody else get stale values of a source that was well."""
    source = StubSource(lambda key: {"value": object() if key[0] == 13 else key[0] * 10})

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        await clock.pass_time(11)
        for _ in range(5):
            with pytest.raises(FeatureUnavailable):
                await get(service, clock, 13)
        assert (await get(service, clock, 1)).stale == [False]
        assert stale_served(service) == 0
        assert service.statistics().groups[0].errors == 5

    run(test, features(group(stale_for_s=60.0), refresh_ahead=False), {"g": source})
    assert [record.message for record in caplog.records if "column" in record.message] == [
        'feature group "g" returned invalid rows, the first: column "value" is a object; it must be a number, '
        "text, a boolean, bytes or a list: cast it in the query, for example extract(epoch from ...) or ...::text"
    ]


def test_a_source_that_raises_for_every_key_is_failing() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        await get(service, clock, 1, 2)
        await clock.pass_time(11)
        source.error = ValueError("no such table")
        await get(service, clock, 1, 2)
        asked = len(source.calls)
        # From now on stale values are served at once, and the source is asked in the background.
        source.hold()
        assert (await get(service, clock, 1, 2, within_s=0.0001)).stale == [True, True]
        source.release()
        assert len(source.calls) <= asked + 1

    run(test, features(group(stale_for_s=60.0), refresh_ahead=False), {"g": source})
