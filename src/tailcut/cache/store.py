"""What a store outside this process is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Store(Protocol[T]):
    """Keys to values over a network. Any method may fail or hang: ``BypassedStore`` makes that harmless."""

    async def get_many(self, keys: Sequence[bytes]) -> list[T | None]:
        """Look all keys up in one round trip; None for each that is missing or cannot be read."""
        ...

    async def put_many(self, items: Sequence[tuple[bytes, T, float]]) -> None:
        """Keep (key, value, seconds to live) for each item, in one round trip."""
        ...

    async def probe(self) -> None:
        """Return if the store answers, else raise."""
        ...

    async def close(self) -> None:
        """Free connections. Calling it twice is allowed."""
        ...
