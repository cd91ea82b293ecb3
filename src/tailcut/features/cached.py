"""The cache of group values, wherever it is: looked up in one pass (memory) or one round trip (Redis)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tailcut.cache.bypass import BypassedStore
from tailcut.cache.memory import MemoryStore
from tailcut.features.calls import Kept
from tailcut.features.entry import Entry, StoredEntry, from_stored, to_stored
from tailcut.features.groups import Group


class EntryCache:
    """Entries by store key. At most one of ``memory`` and ``remote`` is set; with neither nothing is kept."""

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

    async def look_up(self, asked: Sequence[tuple[Group, bytes]]) -> list[Entry | None]:
        """The entry of each key, fresh or past its TTL; None where there is none. Never fails."""
        if self.memory is not None:
            return [self.memory.get_nowait(store_key) for _, store_key in asked]
        if self.remote is None:
            return [None] * len(asked)
        found = await self.remote.get_many([store_key for _, store_key in asked])
        now_s, wall_s = self._monotonic_s(), self._wall_s()
        return [
            None if stored is None else from_stored(stored, group.spec.columns, group.longest_ttl_s, now_s, wall_s)
            for (group, _), stored in zip(asked, found, strict=True)
        ]

    async def keep(self, kept: list[Kept]) -> None:
        """Keep entries for their TTL and as long after it as they may be served stale. Never fails."""
        now_s = self._monotonic_s()
        lives = [
            # "There is no row" is never served stale: a new entity must not stay unknown while a source is down.
            entry.fresh_until_s - now_s + (group.spec.stale_for_s if entry.row is not None else 0.0)
            for group, _, entry in kept
        ]
        if self.memory is not None:
            for (_, lookup, entry), life_s in zip(kept, lives, strict=True):
                self.memory.put_nowait(lookup.store_key, entry, entry.size_bytes, life_s)
        elif self.remote is not None:
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
