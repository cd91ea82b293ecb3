"""What the log says of a source that fails: a line at the beginning and one at the end, not one for each call."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from tests.features_kit import features, get, group, run

from tailcut.errors import FeatureUnavailable
from tailcut.features import FeatureService
from tailcut.features.entry import FetchFailure
from tailcut.features.outages import Outages
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
    assert re.fullmatch(r'feature group "g" answers again: it had failed for 29\.0 s \(30 of \d+ calls\)', ended)


def source_of(down: list[str]) -> Any:
    """A source that raises what stands in ``down``, if anything."""

    async def source(keys: list[tuple[int, ...]], context: object) -> list[dict[str, int]]:
        if down:
            raise ConnectionRefusedError(down[0])
        return [{"value": key[0]} for key in keys]

    return source


def test_an_outage_that_lasts_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    down = ["refused"]

    async def test(service: FeatureService, clock: FakeClock) -> None:
        for number in range(15):
            assert not await ask(service, clock, number)
            clock.advance(10.0)
        down.clear()
        for number in range(200, 300):  # what is answered after the last failure is no part of the outage
            assert await ask(service, clock, number)
            clock.advance(0.01)

    run(test, features(group()), {"g": source_of(down)})
    begun, first, second, ended = lines(caplog)
    assert "fails: " in begun
    assert "has failed for 60.0 s (7 calls), the latest: " in first
    assert "has failed for 120.0 s (13 calls), the latest: " in second
    assert ended == 'feature group "g" answers again: it had failed for 140.0 s (15 calls)'


def test_a_failure_long_after_the_answer_begins_another_outage(caplog: pytest.LogCaptureFixture) -> None:
    down = ["one cause"]

    async def test(service: FeatureService, clock: FakeClock) -> None:
        assert not await ask(service, clock, 1)
        down.clear()
        clock.advance(1.0)
        assert await ask(service, clock, 2)
        down.append("another cause")
        clock.advance(7200.0)
        assert not await ask(service, clock, 3)

    run(test, features(group()), {"g": source_of(down)})
    first, ended, second = lines(caplog)
    assert "fails: " in first
    assert "one cause" in first
    assert ended.endswith("answers again: it had failed for 0.0 s (1 call)")
    assert "fails: " in second
    assert "another cause" in second
    assert "raise ConnectionRefusedError" not in caplog.text, "what it could not reach is not where the fault is"


def test_what_a_users_function_raises_is_logged_with_its_traceback_once(caplog: pytest.LogCaptureFixture) -> None:
    async def source(keys: list[tuple[int, ...]], context: object) -> list[dict[str, int]]:
        raise ValueError("of the user")

    async def test(service: FeatureService, clock: FakeClock) -> None:
        for number in range(3):
            assert not await ask(service, clock, number)
            clock.advance(1.0)

    run(test, features(group()), {"g": source})
    assert caplog.text.count("Traceback") == 1
    assert 'raise ValueError("of the user")' in caplog.text


@pytest.mark.parametrize("other", [{"function": "m:f"}, {"function": "", "model": "embedder"}])
def test_the_answer_of_a_group_that_asks_no_database_says_nothing_of_it(
    caplog: pytest.LogCaptureFixture, other: dict[str, str]
) -> None:
    outages = Outages("postgresql://u:secret@h/d")
    asking, elsewhere = (
        SimpleNamespace(name=name, spec=group(name, **spec)) for name, spec in (("a", {"sql": "s"}), ("b", other))
    )
    outages.failed(asking, FetchFailure("refused", unreachable=True), 0.0)
    for now_s in (1.0, 10.0, 20.0):
        outages.answered(elsewhere, now_s)
        assert outages.explains(asking)
        assert not outages.explains(elsewhere)
    outages.answered(asking, 21.0)
    assert not outages.explains(asking)
    begun, ended = lines(caplog)
    assert "features.database postgresql://" in begun
    assert "secret" not in begun + ended
