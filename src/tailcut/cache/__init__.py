"""Stores: in memory, in Redis, and what makes the latter harmless when it fails."""

from tailcut.cache.bypass import BypassedStore, BypassStatistics, Store
from tailcut.cache.memory import MemoryStatistics, MemoryStore
from tailcut.cache.redis import RedisStore

__all__ = ["BypassStatistics", "BypassedStore", "MemoryStatistics", "MemoryStore", "RedisStore", "Store"]
