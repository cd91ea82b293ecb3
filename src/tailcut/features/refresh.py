"""Refreshes keys in use shortly before they expire, off the request path.

Where a poll comes about once per TTL, waiting for a request that finds a value nearly expired would miss most of
the time, so keys are refreshed for as long as they count as in use, asked for or not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from random import Random

from tailcut.features.cached import EntryCache
from tailcut.features.calls import Calls
from tailcut.features.entry import Entry, Outcome
from tailcut.features.groups import Group, Usage
from tailcut.features.line import NOBODY_WAITS, Lookup
from tailcut.features.usage import UsageTable, is_newer

MAX_KEYS_PER_TICK = 1024
MAX_KEYS_PER_CALL = 256
MAX_CALLS_PER_GROUP = 2
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
    """Turns keys that fall due within one tick into one source call per group and tenant."""

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
        self._under_way: dict[Group, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

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
            for start in range(0, len(due), MAX_KEYS_PER_CALL):
                self._start(group, tenant, due[start : start + MAX_KEYS_PER_CALL], now_s)

    def told(self, group: Group, lookup: Lookup, outcome: Outcome) -> None:
        """Learn what a source call found for a key."""
        if isinstance(outcome, Entry):
            self._usages.written(group, lookup.store_key, outcome, self._random.random())
        elif (usage := group.usages.get(lookup.store_key)) is not None:
            self._retry_later(usage)

    async def close(self) -> None:
        """Stop what is under way."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, group: Group, tenant: str, due: list[Usage], now_s: float) -> None:
        if self._under_way.get(group, 0) >= MAX_CALLS_PER_GROUP:
            for usage in due:
                self._usages.postpone(usage, now_s + self._tick_s)
            return
        self._under_way[group] = self._under_way.get(group, 0) + 1
        task = asyncio.get_running_loop().create_task(self._refresh(group, tenant, due))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _refresh(self, group: Group, tenant: str, due: list[Usage]) -> None:
        due_before = [usage.due_s for usage in due]
        try:
            left = await self._not_refreshed_elsewhere(group, due)
            lookups = [Lookup(usage.key, usage.store_key) for usage in left]
            lookups = [lookup for lookup in lookups if not self._calls.in_flight(lookup.store_key)]
            if lookups:
                group.counters.refreshes += len(lookups)
                await asyncio.wait(self._calls.share(group, lookups, tenant, NOBODY_WAITS))
        finally:
            self._under_way[group] -= 1
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
