"""The feature service with function sources: what comes back, and what is refused at the start."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from decimal import Decimal

import numpy as np
import pytest
from tests.features_kit import features, get, group, opened, resolver, run

from tailcut.errors import FeatureUnavailable, StartError
from tailcut.features import FeatureService
from tailcut.testing import FakeClock, FaultyStore, StubSource


def values(key):
    return {"value": key[0] * 10}


def start_error(setup, functions, text: str) -> None:
    async def main() -> None:
        with pytest.raises(StartError, match=text) as caught:
            await FeatureService.open(setup, resolve=resolver(functions))
        assert caught.value.hint

    asyncio.run(main())


def test_rows_hold_entity_fields_and_all_columns_in_the_order_asked() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        found = await get(service, clock, 2, 1, 2)
        assert found.rows == [{"id": 2, "value": 20}, {"id": 1, "value": 10}, {"id": 2, "value": 20}]
        assert found.stale == [False] * 3
        assert found.fresh_for_s == [10.0] * 3
        assert (found.hits, found.misses) == (0, 2)
        assert source.calls == [[(2,), (1,)]], "a batch is one call of distinct keys"

    run(test, features(group()), {"g": source})


def test_fetch_nowait_answers_only_when_everything_is_fresh() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        assert service.fetch_nowait([(1,)], "") is None
        await get(service, clock, 1)
        found = service.fetch_nowait([(1,), (1,)], "")
        assert found.rows == [{"id": 1, "value": 10}] * 2
        assert (found.hits, found.misses) == (2, 0)
        assert service.fetch_nowait([(1,), (2,)], "") is None
        clock.advance(10)
        assert service.fetch_nowait([(1,)], "") is None

    run(test, features(group(), refresh_ahead=False), {"g": source})


def test_a_value_is_asked_for_once_per_ttl() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        for _ in range(5):
            await get(service, clock, 1)
            await clock.pass_time(2)
        assert len(source.calls) == 1
        found = await get(service, clock, 1)
        assert len(source.calls) == 2
        assert (found.hits, found.misses) == (0, 1)

    run(test, features(group(), refresh_ahead=False), {"g": source})


def test_rows_belong_to_the_request() -> None:
    async def test(service, clock) -> None:
        (await get(service, clock, 1)).rows[0]["value"] = "spoilt"
        service.fetch_nowait([(1,)], "").rows[0]["value"] = "spoilt"
        assert (await get(service, clock, 1)).rows == [{"id": 1, "value": 10}]

    run(test, features(group()), {"g": StubSource(values)})


def test_a_later_level_is_keyed_by_columns_of_an_earlier_one() -> None:
    planes = StubSource({("N1",): {"seats": 100}})
    flights = StubSource({(1,): {"plane": "N1"}, (2,): {"plane": "N1"}, (3,): {"plane": None}})
    setup = features(
        group("planes", key=("plane",), columns=("seats",), defaults={"seats": -1}),
        group("flights", columns=("plane",)),
    )

    async def test(service, clock) -> None:
        found = await get(service, clock, 1, 2, 3)
        assert [row["seats"] for row in found.rows] == [100, 100, -1]
        assert planes.calls == [[("N1",)]], "a NULL key has no row, so nobody is asked"
        assert service.fetch_nowait([(1,), (3,)], "").rows == [found.rows[0], found.rows[2]]
        statistics = {one.name: one for one in service.statistics().groups}
        assert statistics["planes"].entity_type == "plane"

    run(test, setup, {"planes": planes, "flights": flights})


@pytest.mark.parametrize("concurrent", [True, False])
def test_groups_of_a_level_are_fetched_at_once_or_strictly_one_by_one(concurrent) -> None:
    sources = {name: StubSource(lambda key, name=name: {name: key[0]}) for name in "abc"}
    setup = features(*[group(name, columns=(name,)) for name in "abc"], concurrent=concurrent)

    async def test(service, clock) -> None:
        for source in sources.values():
            source.hold()
        task = asyncio.create_task(get(service, clock, 1))
        await clock.settle()
        assert [len(sources[name].calls) for name in "abc"] == ([1, 1, 1] if concurrent else [1, 0, 0])
        for name in "abc":
            sources[name].release()
            await clock.settle()
        assert (await task).rows == [{"id": 1, "a": 1, "b": 1, "c": 1}]

    run(test, setup, sources)


def test_all_look_ups_of_a_level_are_one_round_trip() -> None:
    store: FaultyStore = FaultyStore()
    sources = {name: StubSource(lambda key, name=name: {name: key[0]}) for name in "abc"}
    setup = features(*[group(name, columns=(name,)) for name in "abc"], cache="redis", refresh_ahead=False)

    async def test(service, clock) -> None:
        await get(service, clock, 1, 2)
        assert [len(keys) for keys in store.look_ups] == [6]
        async with opened(clock, setup, sources, store=store) as other:
            found = await get(other, clock, 1, 2)
            assert [len(keys) for keys in store.look_ups] == [6, 6]
            assert (found.hits, found.misses) == (6, 0)
            assert found.rows == [{"id": i, "a": i, "b": i, "c": i} for i in (1, 2)]
            assert [len(source.calls) for source in sources.values()] == [1, 1, 1]

    run(test, setup, sources, store=store)


def test_plain_functions_run_off_the_loop() -> None:
    threads = []

    def source(keys, context):
        threads.append(threading.current_thread())
        return [values(key) for key in keys]

    async def main() -> None:
        service = await FeatureService.open(features(group()), resolve=resolver({"g": source}))
        assert (await service.fetch([(1,)], "", math.inf)).rows == [{"id": 1, "value": 10}]
        await service.close()

    asyncio.run(main())
    assert threads != [threading.main_thread()]


def test_the_clock_of_the_manifest_is_what_sources_see() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        assert source.contexts[0].now == 123.0

    run(test, features(group(), clock="test:clock"), {"g": source, "clock": lambda: 123})


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.array([1.0, 2.0]), (1.0, 2.0)),
        (Decimal("1.5"), 1.5),
        ([1, "a", None], (1, "a", None)),
        (None, None),
        (True, True),
        ("ü", "ü"),
        (b"\0", b"\0"),
    ],
)
@pytest.mark.parametrize("cache", ["memory", "off"])
def test_values_have_the_same_exact_form_cached_or_not(value, kept, cache) -> None:
    async def test(service, clock) -> None:
        for _ in range(2):
            found = (await get(service, clock, 1)).rows[0]["value"]
            assert found == kept
            assert type(found) is type(kept)

    run(test, features(group(), cache=cache), {"g": StubSource(lambda _: {"value": value})})


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda keys: [{}] * len(keys), r"left out the columns \['value'\]"),
        (lambda keys: [], "returned 0 rows for 1 keys"),
        (lambda keys: None, "returned a NoneType; it must return a list"),
        (lambda keys: [3], "returned a int for a row"),
        (lambda keys: [{"value": object()}], 'column "value" is a object'),
        (lambda keys: [{"value": 2**70}], "more than 64 bits"),
        (lambda keys: [{"value": "\ud800"}], "not valid Unicode"),
        (lambda keys: 1 / 0, "raised ZeroDivisionError"),
        (lambda keys: sys.exit("bad key"), "raised SystemExit: bad key"),
    ],
)
def test_what_a_function_did_wrong_is_said(answer, text) -> None:
    async def source(keys, context):
        return answer(keys)

    async def test(service, clock) -> None:
        with pytest.raises(FeatureUnavailable, match=text) as caught:
            await get(service, clock, 1)
        assert caught.value.group == "g"

    run(test, features(group()), {"g": source})


@pytest.mark.parametrize("bad", range(9))
def test_one_bad_key_of_a_batch_is_found_and_only_asked_about_alone(bad) -> None:
    calls = []

    async def source(keys, context):
        calls.append(len(keys))
        if (bad,) in keys:
            raise ValueError("this one")
        return [values(key) for key in keys]

    async def test(service, clock) -> None:
        with pytest.raises(FeatureUnavailable, match="this one"):
            await get(service, clock, *range(9))
        calls.clear()
        others = [i for i in range(9) if i != bad]
        assert [row["value"] for row in (await get(service, clock, *others)).rows] == [i * 10 for i in others]
        assert calls == [], "the neighbours' values were kept"

    run(test, features(group()), {"g": source})


def test_with_the_cache_off_every_request_asks_and_nothing_is_shared() -> None:
    source = StubSource(values)

    async def test(service, clock) -> None:
        source.hold()
        tasks = [asyncio.create_task(get(service, clock, 1, 1)) for _ in range(3)]
        await clock.settle()
        assert source.calls == [[(1,)]] * 3
        source.release()
        assert [(await task).rows for task in tasks] == [[{"id": 1, "value": 10}] * 2] * 3
        assert service.fetch_nowait([(1,)], "") is None

    run(test, features(group(), cache="off"), {"g": source})


def test_without_groups_the_entity_itself_is_the_row() -> None:
    async def test(service, clock) -> None:
        found = service.fetch_nowait([(1,)], "")
        assert found.rows == [{"id": 1}]
        assert found.fresh_for_s == [math.inf]

    run(test, features(), {})


def test_statistics_count_per_group_and_entity_type() -> None:
    setup = features(group("a", columns=("a",)), group("b", columns=("b",)))
    sources = {name: StubSource(lambda key, name=name: {name: 1}) for name in "ab"}

    async def test(service, clock) -> None:
        await get(service, clock, 1)
        await get(service, clock, 1, 2)
        statistics = service.statistics()
        assert [(one.name, one.hits, one.misses, one.source_calls, one.source_keys) for one in statistics.groups] == [
            ("a", 1, 2, 2, 2),
            ("b", 1, 2, 2, 2),
        ]
        assert statistics.memory.entries == 4
        assert statistics.bypasses == 0

    run(test, setup, sources)


@pytest.mark.parametrize(
    ("setup", "text"),
    [
        (features(group(function="test:missing")), 'features.groups "g": function: cannot load'),
        (features(group(sql="SELECT 1 FROM keys")), "features.database is ''"),
        (features(group(sql="SELECT 1 FROM keys"), database="sqlite:////nowhere/x.db"), "no file /nowhere/x.db"),
        (features(group(), cache="redis"), 'cache = "redis", but features.redis is'),
        (features(group(), cache="redis", redis="http://x"), "not a Redis URL"),
        (features(group(), clock="test:missing"), "features.clock: cannot use 'test:missing'"),
        (features(group(), clock="test:text"), "features.clock: 'test:text' returned 'now'"),
        (features(group(key=("other",))), "other is neither a field"),
    ],
)
def test_a_wrong_set_up_is_refused_by_name_at_the_start(setup, text) -> None:
    start_error(setup, {"g": StubSource(values), "text": lambda: "now"}, text)


def test_close_tells_whoever_waits_and_can_be_called_twice() -> None:
    clock, source = FakeClock(), StubSource(values)

    async def main() -> None:
        async with opened(clock, features(group()), {"g": source}) as service:
            source.hold()
            task = asyncio.create_task(get(service, clock, 1))
            await clock.settle()
            await service.close()
            with pytest.raises(FeatureUnavailable, match="closing"):
                await task

    clock.run(main())


def test_a_source_that_cancels_its_own_call_fails_like_any_other() -> None:
    """As a client's pool does to whoever awaits a connection of it when it is closed."""

    async def cancelled(keys, context):
        task = asyncio.create_task(asyncio.Event().wait())
        task.cancel()
        return await task

    async def test(service, clock) -> None:
        with pytest.raises(FeatureUnavailable, match="cancelled its own call"):
            await get(service, clock, 1)
        assert service.statistics().groups[0].errors == 1

    run(test, features(group()), {"g": cancelled})


