"""Counters of the feature stage."""

from __future__ import annotations

from dataclasses import dataclass

from tailcut.cache.bypass import BypassStatistics
from tailcut.cache.memory import MemoryStatistics


@dataclass(slots=True)
class GroupStatistics:
    """One group since the start; the group counts in its own, others get copies."""

    name: str
    entity_type: str
    """The key's columns joined by "+"."""
    hits: int = 0
    """Look-ups answered fresh from the cache (or the preloaded table)."""
    misses: int = 0
    """Look-ups that found nothing fresh."""
    stale_served: int = 0
    """Values served past their TTL because the source failed."""
    errors: int = 0
    """Source calls that failed or timed out, in whole or for a key."""
    refreshes: int = 0
    """Keys that were refreshed in the background."""
    single_flight_joins: int = 0
    """Misses that waited for a call under way instead of making their own."""
    source_calls: int = 0
    source_keys: int = 0
    source_s: float = 0.0
    """Seconds spent in source calls, summed."""
    in_use: int = 0
    """Keys that are kept fresh in the background now."""


@dataclass(frozen=True, slots=True)
class FeatureStatistics:
    """A snapshot of all groups and of the store."""

    groups: tuple[GroupStatistics, ...]
    memory: MemoryStatistics | None
    """The store in memory, where that is used."""
    store: BypassStatistics | None
    """The store outside this process, where one is used."""

    @property
    def bypasses(self) -> int:
        """Store calls skipped because the store was failing."""
        return self.store.bypasses if self.store is not None else 0
