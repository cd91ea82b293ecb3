"""A store that fails or hangs never fails a request, nor holds it up."""

from __future__ import annotations

import asyncio

import pytest

from tailcut.cache import BypassedStore
from tailcut.cache.bypass import FAILURES_TO_BYPASS
from tailcut.testing import FakeClock, FaultyStore

TIMEOUT_S = 0.02


def make() -> tuple[FakeClock, FaultyStore[int], BypassedStore[int]]:
    store: FaultyStore[int] = FaultyStore()
    return FakeClock(), store, BypassedStore(store, TIMEOUT_S)


def test_values_pass_through() -> None:
    clock, _, store = make()

    async def main() -> None:
        await store.put_many([(b"a", 1, 5.0)])
        assert await store.get_many([b"a", b"b"]) == [1, None]
        assert await store.get_many([]) == []
        assert store.statistics().bypasses == 0

    clock.run(main())


@pytest.mark.parametrize("mode", ["fails", "short"])
def test_failures_read_as_nothing_and_then_the_store_is_bypassed(mode) -> None:
    clock, faulty, store = make()

    async def main() -> None:
        faulty.mode = mode
        for _ in range(FAILURES_TO_BYPASS):
            assert await store.get_many([b"a", b"b"]) == [None, None]
        reached = len(faulty.look_ups)
        assert store.statistics().bypassed
        for _ in range(5):
            assert await store.get_many([b"a"]) == [None]
        await store.put_many([(b"a", 1, 5.0)])
        assert len(faulty.look_ups) == reached
        assert faulty.writes == 0
        assert store.statistics().bypasses == 6
        await store.close()

    clock.run(main())


def test_a_hanging_store_costs_its_timeout_and_no_more() -> None:
    clock, faulty, store = make()

    async def main() -> None:
        faulty.mode = "hangs"
        task = asyncio.create_task(store.get_many([b"a"]))
        await clock.pass_time(TIMEOUT_S * 0.9)
        assert not task.done()
        await clock.pass_time(TIMEOUT_S * 0.2)
        assert task.result() == [None]
        assert store.statistics().timeouts == 1
        assert not store.statistics().bypassed, "one slow answer is no outage"

    clock.run(main())


def test_a_success_between_failures_keeps_the_store_in_use() -> None:
    clock, faulty, store = make()

    async def main() -> None:
        for _ in range(4):
            faulty.mode = "fails"
            for _ in range(FAILURES_TO_BYPASS - 1):
                await store.get_many([b"a"])
            faulty.mode = "well"
            await store.get_many([b"a"])
        assert not store.statistics().bypassed

    clock.run(main())


@pytest.mark.parametrize("mode", ["fails", "hangs"])
def test_it_recovers_by_itself_with_no_request(mode) -> None:
    clock, faulty, store = make()

    async def main() -> None:
        await store.put_many([(b"a", 1, 5.0)])
        faulty.mode = mode
        for _ in range(FAILURES_TO_BYPASS):
            task = asyncio.create_task(store.get_many([b"a"]))
            await clock.pass_time(TIMEOUT_S)
            assert task.result() == [None]
        await clock.pass_time(10)
        assert store.statistics().bypassed
        assert 5 <= faulty.probes <= 12, "probes come with a growing, capped pause"
        faulty.mode = "well"
        await clock.pass_time(2.1)
        assert not store.statistics().bypassed
        assert store.statistics().recoveries == 1
        assert await store.get_many([b"a"]) == [1]

    clock.run(main())


def test_a_cancelled_look_up_is_no_failure_of_the_store() -> None:
    clock, faulty, store = make()

    async def main() -> None:
        faulty.mode = "hangs"
        for _ in range(FAILURES_TO_BYPASS + 1):
            task = asyncio.create_task(store.get_many([b"a"]))
            await clock.settle()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert store.statistics().failures == 0
        assert not store.statistics().bypassed

    clock.run(main())


def test_probe_starts_bypassing_at_once() -> None:
    clock, faulty, store = make()

    async def main() -> None:
        assert await store.probe()
        faulty.mode = "fails"
        assert not await store.probe()
        assert store.statistics().bypassed
        await store.close()

    clock.run(main())


def test_close_ends_probing_and_later_calls_find_nothing() -> None:
    clock, faulty, store = make()

    async def main() -> None:
        faulty.mode = "fails"
        await store.probe()
        await store.close()
        await store.close()
        probes = faulty.probes
        await clock.pass_time(60)
        assert faulty.probes == probes
        assert faulty.closed
        assert await store.get_many([b"a"]) == [None]

    clock.run(main())


def test_a_probe_that_the_client_library_cancels_is_a_failed_probe() -> None:
    """Seen before: the probing ended with it, and the store was bypassed for ever."""
    clock, faulty, store = make()

    async def main() -> None:
        faulty.mode = "cancels"
        await store.get_many([b"a"] * 2)
        assert not await store.probe()
        await clock.pass_time(1)
        assert faulty.probes > 2
        faulty.mode = "well"
        await clock.pass_time(10)
        assert not store.statistics().bypassed
        await store.close()

    clock.run(main())