async def exit_async(keys, context):
    sys.exit("bad key")


@pytest.mark.parametrize("function", [lambda keys, context: sys.exit("bad key"), exit_async])
def test_a_function_that_exits_fails_its_request_and_not_the_server(function) -> None:
    async def test(service, clock) -> None:
        for _ in range(2):
            with pytest.raises(FeatureUnavailable, match="raised SystemExit: bad key"):
                await get(service, clock, 1)

    run(test, features(group()), {"g": function})


def test_a_plain_function_that_raises_stop_iteration_fails_at_once() -> None:
    """A future refuses StopIteration: without a conversion the request waited until features.timeout."""

    async def test(service, clock) -> None:
        with pytest.raises(FeatureUnavailable, match="raised StopIteration"):
            async with asyncio.timeout(10):
                await get(service, clock, 1)

    run(test, features(group()), {"g": lambda keys, context: [next(iter(())) for _ in keys]})


@pytest.mark.parametrize("preload", [False, True])
def test_a_clock_that_exits_later_fails_its_request_and_not_the_server(preload) -> None:
    fails = False

    def now() -> float:
        return sys.exit("no clock") if fails else 1.0

    async def g(keys, context):
        return [{"id": 1, "value": 2}]

    async def test(service, clock) -> None:
        nonlocal fails
        fails = True
        await clock.pass_time(30)
        with pytest.raises(FeatureUnavailable) as caught:
            await get(service, clock, 1)
        assert preload or "features.clock 'test:now' raised SystemExit: no clock" in str(caught.value)
        fails = False
        await clock.pass_time(5)
        assert (await get(service, clock, 1)).rows == [{"id": 1, "value": 2}]

    run(test, features(group(preload=preload), clock="test:now"), {"g": g, "now": now})


def test_what_an_earlier_level_found_ages_while_a_later_one_is_fetched() -> None:
    """The first group's value is fresh for 10 s when it is found; the second group takes 4 s."""
    clock_s: list[FakeClock] = []

    async def slow(keys, context):
        await clock_s[0].sleep(4)
        return [{"other": 1} for _ in keys]

    async def test(service, clock) -> None:
        clock_s.append(clock)
        task = asyncio.create_task(get(service, clock, 1, within_s=9))
        await clock.pass_time(4)
        assert (await task).fresh_for_s == [pytest.approx(6)]

    first, second = group(), group("second", key=("value",), columns=("other",), ttl="1h")
    run(test, features(first, second, timeout_s=8), {"g": StubSource(values), "second": slow})
