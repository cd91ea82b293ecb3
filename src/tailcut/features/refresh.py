"""Refreshes keys in use shortly before they expire, off the request path.

Where a poll comes about once per TTL, waiting for a request that finds a value nearly expired would miss most of
the time, so keys are refreshed for as long as they count as in use, asked for or not.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable, Iterable
from random import Random

from tailcut.cache.freshness import is_in_use, next_interval_s, refresh_due_s
from tailcut.features.cached import EntryCache
from tailcut.features.calls import Calls
from tailcut.features.entry import Entry, Outcome
from tailcut.features.groups import NOT_PLANNED, Group, Usage
from tailcut.features.line import NOBODY_WAITS, Lookup
from tailcut.features.sources.base import Key

MAX_KEYS_PER_GROUP = 10_000
"""Keys kept fresh in the background per group; keys above it are refreshed by the requests that miss."""

COMPACT_FROM = 4096
"""Planned refreshes, outdated ones among them, from which on the outdated ones are looked for and thrown away."""

_SAME_SHARE = 0.01


def is_newer(entry: Entry, usage: Usage) -> bool:
    """Whether a value that was looked up is newer than the one known; one from a shared store has clock noise."""
    return entry.fresh_until_s > usage.fresh_until_s + _SAME_SHARE * usage.ttl_s


class UsageTable:
    """Keys in use in the order in which they fall due. Noting one costs well under a microsecond.

    A key that gets another time leaves its earlier plan behind, until that time or until the next clearing: a cache
    that is too small for what is in use writes keys far more often than they fall due.

    Args:
        compact_from: see ``COMPACT_FROM``.
    """

    def __init__(self, compact_from: int = COMPACT_FROM) -> None:
        self._due: list[tuple[float, int, Usage]] = []
        self._order = itertools.count()
        self._compact_from = compact_from
        self._compact_at = compact_from

    @property
    def planned(self) -> int:
        """Planned refreshes that are kept, outdated ones included."""
        return len(self._due)

    def note(self, group: Group, key: Key, store_key: bytes, tenant: str, entry: Entry, now_s: float) -> None:
        """A request asked for a key and got ``entry``."""
        usage = group.usages.get(store_key)
        if usage is None:
            if len(group.usages) < MAX_KEYS_PER_GROUP and entry.ttl_s > 0 and entry.row is not None:
                usage = group.usages[store_key] = Usage(group, key, store_key, tenant, entry, now_s)
                self._schedule(usage, refresh_due_s(entry.fresh_until_s, entry.ttl_s, group.recent_source_s))
            return
        usage.interval_s = next_interval_s(usage.interval_s, now_s - usage.last_asked_s, usage.ttl_s)
        usage.last_asked_s = now_s
        if entry.fresh_until_s != usage.fresh_until_s and is_newer(entry, usage):
            self.written(group, store_key, entry)

    def written(self, group: Group, store_key: bytes, entry: Entry, u: float = 0.0) -> None:
        """A newer value of a key is there; nothing happens if the key is not in use."""
        usage = group.usages.get(store_key)
        if usage is None:
            return
        if entry.row is None:
            del group.usages[store_key]
            return
        usage.ttl_s = entry.ttl_s
        usage.fresh_until_s = entry.fresh_until_s
        self._schedule(usage, refresh_due_s(entry.fresh_until_s, entry.ttl_s, group.recent_source_s, u))

    def postpone(self, usage: Usage, until_s: float) -> None:
        """Make a key that is in use due later, because its refresh failed."""
        if usage.group.usages.get(usage.store_key) is usage:
            self._schedule(usage, until_s)

    def take_due(self, now_s: float, most: int) -> list[Usage]:
        """Up to ``most`` keys that are due and in use; those no longer asked for are let go."""
        taken: list[Usage] = []
        while self._due and self._due[0][0] <= now_s and len(taken) < most:
            due_s, _, usage = heapq.heappop(self._due)
            if not _is_current(due_s, usage):
                continue
            usage.due_s = NOT_PLANNED
            if usage.ttl_s > 0 and is_in_use(usage.last_asked_s, usage.interval_s, usage.ttl_s, now_s):
                taken.append(usage)
            else:
                del usage.group.usages[usage.store_key]
        return taken

    def _schedule(self, usage: Usage, due_s: float) -> None:
        if due_s == usage.due_s:
            return
        usage.due_s = due_s
        heapq.heappush(self._due, (due_s, next(self._order), usage))
        if len(self._due) > self._compact_at:
            self._due = [planned for planned in self._due if _is_current(planned[0], planned[2])]
            heapq.heapify(self._due)
            # At least half of what is looked through next time is new: a constant share of each write.
            self._compact_at = max(self._compact_from, 2 * len(self._due))


def _is_current(due_s: float, usage: Usage) -> bool:
    return due_s == usage.due_s and usage.group.usages.get(usage.store_key) is usage


MAX_KEYS_PER_TICK = 1024
UNKNOWN_TTL_S = 2.5
"""What a TTL function is taken to return at least, when the tick is chosen."""
_SHORTEST_TICK_S = 0.005
_LONGEST_TICK_S = 0.25
_TICK_SHARE = 0.02
_RETRY_SHARE = 0.1

_log = logging.getLogger("tailcut.features")


def tick_s(ttls_s: Iterable[float]) -> float:
    """How often to look for keys that are due: a fiftieth of the shortest TTL, 5 to 250 ms."""
    return min(_LONGEST_TICK_S, max(_SHORTEST_TICK_S, _TICK_SHARE * min(ttls_s, default=UNKNOWN_TTL_S)))


class Refresher:
    """Asks for keys that fall due within one tick together, per group and tenant, as far as ``line`` allows."""

    def __init__(
        self,
        usages: UsageTable,
        calls: Calls,
        cache: EntryCache,
        *,
        tick_s: float,
        random: Random,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._usages = usages
        self._calls = calls
        self._cache = cache
        self._tick_s = tick_s
        self._random = random
        self._monotonic_s = monotonic_s

    async def run(self) -> None:
        """Tick forever."""
        while True:
            await asyncio.sleep(self._tick_s)
            try:
                self.tick()
            except Exception:
                _log.exception("refresh ahead: unexpected error")

    def tick(self) -> None:
        """Start a refresh of what is due."""
        now_s = self._monotonic_s()
        together: dict[tuple[Group, str], list[Usage]] = {}
        for usage in self._usages.take_due(now_s, MAX_KEYS_PER_TICK):
            if usage.group.failures and now_s < usage.group.retry_at_s:
                self._usages.postpone(usage, usage.group.retry_at_s)
            else:
                together.setdefault((usage.group, usage.tenant), []).append(usage)
        for (group, tenant), due in together.items():
            self._calls.own(self._refresh(group, tenant, due))

    def told(self, group: Group, lookup: Lookup, outcome: Outcome) -> None:
        """Learn what a source call found for a key."""
        if isinstance(outcome, Entry):
            self._usages.written(group, lookup.store_key, outcome, self._random.random())
        elif (usage := group.usages.get(lookup.store_key)) is not None:
            self._retry_later(usage)

    async def _refresh(self, group: Group, tenant: str, due: list[Usage]) -> None:
        due_before = [usage.due_s for usage in due]
        try:
            left = await self._not_refreshed_elsewhere(group, due)
            lookups = [
                Lookup(usage.key, usage.store_key) for usage in left if not self._calls.in_flight(usage.store_key)
            ]
            if lookups:
                group.counters.refreshes += len(lookups)
                await asyncio.wait(self._calls.share(group, lookups, tenant, NOBODY_WAITS))
        except Exception:
            _log.exception('feature group "%s": unexpected error of a refresh', group.name)
        finally:
            for usage, due_s in zip(due, due_before, strict=True):
                # Whatever happened, a key in use always has a next time.
                if usage.due_s == due_s:
                    self._retry_later(usage)

    async def _not_refreshed_elsewhere(self, group: Group, due: list[Usage]) -> list[Usage]:
        """Drop keys that another process sharing the store has refreshed; their new expiry is noted."""
        if self._cache.remote is None:
            return due
        left: list[Usage] = []
        entries = await self._cache.look_up_shared([(group, usage.store_key) for usage in due])
        for usage, entry in zip(due, entries, strict=True):
            if entry is not None and is_newer(entry, usage):
                self._usages.written(group, usage.store_key, entry, self._random.random())
            if usage.due_s <= self._monotonic_s():
                left.append(usage)
        return left

    def _retry_later(self, usage: Usage) -> None:
        now_s = self._monotonic_s()
        pause_s = max(self._tick_s, _RETRY_SHARE * usage.ttl_s)
        self._usages.postpone(usage, max(now_s + pause_s, usage.group.retry_at_s))
