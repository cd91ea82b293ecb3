"""Keys in use are refreshed before they expire, others are let go."""

from __future__ import annotations

import asyncio

import pytest
from tests.features_kit import features, get, group, opened, run

from tailcut.features.refresh import MAX_KEYS_PER_GROUP, tick_s
from tailcut.testing import FaultyStore, StubSource


def values(key):
    return {"value": key[0] * 10}


def names(source: StubSource) -> list[int]:
    return [key[0] for call in source.calls for key in call]


@pytest.mark.parametrize("period_s", [1.0, 5.0, 9.5, 10.0, 10.5, 15.0, 25.0])
def test_polls_about_once_per_ttl_never_miss_after_the_first(period_s) -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        # A slow poll is only known to be one after its second time; it stays in use for two TTLs until then.
        await clock.pass_time(period_s)
        await get(service, clock, 1)
        for _ in range(12):
            await clock.pass_time(period_s)
            assert service.fetch_nowait([(1,)], "") is not None

    run(test, features(group(), ttl_jitter=0.1), {"g": source})


def test_without_refresh_ahead_the_same_polls_miss() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        for _ in range(5):
            await get(service, clock, 1)
            await clock.pass_time(10.5)
        assert service.statistics().groups[0].misses == 5
        assert service.statistics().groups[0].refreshes == 0

    run(test, features(group(), refresh_ahead=False), {"g": source})


def test_what_nobody_asks_for_is_let_go() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        await clock.pass_time(60)
        calls = len(source.calls)
        assert calls <= 4, "two TTLs after the last poll at most"
        assert service.statistics().groups[0].in_use == 0
        await clock.pass_time(600)
        assert len(source.calls) == calls

    run(test, features(group()), {"g": source})


def test_keys_that_fall_due_together_are_one_call() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        await get(service, clock, *range(100))
        source.calls.clear()
        await clock.pass_time(10)
        assert len(source.calls) <= 4
        assert sorted(names(source)) == list(range(100))
        assert service.statistics().groups[0].refreshes == 100

    run(test, features(group()), {"g": source})


def test_a_refresh_comes_before_the_expiry_and_not_much_earlier() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        await clock.pass_time(8.5)
        assert len(source.calls) == 1
        await clock.pass_time(1.3)
        assert len(source.calls) == 2
        assert service.fetch_nowait([(1,)], "").fresh_for_s[0] > 8

    run(test, features(group()), {"g": source})


def test_an_unexpected_error_of_a_refresh_is_logged_and_the_key_has_a_next_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        with monkeypatch.context() as broken:
            broken.setattr(service._calls, "in_flight", lambda store_key: 1 / 0)
            await clock.pass_time(9.6)
        assert 'feature group "g": unexpected error of a refresh' in caplog.text
        assert len(source.calls) == 1
        await clock.pass_time(1.0)
        assert len(source.calls) == 2

    run(test, features(group()), {"g": source})


def test_a_slow_source_is_asked_earlier() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        source.hold()
        task = asyncio.create_task(get(service, clock, 1, within_s=9))
        await clock.pass_time(1.5)
        source.release()
        await task
        await clock.pass_time(5.2 - 1.5)
        assert len(source.calls) == 1
        await clock.pass_time(1.0)
        assert len(source.calls) == 2, "three times 1.5 s before the end of 10 s"

    run(test, features(group(), timeout_s=3.0), {"g": source})


def test_never_more_than_one_refresh_of_a_key_at_a_time() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        source.hold()
        await clock.pass_time(9.9)
        assert len(source.calls) == 2
        source.release()
        await clock.settle()
        assert service.fetch_nowait([(1,)], "") is not None
        assert len(source.calls) == 2

    run(test, features(group(), timeout_s=60.0), {"g": source})


def test_a_failing_refresh_is_retried_and_costs_no_request_while_the_value_lasts() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        source.error = ConnectionError("down")
        await clock.pass_time(9.8)
        assert len(source.calls) == 2
        assert service.fetch_nowait([(1,)], "") is not None
        source.error = None
        await clock.pass_time(1.5)
        assert service.fetch_nowait([(1,)], "") is not None
        assert service.statistics().groups[0].errors == 1

    run(test, features(group()), {"g": source})


def test_a_source_that_is_down_is_not_hammered() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        await get(service, clock, *range(50))
        source.error = ConnectionError("down")
        await clock.pass_time(25)
        assert len(source.calls) < 40

    run(test, features(group(stale_for_s=60)), {"g": source})


