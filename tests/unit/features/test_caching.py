"""What the feature service keeps, for how long, and whom it is for."""

from __future__ import annotations

import asyncio
import sys

import pytest
from tests.features_kit import features, get, group, opened, run

from tailcut.errors import FeatureUnavailable, UnknownEntity
from tailcut.testing import FaultyStore, StubSource


def values(key):
    return {"value": key[0] * 10}


def test_memory_in_front_of_a_shared_store_saves_the_round_trip() -> None:
    store: FaultyStore = FaultyStore()
    source = StubSource(values)
    setup = features(group(), cache="redis", refresh_ahead=False)

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        async with opened(clock, setup, {"g": source}, store=store) as other:
            await get(other, clock, 1)
            assert len(store.look_ups) == 2
            for each in (service, other):
                assert (await get(each, clock, 1)).hits == 1
                assert each.fetch_nowait([(1,)], "").rows == [{"id": 1, "value": 10}]
            await get(other, clock, 1, 2)
            assert [len(keys) for keys in store.look_ups] == [1, 1, 1], "only what memory lacks"
            clock.advance(10)
            assert other.fetch_nowait([(1,)], "") is None
            assert (await get(other, clock, 1)).misses == 1, "memory keeps nothing longer than its TTL"
        assert [len(call) for call in source.calls] == [1, 1, 1]

    run(test, setup, {"g": source}, store=store)


def test_what_another_server_fetched_replaces_a_value_past_its_ttl() -> None:
    store: FaultyStore = FaultyStore()
    sources = [StubSource({(1,): {"value": "old"}}), StubSource({(1,): {"value": "new"}})]
    setup = features(group(stale_for_s=60), cache="redis", refresh_ahead=False)

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        clock.advance(11)
        async with opened(clock, setup, {"g": sources[1]}, store=store) as other:
            await get(other, clock, 1)
        found = await get(service, clock, 1)
        assert (found.rows, found.stale, found.hits) == ([{"id": 1, "value": "new"}], [False], 1)
        assert service.fetch_nowait([(1,)], "").rows == found.rows
        assert len(sources[0].calls) == 1

    run(test, setup, {"g": sources[0]}, store=store)


def test_a_row_that_another_server_found_gone_is_not_served_stale() -> None:
    store: FaultyStore = FaultyStore()
    source = StubSource(values)
    setup = features(group(stale_for_s=60), cache="redis", refresh_ahead=False)

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        clock.advance(11)
        async with opened(clock, setup, {"g": StubSource({})}, store=store) as other:
            with pytest.raises(UnknownEntity):
                await get(other, clock, 1)
        clock.advance(2)
        source.error = ConnectionError("down")
        with pytest.raises(FeatureUnavailable):
            await get(service, clock, 1)

    run(test, setup, {"g": source}, store=store)


def test_entities_that_python_takes_for_equal_are_kept_apart() -> None:
    source = StubSource(lambda key: {"value": type(key[0]).__name__})

    async def test(service, clock) -> None:
        for _ in range(2):
            found = await get(service, clock, 1, 1.0, True, "1")
            assert [row["value"] for row in found.rows] == ["int", "float", "bool", "str"]

    run(test, features(group()), {"g": source})


def test_tenants_are_apart_only_where_the_group_says_so() -> None:
    own = StubSource(lambda key: {"own": key[0]})
    common = StubSource(lambda key: {"common": key[0]})
    setup = features(group("own", columns=("own",), per_tenant=True), group("common", columns=("common",)))

    async def test(service, clock) -> None:
        for tenant in ("a", "b", "a"):
            await get(service, clock, 1, tenant=tenant)
        assert [context.tenant for context in own.contexts] == ["a", "b"]
        assert [context.tenant for context in common.contexts] == [""], "what all share is asked for on nobody's behalf"
        assert service.fetch_nowait([(1,)], "c") is None

    run(test, setup, {"own": own, "common": common})


