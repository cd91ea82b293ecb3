"""Whether a cache pays: the running share, the sketch of repeats, and what is decided from them."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailcut.cache import MemoryStore
from tailcut.cache.cache_advisor import AGAINST, FOR, CacheAdvisor
from tailcut.cache.repeat_rate import KeySketch, RepeatShare
from tailcut.pipeline.prediction_cache import PredictionStore

COUNTS = st.lists(st.integers(0, 500).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=20)


@given(COUNTS)
def test_the_share_is_within_its_interval_and_both_within_0_and_1(counts: list[tuple[int, int]]) -> None:
    share = RepeatShare()
    for lookups, repeats in counts:
        share.add(lookups, repeats)
    low, high = share.interval()
    assert 0 <= low <= share.value + 1e-9
    assert share.value - 1e-9 <= high <= 1


def test_the_interval_covers_the_true_share() -> None:
    seeded = random.Random(5)
    missed = 0
    for _ in range(400):
        true, share = seeded.random(), RepeatShare()
        for _ in range(20):
            share.add(50, sum(seeded.random() < true for _ in range(50)))
        low, high = share.interval()
        missed += not low <= true <= high
    assert missed <= 0.06 * 400


def test_what_was_seen_long_ago_is_forgotten() -> None:
    share = RepeatShare()
    share.add(5000, 5000)
    for _ in range(20):
        share.add(1000, 0)
    assert share.value < 0.01


@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 10)), max_size=60),
    st.floats(0.1, 20),
)
def test_the_sketch_sees_what_a_cache_would_have_had(steps: list[tuple[int, float]], life_s: float) -> None:
    sketch, made_s, now_s = KeySketch(), {}, 0.0
    for key, pause_s in steps:
        now_s += pause_s
        had = key in made_s and now_s - made_s[key] < life_s
        assert sketch.see(key, now_s, life_s) == had
        if not had:
            made_s[key] = now_s


def test_the_sketch_stays_small_and_forgets_the_oldest() -> None:
    sketch = KeySketch(most=100)
    for key in range(100_000):
        assert not sketch.see(key, key * 1e-3, 1e9)
    assert len(sketch) == 100
    assert sketch.see(99_950, 200, 1e9)
    assert not sketch.see(5, 200, 1e9)


# -- The decision ------------------------------------------------------------------------------------------------------


def worth(auto: bool = True, look_us: float = 5, keep_us: float = 5, miss_us: float = 1000) -> CacheAdvisor:
    made = CacheAdvisor(auto=auto, life_s=5.0, now_s=0.0)
    made.cost(look_us * 1e3, keep_us * 1e3)
    made.missed(miss_us * 1e3)
    return made


def fed(made: CacheAdvisor, share: float, seconds: int = 60, start_s: int = 0, per_s: int = 1000) -> list[str]:
    """Events of a stream in which every second's share is exactly ``share``."""
    found = [made.judge(start_s + at, per_s, round(share * per_s)) for at in range(1, seconds + 1)]
    return [event for event in found if event]


@pytest.mark.parametrize(
    ("share", "miss_us", "events", "on"),
    [
        (0.0, 1000, ["off"], False),
        (0.03, 1000, ["off"], False),  # it would pay, but below 5 % it is advised against
        (0.10, 1000, [], True),
        (0.35, 1000, ["for"], True),
        (0.35, 20, ["off"], False),  # a model of 20 us: a look-up and keeping cost 10 us
        (0.95, 4, ["off"], False),  # no share of hits would pay
        (0.95, 20, ["for"], True),
    ],
)
def test_it_is_on_where_it_pays(share: float, miss_us: float, events: list[str], on: bool) -> None:
    made = worth(miss_us=miss_us)
    assert (fed(made, share), made.on) == (events, on)


@pytest.mark.parametrize(("share", "events", "advice"), [(0.01, ["against"], -1), (0.4, ["for"], 1), (0.15, [], 0)])
def test_without_auto_it_only_advises_and_says_so_once(share: float, events: list[str], advice: int) -> None:
    made = worth(auto=False)
    assert (fed(made, share, 300), made.on, made.advice) == (events, True, advice)


def test_an_empty_cache_is_not_judged() -> None:
    made = worth()
    assert fed(made, 0.0, seconds=4) == []
    assert fed(made, 0.5, seconds=30, start_s=5) == ["for"]


