"""A preloaded table is looked up without I/O and read again once per TTL."""

from __future__ import annotations

import asyncio

import pytest
from tests.features_kit import features, get, group, resolver, run

from tailcut.errors import FeatureUnavailable, StartError, UnknownEntity
from tailcut.features import FeatureService
from tailcut.testing import FakeClock


class TableSource:
    def __init__(self) -> None:
        self.table = [{"id": 1, "value": "a"}]
        self.loads = 0
        self.error: Exception | None = None

    async def __call__(self, keys, context):
        if not context.preload:
            return [next((row for row in self.table if (row["id"],) == key), None) for key in keys]
        self.loads += 1
        if self.error is not None:
            raise self.error
        return self.table


def test_rows_come_from_the_table_without_io() -> None:
    source = TableSource()

    async def test(service, clock) -> None:
        found = service.fetch_nowait([(1,)], "")
        assert found.rows == [{"id": 1, "value": "a"}]
        assert found.fresh_for_s == [10.0]
        assert (await get(service, clock, 1)).rows == found.rows
        assert source.loads == 1
        assert service.statistics().groups[0].hits == 2

    run(test, features(group(preload=True)), {"g": source})


def test_the_table_is_read_again_before_it_expires() -> None:
    source = TableSource()

    async def test(service, clock) -> None:
        source.table = [{"id": 1, "value": "b"}, {"id": 2, "value": "c"}]
        for _ in range(30):
            await clock.pass_time(1)
            assert service.fetch_nowait([(1,)], "") is not None
        assert service.fetch_nowait([(2,)], "").rows == [{"id": 2, "value": "c"}]
        assert source.loads == 4

    run(test, features(group(preload=True)), {"g": source})


def test_while_reading_fails_the_old_table_is_used_up_to_its_stale_limit() -> None:
    source = TableSource()

    async def test(service, clock) -> None:
        source.error = ConnectionError("down")
        await clock.pass_time(9.9)
        assert service.fetch_nowait([(1,)], "") is not None
        await clock.pass_time(1)
        assert service.fetch_nowait([(1,)], "") is None
        found = await get(service, clock, 1)
        assert (found.stale, found.fresh_for_s) == ([True], [0.0])
        assert service.statistics().groups[0].stale_served == 1
        await clock.pass_time(5)
        with pytest.raises(FeatureUnavailable, match='"g" is unavailable') as caught:
            await get(service, clock, 1)
        assert caught.value.group == "g"
        source.error = None
        await clock.pass_time(2.1)
        assert service.fetch_nowait([(1,)], "") is not None

    run(test, features(group(preload=True, stale_for_s=5)), {"g": source})


def test_a_read_that_cancels_itself_is_tried_again() -> None:
    """A connection pool that is closed cancels the calls that wait for a connection."""
    loads = 0

    async def table(keys, context):
        nonlocal loads
        loads += 1
        if loads == 2:
            task = asyncio.create_task(asyncio.Event().wait())
            task.cancel()
            await task
        return [{"id": 1, "value": loads}]

    async def test(service, clock) -> None:
        await clock.pass_time(9.9)
        assert service.fetch_nowait([(1,)], "").rows == [{"id": 1, "value": 3}]

    run(test, features(group(preload=True)), {"g": table})


@pytest.mark.parametrize("read_s", [4, 6])
def test_a_read_that_is_too_slow_for_its_ttl_is_said_in_the_log_and_to_the_request(read_s, caplog) -> None:
    async def table(keys, context):
        await clock.sleep(read_s)
        return [{"id": 1, "value": 1}]

    async def main() -> None:
        setup, resolve = features(group(preload=True)), resolver({"g": table})
        opening = asyncio.create_task(
            FeatureService.open(setup, resolve=resolve, monotonic_s=clock.monotonic_s, wall_s=clock.wall_s)
        )
        await clock.pass_time(read_s)
        service = await opening
        # By now the table is read again, half of its TTL after the first read began.
        await clock.pass_time(10.5 - read_s)
        if read_s == 4:
            assert service.fetch_nowait([(1,)], "") is not None
        else:
            with pytest.raises(FeatureUnavailable) as caught:
                await get(service, clock, 1)
            assert "the last read took 6 s, its ttl is 10 s): raise the group's ttl" in str(caught.value)
        await clock.pass_time(30)
        await service.close()

    clock = FakeClock()
    clock.run(main())
    warnings = [record.getMessage() for record in caplog.records if "raise the group's ttl to 18 s" in record.message]
    assert len(warnings) == (read_s == 6), "once, not at every read"


@pytest.mark.parametrize("defaults", [{}, {"value": "none"}])
def test_what_the_table_lacks_is_unknown_or_has_its_defaults(defaults) -> None:
    async def test(service, clock) -> None:
        if defaults:
            assert service.fetch_nowait([(9,)], "").rows == [{"id": 9, "value": "none"}]
            return
        assert service.fetch_nowait([(9,)], "") is None
        with pytest.raises(UnknownEntity, match="id=9"):
            await get(service, clock, 9)

    run(test, features(group(preload=True, defaults=defaults)), {"g": TableSource()})


def test_a_table_that_cannot_be_read_at_the_start_stops_the_start() -> None:
    source = TableSource()

    async def main(text: str) -> None:
        with pytest.raises(StartError, match=text):
            await FeatureService.open(features(group(preload=True)), resolve=resolver({"g": source}))

    source.table = [{"id": 1, "value": "a"}, {"id": 1, "value": "b"}]
    asyncio.run(main('features.groups "g": the table could not be loaded: the table has more than one row'))
    source.table = [{"value": 1}]
    asyncio.run(main("left out the columns"))
    source.error = ValueError("no")
    asyncio.run(main("raised ValueError: no"))


def test_with_the_cache_off_a_group_that_can_be_asked_is_not_preloaded() -> None:
    source = TableSource()

    async def test(service, clock) -> None:
        assert service.fetch_nowait([(1,)], "") is None
        assert (await get(service, clock, 1)).rows == [{"id": 1, "value": "a"}]
        assert source.loads == 0

    run(test, features(group(preload=True), cache="off"), {"g": source})


def test_a_large_table_is_prepared_off_the_loop() -> None:
    source = TableSource()
    source.table = [{"id": i, "value": "x"} for i in range(5000)]
    clock = FakeClock()

    async def main() -> None:
        service = await FeatureService.open(
            features(group(preload=True)), resolve=resolver({"g": source}), monotonic_s=clock.monotonic_s
        )
        assert service.fetch_nowait([(4999,)], "").rows == [{"id": 4999, "value": "x"}]
        await service.close()

    asyncio.run(main())
