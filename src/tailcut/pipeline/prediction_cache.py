"""A prediction cache of the path: what it keeps and for how long, what its entries cost, and whether it pays."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from hashlib import blake2b
from random import Random
from sys import getsizeof
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from tailcut.cache import BypassedStore, MemoryStore
from tailcut.cache.cache_advisor import CacheAdvisor
from tailcut.cache.freshness import effective_ttl_s
from tailcut.cache.keys import EXACT, Normal
from tailcut.cache.redis import open_redis
from tailcut.cache.repeat_rate import SAMPLE, KeySketch
from tailcut.common.tensors import Arrays
from tailcut.manifest import Deployment, TensorCache
from tailcut.observe.path_metrics import (
    PREDICTION_CACHE_BYTES,
    PREDICTION_CACHE_ENABLED,
    PREDICTION_CACHE_ENTRIES,
    PREDICTION_CACHE_LOOKUPS,
    PREDICTION_CACHE_STALE,
)
from tailcut.observe.sample import Sample, counter, gauge
from tailcut.pipeline.shared_cache import JSON, TENSORS, Form, SharedCache, StoredAnswer

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
        hits_before, lookups_before = self._counted
        hits, lookups = self._tally()
        full = self.store.statistics().evictions > self._foreign
        repeats = min(hits - hits_before, lookups - lookups_before)
        self._say(self.advisor.judge(self.store.monotonic_s(), lookups - lookups_before, repeats, full=full))

    def _tally(self) -> tuple[int, int]:
        """Count hits and look-ups so far."""
        seen, shared = self.store.statistics(), self.shared
        hits = seen.hits + self.joins + (shared.hits if shared is not None else 0)
        self._counted = hits, seen.hits + seen.misses
        return self._counted

    def watch(self, keys: Sequence[bytes]) -> None:
        """Look, while the cache is off, whether it would have had the keys that are watched."""
        now_s, life_s = self.store.monotonic_s(), self.advisor.life_s
        repeats = sum([self._sketch.see(hash(key), now_s, life_s) for key in keys])
        self._say(self.advisor.judge(now_s, len(keys), repeats))
        if self.advisor.on:
            self._tally()
            # What it still holds of the time before goes first; only then its own entries do.
            seen = self.store.statistics()
            self._foreign = seen.evictions + seen.entries

    def samples(self) -> Iterator[Sample]:
        """Yield what /metrics shows of the cache."""
        self.judge()
        cache, statistics = self.name, self.store.statistics()
        yield PREDICTION_CACHE_LOOKUPS(statistics.hits, cache, "hit")
        yield PREDICTION_CACHE_LOOKUPS(statistics.misses, cache, "miss")
        yield EVICTIONS(statistics.evictions, cache)
        yield PREDICTION_CACHE_ENTRIES(statistics.entries, cache)
        yield PREDICTION_CACHE_BYTES(statistics.bytes, cache)
        yield PREDICTION_CACHE_ENABLED(float(self.advisor.on), cache)
        yield ADVICE(self.advisor.advice, cache)
        yield REPEATS(self.advisor.share.value, cache)
        yield JOINS(self.joins, cache)
        yield PREDICTION_CACHE_STALE(self.stale, cache)
        if self.shared is not None:
            remote = self.shared.store.statistics()
            yield SHARED_HITS(self.shared.hits, cache)
            yield SHARED_DROPPED(self.shared.dropped, cache)
            yield SHARED_BYPASSES(remote.bypasses, cache)
            yield SHARED_FAILURES(remote.failures, cache)

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


# -- Both caches of a deployment ---------------------------------------------------------------------------------------


class Caches(NamedTuple):
    """Both prediction caches, each None where it is off."""

    entity: PredictionStore[msgspec.Raw] | None
    tensor: PredictionStore[Arrays] | None

    async def close(self) -> None:
        """Close what is shared with other servers."""
        for cache in self:
            if cache is not None:
                await cache.close()


async def open_caches(deployment: Deployment) -> Caches:
    """Open the caches that the manifest enables.

    Raises:
        StartError: one is shared, and Redis refuses us or its URL is wrong. That it is down is no reason.
        MissingExtra: one is shared, and redis-py is not installed.
    """
    entity, tensor, features = deployment.cache.entity, deployment.cache.tensor, deployment.features
    shares = [name for name, one in (("entity", entity), ("tensor", tensor)) if one.enabled and one.shared]
    remote: BypassedStore[StoredAnswer] | None = None
    if shares:
        wanted_by = f"cache.{shares[0]}.shared = true"
        remote = await open_redis(features.redis, StoredAnswer, features.redis_timeout_s, wanted_by)
    if tensor.enabled and tensor.round_digits:
        _log.warning(
            "cache.tensor.round_digits: requests whose inputs round alike get the answer of the first of them, so that "
            "answers may differ from the model's: %s",
            ", ".join(f"{name} to {digits} digits" for name, digits in tensor.round_digits.items()),
        )
    by_entity = features.groups and entity.enabled
    return Caches(
        _open(deployment, "entity", remote, JSON, json_bytes) if by_entity else None,
        _open(deployment, "tensor", remote, TENSORS, size_bytes) if tensor.enabled else None,
    )


def _open(
    deployment: Deployment, name: Name, remote: BypassedStore[StoredAnswer] | None, form: Form[Any], size: Any
) -> PredictionStore[Any]:
    settings = deployment.cache.entity if name == "entity" else deployment.cache.tensor
    shared, normal = None, EXACT
    if isinstance(settings, TensorCache) and (settings.normalise != "exact" or settings.round_digits):
        normal = Normal(settings.normalise == "zeros", settings.round_digits)
    if remote is not None and settings.shared:
        shared = SharedCache(remote, form, scope=_scope(deployment), ttl_s=settings.ttl_s)
    return PredictionStore(
        MemoryStore(settings.max_bytes, stale_for_s=settings.stale_for_s),
        settings.ttl_s,
        name=name,
        jitter=settings.ttl_jitter,
        size=size,
        shared=shared,
        # What it saves when there is no room for requests cannot be told from what it saves now.
        auto=settings.auto and not settings.stale_for_s,
        normal=normal,
    )


def _scope(deployment: Deployment) -> bytes:
    """Hash what an answer depends on beside the deployment version: staging and production may share a Redis."""
    features = deployment.features
    return blake2b(msgspec.msgpack.encode((features.database, features.clock)), digest_size=16).digest()
