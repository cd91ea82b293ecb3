"""The memory store against a slow model that is obviously right."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tailcut.cache import MemoryStore
from tailcut.cache.memory import ENTRY_OVERHEAD_BYTES
from tailcut.testing import FakeClock

MAX_BYTES = 1_000
KEYS = st.sampled_from(["a", "b", "c", "d", "e", "f"])


class MemoryModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.store: MemoryStore[int] = MemoryStore(MAX_BYTES, self.clock.monotonic_s)
        # Least recently used first: (key, value, size, expiry).
        self.model: list[tuple[str, int, int, float]] = []
        self.looked_up = 0
        self.count = 0

    @rule(key=KEYS, size=st.integers(0, 1_100), ttl_s=st.sampled_from([0.0, 1.0, 2.0, 5.0]))
    def put(self, key: str, size: int, ttl_s: float) -> None:
        self.count += 1
        self.store.put_nowait(key, self.count, size, ttl_s)
        self.model = [entry for entry in self.model if entry[0] != key]
        size += len(key) + ENTRY_OVERHEAD_BYTES
        if ttl_s > 0 and size <= MAX_BYTES:
            while sum(entry[2] for entry in self.model) + size > MAX_BYTES:
                self.model.pop(0)
            self.model.append((key, self.count, size, self.clock.monotonic_s() + ttl_s))

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        self.looked_up += 1
        found = next((entry for entry in self.model if entry[0] == key), None)
        if found is not None:
            self.model.remove(found)
            if found[3] > self.clock.monotonic_s():
                self.model.append(found)
            else:
                found = None
        assert self.store.get_nowait(key) == (None if found is None else found[1])

    @rule(key=KEYS)
    def peek(self, key: str) -> None:
        assert self.store.peek(key) == next((entry[1] for entry in self.model if entry[0] == key), None)

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def bytes_are_exact_and_bounded(self) -> None:
        statistics = self.store.statistics()
        assert statistics.bytes == sum(entry[2] for entry in self.model) <= MAX_BYTES
        assert statistics.entries == len(self.model)
        assert statistics.hits + statistics.misses == self.looked_up


TestMemoryModel = MemoryModel.TestCase
TestMemoryModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
