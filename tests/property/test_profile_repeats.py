"""Repeats of payloads: reuse distances and life spans against caches played by hand; the sketch against both."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailcut.profiler.levers.known import cache_hits
from tailcut.profiler.payloads.diversity import WHOLE, Reuse, key_of, read_diversity, sample_for

_LOOKUPS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), max_size=120)


@given(_LOOKUPS, st.integers(1, 14))
@settings(deadline=None)
def test_distances_are_lru_hits(lookups: list[tuple[int, int]], size: int) -> None:
    """For every size at once, what a cache of that size would have answered."""
    reuse = Reuse([1.0])
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for key, _ in lookups:
        reuse.see(key, 0.0)
        hits += key in cache
        cache[key] = None
        cache.move_to_end(key)
        if len(cache) > size:
            cache.popitem(last=False)
    assert reuse.share_by_size(size) == pytest.approx(hits / len(lookups) if lookups else 0.0)


@given(_LOOKUPS, st.integers(1, 20))
@settings(deadline=None)
def test_a_life_begins_when_the_entry_is_made(lookups: list[tuple[int, int]], life: int) -> None:
    """A use does not prolong it."""
    reuse = Reuse([float(life)])
    born: dict[int, int] = {}
    now = hits = 0
    for key, pause in lookups:
        now += pause
        reuse.see(key, float(now))
        if key in born and now - born[key] < life:
            hits += 1
        else:
            born[key] = now
    assert reuse.shares_by_life()[0] == pytest.approx(hits / len(lookups) if lookups else 0.0)


@given(_LOOKUPS, st.integers(1, 20), st.integers(1, 14))
@settings(deadline=None)
def test_a_cache_bounded_in_both_ways(lookups: list[tuple[int, int]], life: int, size: int) -> None:
    """Without a bound on one side it is what the other alone says; both never answer more than one."""
    keys = [key for key, _ in lookups]
    times = np.cumsum([pause for _, pause in lookups]).astype(float)
    reuse = Reuse([float(life)])
    for key, at in zip(keys, times, strict=True):
        reuse.see(key, at)
    count = max(len(keys), 1)
    by_life = cache_hits(keys, times, life_s=life, size=10**9).sum() / count
    by_size = cache_hits(keys, times, life_s=np.inf, size=size).sum() / count
    assert by_life == pytest.approx(reuse.shares_by_life()[0])
    assert by_size == pytest.approx(reuse.share_by_size(size))
    assert cache_hits(keys, times, life_s=life, size=size).sum() <= by_size * count + 1e-9


def test_the_sketch_is_close_to_the_truth() -> None:
    """One key in sixteen tells the shares of a skewed log to a few points."""
    generator = np.random.default_rng(3)
    ranks = np.arange(1, 20_001, dtype=float) ** -0.9
    keys = [key_of(b"%d" % key) for key in generator.choice(20_000, 60_000, p=ranks / ranks.sum()).tolist()]
    exact, sketch = Reuse([1.0, 30.0]), Reuse([1.0, 30.0], sample=16)
    for number, key in enumerate(keys):
        exact.see(key, number / 1000)
        sketch.see(key, number / 1000)
    assert sketch.share_ever() == pytest.approx(exact.share_ever(), abs=0.03)
    assert sketch.shares_by_life() == pytest.approx(exact.shares_by_life(), abs=0.05)
    for size in (64, 1024, 8192):
        assert sketch.share_by_size(size) == pytest.approx(exact.share_by_size(size), abs=0.05)
    assert sketch.distinct == pytest.approx(exact.distinct, rel=0.1)


def test_fields_are_told_apart() -> None:
    """Names element by element, rows of fractions whole, constants last."""
    bodies = [
        b'{"entities":[1,2],"x":[0.5,1.5],"who":{"id":%d},"v":"a","rows":[{"k":%d},{"k":7}]}' % (number, number % 3)
        for number in range(60)
    ]
    found = read_diversity(((number / 10, body) for number, body in enumerate(bodies)), timed=True)
    streams = {stream.name: stream for stream in found.streams}
    assert next(iter(streams)) == WHOLE
    assert set(streams) == {WHOLE, "entities[]", "x", "who.id", "v", "rows[].k"}
    assert streams[WHOLE].repeats == streams["who.id"].repeats == 0.0
    assert (streams["entities[]"].lookups, streams["entities[]"].distinct) == (120, 2)
    assert (streams["rows[].k"].distinct, streams["x"].distinct) == (4, 1)
    assert streams["v"].constant
    assert streams["entities[]"].size_for() == 2
    assert [point.at for point in streams["v"].by_life] == [0.1, 1.0, 5.0, 10.0]
    assert found.span_s == pytest.approx(5.9)


def test_payloads_that_are_not_json_are_compared_whole() -> None:
    """Tensors sent raw, say."""
    found = read_diversity([(0.0, b"\x00\xff"), (1.0, b"\x00\xff")], timed=False)
    assert found.whole.repeats == 0.5
    assert len(found.streams) == 1
    assert "2 payloads are not JSON" in found.notes[0]


def test_no_payloads() -> None:
    """Nothing repeats, and nothing breaks."""
    found = read_diversity([], timed=True)
    assert (found.requests, found.whole.repeats, found.whole.by_size, found.whole.size_for()) == (0, 0.0, (), 0)
    assert (sample_for(1000), sample_for(10_000_000)) == (1, 16)
