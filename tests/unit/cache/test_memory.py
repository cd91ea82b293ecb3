"""The memory store, by example."""

from __future__ import annotations

from tailcut.cache import MemoryStore
from tailcut.cache.memory import ENTRY_OVERHEAD_BYTES
from tailcut.testing import FakeClock


def store_of(entries: int, clock: FakeClock) -> MemoryStore[str]:
    return MemoryStore(entries * (ENTRY_OVERHEAD_BYTES + 1 + 10), clock.monotonic_s)


def test_the_least_recently_used_goes_first() -> None:
    store = store_of(2, FakeClock())
    store.put_nowait("a", "A", 10, 60)
    store.put_nowait("b", "B", 10, 60)
    assert store.get_nowait("a") == "A"
    store.put_nowait("c", "C", 10, 60)
    assert [store.get_nowait(key) for key in "abc"] == ["A", None, "C"]
    assert store.statistics().evictions == 1


def test_an_entry_ends_with_its_ttl() -> None:
    clock = FakeClock()
    store = store_of(2, clock)
    store.put_nowait("a", "A", 10, 5)
    clock.advance(4.999)
    assert store.get_nowait("a") == "A"
    clock.advance(0.001)
    assert store.get_nowait("a") is None
    assert (store.statistics().expirations, store.statistics().bytes) == (1, 0)


def test_what_is_too_large_is_not_kept_and_the_old_value_is_gone() -> None:
    store = store_of(2, FakeClock())
    store.put_nowait("a", "old", 10, 60)
    store.put_nowait("b", "B", 10, 60)
    store.put_nowait("a", "new", 10_000, 60)
    assert store.get_nowait("a") is None
    assert store.get_nowait("b") == "B"


def test_no_life_left_means_not_kept() -> None:
    store = store_of(2, FakeClock())
    store.put_nowait("a", "A", 10, 0)
    assert store.get_nowait("a") is None


def test_evicting_what_had_expired_is_no_eviction() -> None:
    clock = FakeClock()
    store = store_of(1, clock)
    store.put_nowait("a", "A", 10, 1)
    clock.advance(2)
    store.put_nowait("b", "B", 10, 1)
    assert (store.statistics().evictions, store.statistics().expirations) == (0, 1)


def test_an_entry_past_its_ttl_is_there_for_those_who_take_it_stale() -> None:
    clock = FakeClock()
    store: MemoryStore[str] = MemoryStore(10_000, clock.monotonic_s, stale_for_s=10)
    store.put_nowait("a", "A", 10, 5)
    assert store.get_stale("a") == ("A", True)
    clock.advance(5)
    assert store.get_nowait("a") is None
    assert store.get_stale("a") == ("A", False)
    clock.advance(9.9)
    assert store.get_nowait("a") is None
    assert store.get_stale("a") == ("A", False)
    clock.advance(0.1)
    assert store.get_stale("a") is None
    assert store.get_nowait("a") is None
    assert (store.statistics().entries, store.statistics().expirations) == (0, 1)


def test_nothing_is_stale_where_nothing_was_asked_for() -> None:
    clock = FakeClock()
    store = store_of(2, clock)
    store.put_nowait("a", "A", 10, 5)
    assert store.get_stale("a") == ("A", True)
    clock.advance(5)
    assert store.get_stale("a") is None
    assert store.get_stale("b") is None
