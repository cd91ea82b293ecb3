"""What the log says of a source that fails: a line at the beginning and one at the end, not one for each call."""

from __future__ import annotations

import re

import pytest
from tests.features_kit import features, get, group, run

from tailcut.errors import FeatureUnavailable
from tailcut.features import FeatureService
from tailcut.testing import FakeClock


async def ask(service: FeatureService, clock: FakeClock, key: int) -> bool:
    try:
        await get(service, clock, key)
    except FeatureUnavailable:
        return False
    return True


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "tailcut.features"]


def test_a_key_that_fails_among_others_that_answer_is_one_outage(caplog: pytest.LogCaptureFixture) -> None:
    async def source(keys: list[tuple[int, ...]], context: object) -> list[dict[str, int]]:
        if (13,) in keys:
            raise ValueError("thirteen")
        return [{"value": key[0]} for key in keys]

    async def test(service: FeatureService, clock: FakeClock) -> None:
        for number in range(100, 130):
            assert not await ask(service, clock, 13)
            assert await ask(service, clock, number)
            clock.advance(1.0)
        assert len(lines(caplog)) == 1
        clock.advance(5.0)
        assert await ask(service, clock, 200)

    run(test, features(group()), {"g": source})
    begun, ended = lines(caplog)
    assert 'feature group "g" fails: ' in begun
    assert "thirteen" in begun
    assert re.fullmatch(r'feature group "g" answers again: it failed for 29\.0 s, 30 of \d+ calls', ended)


def test_an_outage_that_lasts_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    down = [True]

    async def source(keys: list[tuple[int, ...]], context: object) -> list[dict[str, int]]:
        if down[0]:
            raise ConnectionRefusedError("refused")
        return [{"value": key[0]} for key in keys]

    async def test(service: FeatureService, clock: FakeClock) -> None:
        for number in range(15):
            assert not await ask(service, clock, number)
            clock.advance(10.0)
        down[0] = False
        assert await ask(service, clock, 200)

    run(test, features(group()), {"g": source})
    begun, first, second, ended = lines(caplog)
    assert "fails: " in begun
    assert "has failed for 60 s: 7 calls, the latest: " in first
    assert "has failed for 120 s: 13 calls, the latest: " in second
    assert ended == 'feature group "g" answers again: it failed for 140.0 s, 15 calls'
