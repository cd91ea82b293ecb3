"""A store that fails, hangs or garbles on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Generic, Literal, TypeVar

T = TypeVar("T")

Mode = Literal["well", "fails", "hangs", "hangs_writing", "short", "cancels"]


class FaultyStore(Generic[T]):
    """A store in memory (TTLs are recorded, not enforced) that behaves as ``mode`` says.

    ``well``; ``fails``: every call raises ``ConnectionError``; ``hangs``: every call waits until it is cancelled;
    ``hangs_writing``: writes do that, look-ups are well; ``short``: look-ups return too few values;
    ``cancels``: every call raises ``CancelledError`` though nobody cancelled it, as a broken client library may.
    """

    def __init__(self) -> None:
        self.mode: Mode = "well"
        self.values: dict[bytes, T] = {}
        self.ttls_s: dict[bytes, float] = {}
        self.look_ups: list[list[bytes]] = []
        """The keys of every look-up that reached the store."""
        self.writes = 0
        self.probes = 0
        self.closed = False

    async def get_many(self, keys: Sequence[bytes]) -> list[T | None]:
        """Look keys up."""
        self.look_ups.append(list(keys))
        await self._behave()
        found = [self.values.get(key) for key in keys]
        return found[:-1] if self.mode == "short" else found

    async def put_many(self, items: Sequence[tuple[bytes, T, float]]) -> None:
        """Keep items."""
        self.writes += 1
        await self._behave(writing=True)
        for key, value, ttl_s in items:
            self.values[key] = value
            self.ttls_s[key] = ttl_s

    async def probe(self) -> None:
        """Answer, or not."""
        self.probes += 1
        await self._behave()

    async def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True

    async def _behave(self, *, writing: bool = False) -> None:
        if self.mode == "fails":
            raise ConnectionError("the store is down")
        if self.mode == "cancels":
            raise asyncio.CancelledError
        if self.mode == "hangs" or (writing and self.mode == "hangs_writing"):
            await asyncio.get_running_loop().create_future()
