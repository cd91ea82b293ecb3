"""A prediction cache of the path: what it keeps and for how long, what its entries cost, and whether it pays."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from random import Random
from sys import getsizeof
from typing import Any, Generic, Literal, TypeVar

import msgspec

from tailcut.cache import MemoryStore
from tailcut.cache.cache_advisor import CacheAdvisor
from tailcut.cache.freshness import effective_ttl_s
from tailcut.cache.keys import EXACT, Normal
from tailcut.cache.repeat_rate import SAMPLE, KeySketch
from tailcut.common.tensors import Arrays
from tailcut.observe.path_metrics import (
    PREDICTION_CACHE_BYTES,
    PREDICTION_CACHE_ENABLED,
    PREDICTION_CACHE_ENTRIES,
    PREDICTION_CACHE_LOOKUPS,
    PREDICTION_CACHE_STALE,
)
from tailcut.observe.sample import Sample, counter, gauge
from tailcut.pipeline.shared_cache import SharedCache

EVICTIONS = counter("tailcut_prediction_cache_evictions", "Entries evicted from a prediction cache.", "cache")
ADVICE = gauge(
    "tailcut_prediction_cache_advice", "Advice on a prediction cache: 1 for, -1 against, 0 undecided.", "cache"
)
REPEATS = gauge(
    "tailcut_prediction_cache_repeat_ratio", "Recent share of look-ups that repeat an earlier one.", "cache"
)
JOINS = counter(
    "tailcut_prediction_cache_joins",
    "Rows that waited for another request's answer instead of being computed.",
    "cache",
)
SHARED_HITS = counter(
    "tailcut_prediction_cache_shared_hits", "Rows found in Redis but not in this server's memory.", "cache"
)
SHARED_DROPPED = counter(
    "tailcut_prediction_cache_shared_dropped",
    "Answers not written to Redis because too many writes were in flight.",
    "cache",
)
SHARED_BYPASSES = counter(
    "tailcut_prediction_cache_shared_bypasses", "Redis calls for answers skipped while Redis was bypassed.", "cache"
)
SHARED_FAILURES = counter(
    "tailcut_prediction_cache_shared_failures", "Redis calls for answers that failed or timed out.", "cache"
)

V = TypeVar("V")
Name = Literal["entity", "tensor"]

ENTRY_OVERHEAD_BYTES = 200
"""What an entry costs beside its value: key, tuple, dict slots (measured with tracemalloc at 100,000 entries)."""

STALE = float("-inf")
"""Life of an answer that was made of stale features: it is not kept, and the reply says so."""

_JUDGED_MISSES = 64
"""A cache is judged after so many misses: a hit costs nothing for it."""

_log = logging.getLogger("tailcut.cache")
_SAID = {
    "off": "prediction cache by {name} is off because it does not pay: {why}; it turns on again when it pays",
    "on": "prediction cache by {name} is on again: {why}",
    "against": "prediction cache by {name} does not pay: {why}; set cache.{name}.enabled = false, or auto = true",
    "for": "prediction cache by {name} pays: {why}",
}


class Flight(Generic[V]):
    """A key that a request is working out.

    Attributes:
        level: priority of the request; requests of higher priority do not wait for it.
        value: None until it is there, and in the end where the request failed.
        ended: whether it has ended, well or not.
        stale: whether it was made of stale features.
    """

    __slots__ = ("_future", "ended", "key", "level", "stale", "value")

    def __init__(self, key: bytes, level: int) -> None:
        self.key = key
        self.level = level
        self.value: V | None = None
        self.stale = False
        self.ended = False
        self._future: asyncio.Future[None] | None = None

    def joined(self) -> asyncio.Future[None]:
        """Return what is done when the flight has ended, well or not."""
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
            if self.ended:
                self._future.set_result(None)
        return self._future

    def end(self) -> None:
        """Wake the requests that wait."""
        self.ended = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class PredictionStore(Generic[V]):
    """A prediction cache. Owned by the event loop.

    Args:
        store: this process's memory.
        ttl_s: longest life of an entry.
        jitter: share by which lives are shortened at random, so that entries do not end together.
        size: bytes of a value.
        shared: where several servers share answers.
        auto: whether it goes off while it does not pay.
        normal: which tensors look alike to keys.
        draw: evenly from 0 to 1.

    Attributes:
        advisor: whether it pays; ``advisor.on`` says whether to look.
        joins: rows that waited for another request's answer.
        stale: rows answered past their TTL.
    """

    __slots__ = (
        "_counted",
        "_draw",
        "_foreign",
        "_jitter",
        "_misses",
        "_size",
        "_sketch",
        "advisor",
        "flights",
        "joins",
        "name",
        "normal",
        "shared",
        "stale",
        "store",
        "ttl_s",
    )

    def __init__(
        self,
        store: MemoryStore[V],
        ttl_s: float,
        *,
        name: Name,
        size: Callable[[V], int],
        jitter: float = 0.0,
        shared: SharedCache[V] | None = None,
        auto: bool = False,
        normal: Normal = EXACT,
        draw: Callable[[], float] | None = None,
    ) -> None:
        self.store = store
        self.ttl_s = ttl_s
        self.name = name
        self.shared = shared
        self.normal = normal
        self.flights: dict[bytes, Flight[V]] = {}
        self.advisor = CacheAdvisor(auto=auto, life_s=ttl_s, now_s=store.monotonic_s())
        self.joins = 0
        self.stale = 0
        self._jitter = jitter
        self._size = size
        self._draw = draw or Random().random
        self._sketch = KeySketch()
        self._misses = 0
        self._counted = (0, 0)
        self._foreign = 0

    def keep(self, made: Sequence[tuple[bytes, V, float]]) -> None:
        """Keep answers, each for the cache's TTL and not longer than its own life in seconds."""
        shared: list[tuple[bytes, V, float]] = []
        for key, value, life_s in made:
            ttl_s = min(effective_ttl_s(self.ttl_s, self._jitter, self._draw()), life_s)
            if ttl_s > 0:
                self.store.put_nowait(key, value, self._size(value) + ENTRY_OVERHEAD_BYTES, ttl_s)
                shared.append((key, value, ttl_s))
                self.advisor.lives(ttl_s)
        if self.shared is not None:
            self.shared.put_later(shared)

    def keep_found(self, key: bytes, value: V, left_s: float) -> None:
        """Keep in memory what the shared level had."""
        self.store.put_nowait(key, value, self._size(value) + ENTRY_OVERHEAD_BYTES, left_s)

    def count(self, misses: int) -> None:
        """Count rows that were looked up and had to be made; judge from time to time what that was worth."""
        self._misses += misses
        if self._misses >= _JUDGED_MISSES:
            self.judge()

    def judge(self) -> None:
        """Judge the look-ups since the last time."""
        self._misses = 0
        if not self.advisor.on:
            return
        seen = self.store.statistics()
        hits = seen.hits + self.joins + (self.shared.hits if self.shared is not None else 0)
        lookups = seen.hits + seen.misses
        hits_before, lookups_before = self._counted
        self._counted = hits, lookups
        full = seen.evictions > self._foreign
        repeats = min(hits - hits_before, lookups - lookups_before)
        self._say(self.advisor.judge(self.store.monotonic_s(), lookups - lookups_before, repeats, full=full))

    def watch(self, keys: Sequence[bytes]) -> None:
        """Look, while the cache is off, whether it would have had the keys that are watched."""
        now_s, life_s = self.store.monotonic_s(), self.advisor.life_s
        repeats = sum([self._sketch.see(hash(key), now_s, life_s) for key in keys])
        self._say(self.advisor.judge(now_s, len(keys), repeats))
        if self.advisor.on:
            seen = self.store.statistics()
            shared_hits = self.shared.hits if self.shared is not None else 0
            self._counted = seen.hits + self.joins + shared_hits, seen.hits + seen.misses
            # What it still holds of the time before goes first; only then its own entries do.
            self._foreign = seen.evictions + seen.entries

    async def close(self) -> None:
        """Close the shared level."""
        if self.shared is not None:
            await self.shared.close()

    def _say(self, event: str) -> None:
        if not event:
            return
        advisor = self.advisor
        why = (
            f"{advisor.decided:.0%} of look-ups repeat, and it would take {min(advisor.break_even, 9.99):.1%}"
            f" (look-up {advisor.look_ns / 1e3:.0f} us, keeping {advisor.keep_ns / 1e3:.0f} us, "
            f"without {advisor.miss_ns / 1e3:.0f} us)"
        )
        _log.log(logging.WARNING if event != "for" else logging.INFO, _SAID[event].format(name=self.name, why=why))


