"""The cache of group values: this process's memory, and behind it Redis where several processes share values.

Memory is looked up in one pass, and what it lacks in one round trip. With memory in front, a value in use costs no
round trip, and an outage of Redis costs this process only what others would have fetched for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tailcut.cache.bypass import BypassedStore
from tailcut.cache.memory import MemoryStore
from tailcut.features.calls import Kept
from tailcut.features.entry import Entry, StoredEntry, from_stored, to_stored
from tailcut.features.groups import Group


class EntryCache:
    """Entries by store key; with neither ``memory`` nor ``remote`` nothing is kept."""

    def __init__(
        self,
        memory: MemoryStore[Entry] | None,
        remote: BypassedStore[StoredEntry] | None,
        monotonic_s: Callable[[], float],
        wall_s: Callable[[], float],
    ) -> None:
        self.memory = memory
        self.remote = remote
        self._monotonic_s = monotonic_s
        self._wall_s = wall_s

    @property
    def longest_s(self) -> float:
        """Longest that a look-up takes, as long as the shared store is given; 0 without one."""
        return self.remote.timeout_s if self.remote is not None else 0.0

    async def look_up(self, asked: Sequence[tuple[Group, bytes]]) -> list[Entry | None]:
        """The entry of each key, fresh or past its TTL; None where there is none. Never fails."""
        found: list[Entry | None] = [None] * len(asked)
        if self.memory is not None:
            found = [self.memory.get_nowait(store_key) for _, store_key in asked]
        if self.remote is None:
            return found
        now_s = self._monotonic_s()
        lacking = [at for at, entry in enumerate(found) if entry is None or entry.fresh_until_s <= now_s]
        entries = await self.look_up_shared([asked[at] for at in lacking])
        for at, entry in zip(lacking, entries, strict=True):
            found[at] = entry
        return found

    async def look_up_shared(self, asked: Sequence[tuple[Group, bytes]]) -> list[Entry | None]:
        """The newest entry of each key, of the shared store's and memory's; from now on in memory. Never fails."""
        stored_entries: list[StoredEntry | None] = [None] * len(asked)
        if self.remote is not None:
            stored_entries = await self.remote.get_many([store_key for _, store_key in asked])
        now_s, wall_s = self._monotonic_s(), self._wall_s()
        entries: list[Entry | None] = []
        for (group, store_key), stored in zip(asked, stored_entries, strict=True):
            # Memory is looked at after the round trip: a call may have ended meanwhile.
            entry = held = None if self.memory is None else self.memory.peek(store_key)
            if stored is not None:
                entry = from_stored(stored, group.spec.columns, group.longest_ttl_s, now_s, wall_s)
            if held is not None and (entry is None or entry.fresh_until_s <= held.fresh_until_s):
                entry = held
            elif entry is not None and self.memory is not None:
                self.memory.put_nowait(store_key, entry, entry.size_bytes, _life_s(group, entry, now_s))
            entries.append(entry)
        return entries

    async def keep(self, kept: list[Kept]) -> None:
        """Keep entries for their TTL and as long after it as they may be served stale. Never fails."""
        now_s = self._monotonic_s()
        lives = [_life_s(group, entry, now_s) for group, _, entry in kept]
        if self.memory is not None:
            for (_, lookup, entry), life_s in zip(kept, lives, strict=True):
                self.memory.put_nowait(lookup.store_key, entry, entry.size_bytes, life_s)
        if self.remote is not None:
            wall_s = self._wall_s()
            await self.remote.put_many(
                [
                    (lookup.store_key, to_stored(entry, now_s, wall_s), life_s)
                    for (_, lookup, entry), life_s in zip(kept, lives, strict=True)
                ]
            )

    async def close(self) -> None:
        """Free the remote store's connections."""
        if self.remote is not None:
            await self.remote.close()


def _life_s(group: Group, entry: Entry, now_s: float) -> float:
    # "There is no row" is never served stale: a new entity must not stay unknown while a source is down.
    return entry.fresh_until_s - now_s + (group.spec.stale_for_s if entry.row is not None else 0.0)
