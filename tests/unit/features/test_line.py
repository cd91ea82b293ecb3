"""The line of keys: who goes first, how many calls there are at a time, what is let go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.features.line import (
    MAX_CALLS,
    MAX_KEYS,
    MAX_UNWANTED_CALLS,
    MAX_UNWANTED_KEYS,
    NOBODY_WAITS,
    KeyFlight,
    KeyQueue,
    Lookup,
    SourceCall,
)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def flights(loop, *until_s: float) -> list[KeyFlight]:
    return [KeyFlight(Lookup((i,), b"%d" % i), loop.create_future(), each) for i, each in enumerate(until_s)]


def keys(call: SourceCall | None) -> list[int]:
    return [] if call is None else [flight.lookup.key[0] for flight in call.flights]


def test_who_is_waited_for_goes_first_and_alone(loop) -> None:
    line = KeyQueue()
    line.add(flights(loop, NOBODY_WAITS, 5.0, 1.0, 6.0))
    assert keys(line.take(2.0)) == [1, 3]
    assert keys(line.take(2.0)) == [0, 2]
    assert line.take(2.0) is None


def test_one_place_is_kept_for_misses(loop) -> None:
    line = KeyQueue()
    line.add(flights(loop, *[NOBODY_WAITS] * (2 * MAX_KEYS)))
    first = line.take(0.0)
    assert len(keys(first)) == MAX_KEYS
    assert line.take(0.0) is None
    (miss,) = flights(loop, 1.0)
    line.add([miss])
    assert line.take(0.0).flights == [miss]
    line.leave(first)
    assert len(keys(line.take(0.0))) == MAX_KEYS


def test_a_refresh_that_a_request_joins_goes_first(loop) -> None:
    line = KeyQueue()
    line.add(flights(loop, *[NOBODY_WAITS] * MAX_KEYS))
    line.take(0.0)
    waiting = flights(loop, NOBODY_WAITS, NOBODY_WAITS)
    line.add(waiting)
    waiting[1].until_s = 1.0
    assert keys(line.take(0.0)) == [1]


def test_of_those_nobody_waits_for_the_oldest_are_let_go(loop) -> None:
    line = KeyQueue()
    waiting = flights(loop, *[1.0] * MAX_UNWANTED_KEYS, 9.0, *[3.0] * 5)
    line.add(waiting)
    assert line.let_go(0.0) == []
    assert line.let_go(2.0) == []
    assert line.let_go(4.0) == waiting[:5]
    assert keys(line.take(4.0)) == [MAX_UNWANTED_KEYS]


WAITS = st.sampled_from([NOBODY_WAITS, 1.0, 2.0, 3.0])
STEPS = st.lists(st.one_of(st.lists(WAITS, min_size=1, max_size=2 * MAX_KEYS), st.none()), max_size=20)


@given(steps=STEPS, leaving=st.randoms(use_true_random=False))
def test_every_key_is_asked_for_exactly_once(loop, steps, leaving) -> None:
    line, calls, added, taken, now_s = KeyQueue(), [], [], [], 0.0
    for step in [*steps, *[None] * (len(steps) * 4 + 4)]:
        if step is None:
            now_s += 0.5
            if calls:
                line.leave(calls.pop(leaving.randrange(len(calls))))
        else:
            new = flights(loop, *step)
            added += new
            line.add(new)
        while (call := line.take(now_s)) is not None:
            calls.append(call)
            taken += call.flights
        assert len(calls) <= MAX_CALLS
        assert sum(not call.wanted for call in calls) <= MAX_UNWANTED_CALLS
        assert all(0 < len(call.flights) <= MAX_KEYS for call in calls)
    assert sorted(map(id, taken)) == sorted(map(id, added))
    for call in calls:
        line.leave(call)
        line.leave(call)
    assert line.idle
