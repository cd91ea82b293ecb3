"""Which keys are in use, and when each is to be refreshed."""

from __future__ import annotations

import heapq
import itertools

from tailcut.cache.freshness import is_in_use, next_interval_s, refresh_due_s
from tailcut.features.entry import Entry
from tailcut.features.groups import NOT_PLANNED, Group, Usage
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
        """Make a key that is in use due later, because its refresh failed or there was no room for it."""
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
