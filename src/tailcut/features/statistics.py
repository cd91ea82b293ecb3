"""Counters of the feature stage: mutable inside, an immutable snapshot outside."""

from __future__ import annotations

from dataclasses import dataclass

from tailcut.cache.bypass import BypassStatistics
from tailcut.cache.memory import MemoryStatistics


class Counters:
    """What happened to one group since the start."""

    __slots__ = (
        "errors",
        "hits",
        "misses",
        "refreshes",
        "single_flight_joins",
        "source_calls",
        "source_keys",
        "source_s",
        "stale_served",
    )

    def __init__(self) -> None:
        self.hits = 0
        self.misses = 0
        self.stale_served = 0
        self.errors = 0
        self.refreshes = 0
        self.single_flight_joins = 0
        self.source_calls = 0
        self.source_keys = 0
        self.source_s = 0.0


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """One group since the start."""

    name: str
    entity_type: str
    """The key's columns joined by "+"."""
    hits: int
    """Look-ups answered fresh from the cache (or the preloaded table)."""
    misses: int
    """Look-ups that found nothing fresh."""
    stale_served: int
    """Values served past their TTL because the source failed."""
    errors: int
    """Source calls that failed or timed out, in whole or for a key."""
    refreshes: int
    """Keys that were refreshed in the background."""
    single_flight_joins: int
    """Misses that waited for a call under way instead of making their own."""
    source_calls: int
    source_keys: int
    source_s: float
    """Seconds spent in source calls, summed."""
    in_use: int
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