def test_a_run_of_misses_shorter_than_a_life_says_nothing() -> None:
    made = worth()
    assert fed(made, 0.5, 20) == ["for"]
    for start_s in range(20, 200, 9):
        assert fed(made, 0.0, 5, start_s, 5000) + fed(made, 1.0, 4, start_s + 5, 5000) == []
    assert fed(made, 0.0, 30, 200) == ["off"]


@given(
    ttl_s=st.floats(5, 2000),
    again=st.floats(0.2, 0.9),
    keys=st.integers(20, 500),
    jitter=st.sampled_from([0.0, 0.1]),
)
@example(ttl_s=100, again=0.9, keys=200, jitter=0.1)
@example(ttl_s=50, again=0.6, keys=1000, jitter=0.0)
@settings(max_examples=15)
def test_once_it_is_on_again_it_stays_on_for_what_brought_it_back(
    ttl_s: float, again: float, keys: int, jitter: float
) -> None:
    """Keys in turn, each again within an entry's life; all entries are made, and so end, together.

    Until then no key comes twice, and what is kept of those fills the store.

    Args:
        again: when a key is asked for again, in lives.
    """
    now_s = 0.0
    size_bytes = 8 + 100 + 200 + 160  # key, value and what an entry costs the cache and the store
    store: MemoryStore[bytes] = MemoryStore(2 * keys * size_bytes, lambda: now_s)
    drawn = random.Random(3).random
    cache = PredictionStore(store, ttl_s, name="tensor", size=lambda _: 100, jitter=jitter, auto=True, draw=drawn)
    cache.advisor.cost(5e3, 5e3)
    cache.advisor.missed(1e6)

    def ask(number: int) -> bool:
        nonlocal now_s
        now_s += again * ttl_s / keys
        key = number.to_bytes(8)
        if not cache.advisor.on:
            cache.watch([key])
        elif store.get_nowait(key) is None:
            cache.keep([(key, b"", 1e9)])
            cache.count(1)
        return cache.advisor.on

    first = next(number for number in range(100_000) if not ask(number))
    states = [ask(first + 1 + at % keys) for at in range(int(30 / again) * keys)]
    assert states[-1]
    assert states == sorted(states), "off, then on, and no more changes"


def test_a_full_cache_is_judged_at_once() -> None:
    made = worth()
    assert [made.judge(0.1 * at, 200, 0, full=True) for at in range(1, 4)] == ["", "off", ""]


def test_it_comes_back_when_repeats_do_and_not_before() -> None:
    made = worth()
    assert fed(made, 0.0) == ["off"]
    assert fed(made, 0.04, 600, start_s=60) == []
    assert fed(made, 0.5, 60, start_s=660, per_s=100) == ["on", "for"]


def test_a_few_look_ups_decide_nothing() -> None:
    made = worth()
    assert fed(made, 0.0, 20, per_s=1) == []
    assert made.on


@given(st.floats(0, 1), st.floats(1, 50), st.floats(1, 5000), st.integers(0, 10**6))
@settings(max_examples=60)
def test_a_steady_stream_ends_in_one_state(share: float, cost_us: float, miss_us: float, seed: int) -> None:
    """Whatever the share and the costs: it does not go to and fro, and what is far from break-even is decided right."""
    seeded, made, switches = random.Random(seed), worth(look_us=cost_us, keep_us=cost_us, miss_us=miss_us), 0
    for second in range(1, 400):
        lookups = 200
        repeats = sum(seeded.random() < share for _ in range(lookups))
        switches += made.judge(second, lookups, repeats) in {"on", "off"}
    assert switches <= 4
    least = max(made.break_even, AGAINST)
    if share < 0.7 * least:
        assert not made.on
    if share > 1.8 * least and share > 0.12:
        assert made.on


def test_switching_to_and_fro_gets_rarer() -> None:
    """Where the sketch promises what the cache does not keep (one too small for its keys)."""
    made, switched_s = worth(), []
    for second in range(20_000):
        if made.judge(second, 1000, 0 if made.on else 500) in {"on", "off"}:
            switched_s.append(second)
    gaps = [b - a for a, b in zip(switched_s[::2], switched_s[1::2], strict=False)]
    assert len(switched_s) < 40
    assert gaps[-1] > 100 * 10 > gaps[0]


def test_a_hiccup_says_little() -> None:
    made = worth(miss_us=100)
    made.missed(1e12)
    assert made.miss_ns < 200e3


def test_the_limits_are_those_that_the_pages_name() -> None:
    assert (AGAINST, FOR) == (0.05, 0.30)
