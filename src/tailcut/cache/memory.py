"""A store in this process's memory: bounded by bytes, least recently used goes first, every operation O(1).

Owned by the event loop: no locks, so it must not be used from several threads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")

ENTRY_OVERHEAD_BYTES = 160
"""What the table itself costs per entry: its slot, the link of the LRU order, the tuple and the key's header."""


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """A snapshot. ``hits`` and ``misses`` count look-ups since the start; an expired entry counts as a miss."""

    entries: int
    bytes: int
    hits: int
    misses: int
    evictions: int
    expirations: int


class MemoryStore(Generic[T]):
    """Keys to values, each with a size and a TTL.

    Args:
        max_bytes: bound on the sum of sizes (each plus its key and ``ENTRY_OVERHEAD_BYTES``).
        monotonic_s: monotonic seconds.
        stale_for_s: how long past its TTL an entry is kept for ``get_stale``, where there is room.
    """

    __slots__ = (
        "_bytes",
        "_entries",
        "_evictions",
        "_expirations",
        "_hits",
        "_max_bytes",
        "_misses",
        "_stale_for_s",
        "monotonic_s",
    )

    def __init__(
        self, max_bytes: int, monotonic_s: Callable[[], float] = monotonic, *, stale_for_s: float = 0.0
    ) -> None:
        self._max_bytes = max_bytes
        self._stale_for_s = stale_for_s
        self.monotonic_s = monotonic_s
        self._entries: OrderedDict[bytes | str, tuple[T, float, int]] = OrderedDict()
        self._bytes = 0
        self._hits = 0
        self._misses = 0
        self._evictions = 0
        self._expirations = 0

    def get_nowait(self, key: bytes | str) -> T | None:
        """The value of ``key``, or None when there is none or its TTL has passed."""
        entry = self._entries.get(key)
        if entry is None:
            self._misses += 1
            return None
        if entry[1] <= (now_s := self.monotonic_s()):
            self._misses += 1
            if entry[1] + self._stale_for_s <= now_s:
                self._expirations += 1
                self._remove(key)
            return None
        self._hits += 1
        self._entries.move_to_end(key)
        return entry[0]

    def get_stale(self, key: bytes | str) -> tuple[T, bool] | None:
        """What is kept under ``key`` and whether it is still fresh; not longer than ``stale_for_s`` past its TTL.

        Counts as no look-up and as no use.
        """
        entry = self._entries.get(key)
        if entry is None:
            return None
        past_s = self.monotonic_s() - entry[1]
        return (entry[0], past_s < 0) if past_s < self._stale_for_s or past_s < 0 else None

    def peek(self, key: bytes | str) -> T | None:
        """What is kept under ``key``, expired or not; counts as no look-up and as no use."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def put_nowait(self, key: bytes | str, value: T, size_bytes: int, ttl_s: float) -> None:
        """Keep ``value`` for ``ttl_s``; what was kept under ``key`` is gone in any case.

        A value larger than the whole store, or with no life left, is not kept. Others are evicted until it fits.
        """
        self._remove(key)
        total_bytes = size_bytes + len(key) + ENTRY_OVERHEAD_BYTES
        if ttl_s <= 0 or total_bytes > self._max_bytes:
            return
        while self._bytes + total_bytes > self._max_bytes:
            _, (_, expires_s, evicted_bytes) = self._entries.popitem(last=False)
            self._bytes -= evicted_bytes
            if expires_s <= self.monotonic_s():
                self._expirations += 1
            else:
                self._evictions += 1
        self._entries[key] = (value, self.monotonic_s() + ttl_s, total_bytes)
        self._bytes += total_bytes

    def statistics(self) -> MemoryStatistics:
        """Count what is kept (expired entries that nobody asked for included) and what has happened."""
        return MemoryStatistics(
            entries=len(self._entries),
            bytes=self._bytes,
            hits=self._hits,
            misses=self._misses,
            evictions=self._evictions,
            expirations=self._expirations,
        )

    def _remove(self, key: bytes | str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry[2]