def watched(marks: Sequence[Hashable]) -> list[int]:
    """Return the places of those that are watched while a cache is off: the same ones always, one in ``SAMPLE``."""
    return [at for at, mark in enumerate(marks) if not hash(mark) % SAMPLE]


def row_marks(inputs: Arrays, rows: int) -> list[Hashable]:
    """Return a hash of some values of each row: equal for equal rows, and at a small part of the cost of a key."""
    marks: list[list[Hashable]] = [[] for _ in range(rows)]
    for array in inputs.values():
        flat: Any = array.reshape(rows, -1)
        flat = flat[:, :: max(flat.shape[1] // 16, 1)]
        if array.dtype.hasobject:
            for mark, values in zip(marks, flat.tolist(), strict=True):
                mark.append(tuple(values))
        else:
            for mark, values in zip(marks, flat, strict=True):
                mark.append(values.tobytes())
    return [tuple(mark) for mark in marks]


def json_bytes(value: msgspec.Raw) -> int:
    """What an answer in JSON costs."""
    return memoryview(value).nbytes


def size_bytes(value: Arrays) -> int:
    """What output arrays cost; an array of objects holds pointers, and what they point to counts."""
    held = sum(
        [
            sum([getsizeof(element) for element in array.flat]) if array.dtype.hasobject else 0
            for array in value.values()
        ]
    )
    return held + sum([array.nbytes for array in value.values()]) + ENTRY_OVERHEAD_BYTES * len(value)


def cache_samples(cache: Name, found: PredictionStore[Any]) -> Iterator[Sample]:
    """Yield what /metrics shows of a prediction cache."""
    found.judge()
    statistics = found.store.statistics()
    yield PREDICTION_CACHE_LOOKUPS(statistics.hits, cache, "hit")
    yield PREDICTION_CACHE_LOOKUPS(statistics.misses, cache, "miss")
    yield EVICTIONS(statistics.evictions, cache)
    yield PREDICTION_CACHE_ENTRIES(statistics.entries, cache)
    yield PREDICTION_CACHE_BYTES(statistics.bytes, cache)
    yield PREDICTION_CACHE_ENABLED(float(found.advisor.on), cache)
    yield ADVICE(found.advisor.advice, cache)
    yield REPEATS(found.advisor.share.value, cache)
    yield JOINS(found.joins, cache)
    yield PREDICTION_CACHE_STALE(found.stale, cache)
    if found.shared is not None:
        yield from _shared_samples(cache, found.shared)


def _shared_samples(cache: Name, shared: SharedCache[Any]) -> Iterator[Sample]:
    statistics = shared.store.statistics()
    yield SHARED_HITS(shared.hits, cache)
    yield SHARED_DROPPED(shared.dropped, cache)
    yield SHARED_BYPASSES(statistics.bypasses, cache)
    yield SHARED_FAILURES(statistics.failures, cache)
