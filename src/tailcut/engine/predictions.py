"""A prediction cache of the path, and what its entries cost."""

from __future__ import annotations

from sys import getsizeof
from typing import Any

from tailcut.cache import MemoryStore
from tailcut.core.tensors import Arrays

ENTRY_OVERHEAD_BYTES = 200
"""What an entry costs beside its value: key, tuple, dict slots (measured with tracemalloc at 100,000 entries)."""


class PredictionStore:
    """A prediction cache: where it is kept and how long an entry lives at most."""

    __slots__ = ("store", "ttl_s")

    def __init__(self, store: MemoryStore[Any], ttl_s: float) -> None:
        self.store = store
        self.ttl_s = ttl_s


def size_bytes(value: Arrays) -> int:
    """What an entry of output arrays costs; an array of objects holds pointers, and what they point to counts."""
    held = sum(
        [
            sum([getsizeof(element) for element in array.flat]) if array.dtype.hasobject else 0
            for array in value.values()
        ]
    )
    return held + sum([array.nbytes for array in value.values()]) + ENTRY_OVERHEAD_BYTES * (len(value) + 1)