def test_an_entity_that_vanished_is_unknown_after_its_refresh() -> None:
    rows = {(1,): {"value": 1}}
    source = StubSource(rows.get)

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        rows.clear()
        await clock.pass_time(9.8)
        assert service.fetch_nowait([(1,)], "") is None
        assert service.statistics().groups[0].in_use == 0

    run(test, features(group()), {"g": source})


def test_unknown_entities_are_never_kept_in_use() -> None:
    source = StubSource({})

    async def test(service, clock) -> None:
        for i in range(20):
            with pytest.raises(Exception, match="no row"):
                await get(service, clock, i)
        await clock.pass_time(30)
        assert len(source.calls) == 20
        assert service.statistics().groups[0].in_use == 0

    run(test, features(group()), {"g": source})


def test_the_number_of_keys_in_use_is_bounded() -> None:
    async def test(service, clock) -> None:
        await get(service, clock, *range(MAX_KEYS_PER_GROUP + 50))
        assert service.statistics().groups[0].in_use == MAX_KEYS_PER_GROUP

    run(test, features(group()), {"g": StubSource(values)})


def test_tenants_are_refreshed_each_on_their_own_behalf() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        for tenant in "ab":
            await get(service, clock, 1, tenant=tenant)
        await clock.pass_time(9.9)
        assert sorted(context.tenant for context in source.contexts) == ["a", "a", "b", "b"]
        assert all(service.fetch_nowait([(1,)], tenant) for tenant in "ab")

    run(test, features(group(per_tenant=True)), {"g": source})


def test_processes_that_share_a_store_refresh_a_key_once() -> None:
    store: FaultyStore = FaultyStore()
    sources = [StubSource(values), StubSource(values)]
    setup = features(group(), cache="redis")

    async def test(service, clock) -> None:
        async with opened(clock, setup, {"g": sources[1]}, store=store, seed=1) as other:
            for each in (service, other):
                await get(each, clock, 1)
            assert [len(source.calls) for source in sources] == [1, 0]
            for _ in range(10):
                await clock.pass_time(9.0)
                for each in (service, other):
                    found = await get(each, clock, 1)
                    assert (found.hits, found.misses) == (1, 0)
            assert 10 <= sum(len(source.calls) for source in sources) <= 13

    run(test, setup, {"g": sources[0]}, store=store)


def test_a_newer_value_of_another_server_is_taken_over() -> None:
    store: FaultyStore = FaultyStore()
    sources = [StubSource({(1,): {"value": "old"}}), StubSource({(1,): {"value": "new"}})]
    setup = features(group(), cache="redis")

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        await clock.pass_time(5)
        store.values.clear()
        async with opened(
            clock, features(group(), cache="redis", refresh_ahead=False), {"g": sources[1]}, store=store
        ) as other:
            await get(other, clock, 1)
        assert service.fetch_nowait([(1,)], "").rows[0]["value"] == "old"
        await clock.pass_time(4.8)
        found = service.fetch_nowait([(1,)], "")
        assert (found.rows[0]["value"], found.fresh_for_s) == ("new", [pytest.approx(5.2)])
        assert len(sources[0].calls) == 1

    run(test, setup, {"g": sources[0]}, store=store)


def test_a_refresh_asks_the_shared_store_although_memory_has_the_value() -> None:
    store: FaultyStore = FaultyStore()
    source = StubSource(values)

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        assert len(store.look_ups) == 1
        await clock.pass_time(9.8)
        assert len(store.look_ups) == 2
        assert len(source.calls) == 2, "nobody else had a newer one"
        assert service.fetch_nowait([(1,)], "").fresh_for_s[0] > 8

    run(test, features(group(), cache="redis"), {"g": source}, store=store)


def test_misses_do_not_wait_for_refreshes() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        await get(service, clock, *range(10))
        await clock.pass_time(0.5)
        await get(service, clock, *range(10, 20))
        await clock.pass_time(0.5)
        source.calls.clear()
        source.hold()
        await clock.pass_time(8.9)
        assert [len(call) for call in source.calls] == [10], "one call for refreshes at a time"
        miss = asyncio.create_task(get(service, clock, 100))
        await clock.settle()
        assert source.calls[1:] == [[(100,)]], "at once, and alone"
        source.release()
        await clock.settle()
        assert miss.done()
        assert [len(call) for call in source.calls] == [10, 1, 10]

    run(test, features(group(), timeout_s=60.0), {"g": source})


def test_the_tick_follows_the_shortest_ttl() -> None:
    assert tick_s([30.0, 1.0]) == pytest.approx(0.02)
    assert tick_s([0.05]) == 0.005
    assert tick_s([3600.0]) == 0.25
    assert tick_s([]) == pytest.approx(0.05)