def test_an_unknown_entity_is_remembered_for_a_second_only() -> None:
    rows: dict = {}
    source = StubSource(rows.get)

    async def test(service, clock) -> None:
        for _ in range(3):
            with pytest.raises(UnknownEntity, match='group "g" has no row for id=7'):
                await get(service, clock, 7)
        assert len(source.calls) == 1
        assert service.fetch_nowait([(7,)], "") is None
        rows[(7,)] = {"value": 1}
        await clock.pass_time(1.0)
        assert (await get(service, clock, 7)).rows == [{"id": 7, "value": 1}]

    run(test, features(group()), {"g": source})


def test_defaults_are_cached_like_values() -> None:
    source = StubSource({})

    async def test(service, clock) -> None:
        for _ in range(3):
            assert (await get(service, clock, 7)).rows == [{"id": 7, "value": 0.5}]
        assert len(source.calls) == 1
        assert service.fetch_nowait([(7,)], "").rows == [{"id": 7, "value": 0.5}]

    run(test, features(group(defaults={"value": 0.5})), {"g": source})


def test_defaults_keep_their_columns_through_a_shared_store() -> None:
    """Values are kept there without names; the order in which defaults were written is not the columns'."""
    store: FaultyStore = FaultyStore()
    source = StubSource({})
    setup = features(
        group(columns=("low", "high"), defaults={"high": 2.0, "low": 1.0}), cache="redis", refresh_ahead=False
    )

    async def test(service, clock) -> None:
        await get(service, clock, 7)
        async with opened(clock, setup, {"g": source}, store=store) as other:
            assert (await get(other, clock, 7)).rows == [{"id": 7, "low": 1.0, "high": 2.0}]
        assert len(source.calls) == 1

    run(test, setup, {"g": source}, store=store)


def test_a_ttl_function_decides_per_row() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        found = await get(service, clock, 1, 2, 0)
        assert found.fresh_for_s == [1.0, 2.0, 0.0]
        await get(service, clock, 0)
        assert source.calls[1:] == [[(0,)]], "no life, no caching"

    setup = features(group(ttl="test:ttl"), refresh_ahead=False)
    run(test, setup, {"g": source, "ttl": lambda key, row: row["value"] / 10})


@pytest.mark.parametrize(
    "ttl", [lambda key, row: -1, lambda key, row: "1s", lambda key, row: 1 / 0, lambda key, row: sys.exit(1)]
)
def test_a_bad_ttl_function_is_named(ttl) -> None:
    async def test(service, clock) -> None:
        with pytest.raises(FeatureUnavailable, match="ttl function test:ttl"):
            await get(service, clock, 1)

    run(test, features(group(ttl="test:ttl")), {"g": StubSource(values), "ttl": ttl})


def test_jitter_shortens_ttls_and_differs_between_keys() -> None:
    async def test(service, clock) -> None:
        found = await get(service, clock, *range(200))
        assert all(5.0 <= left_s <= 10.0 for left_s in found.fresh_for_s)
        assert len(set(found.fresh_for_s)) > 150

    run(test, features(group(), ttl_jitter=0.5), {"g": StubSource(values)})


def test_a_ttl_counts_from_when_the_source_was_asked() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        source.hold()
        task = asyncio.create_task(get(service, clock, 1))
        await clock.pass_time(0.4)
        source.release()
        assert (await task).fresh_for_s == [pytest.approx(9.6)]

    run(test, features(group()), {"g": source})


def test_a_shared_store_keeps_deployments_with_other_definitions_apart() -> None:
    store: FaultyStore = FaultyStore()

    async def test(service, clock) -> None:
        old = await get(service, clock, 1)
        setup = features(group(defaults={"value": 1}), cache="redis")
        newer = StubSource(lambda _: {"value": "new"})
        async with opened(clock, setup, {"g": newer}, store=store) as other:
            assert (await get(other, clock, 1)).rows[0]["value"] == "new"
        assert old.rows[0]["value"] == 10

    run(test, features(group(), cache="redis"), {"g": StubSource(values)}, store=store)
