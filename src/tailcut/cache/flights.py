"""Single flight: keys that are being worked out, so that whoever else wants one waits for it instead of doing it again.

Owned by the event loop: no locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar


class Keyed(Protocol):
    """Anything that knows which key it is for."""

    @property
    def key(self) -> Hashable:
        """What is being worked out."""
        ...


F = TypeVar("F", bound=Keyed)


class Flights(Generic[F]):
    """At most one flight per key."""

    __slots__ = ("_flights",)

    def __init__(self) -> None:
        self._flights: dict[Hashable, F] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._flights

    def __iter__(self) -> Iterator[F]:
        """Those under way now; landing them meanwhile is allowed."""
        return iter(list(self._flights.values()))

    def __len__(self) -> int:
        return len(self._flights)

    def of(self, key: Hashable) -> F | None:
        """The flight of a key, if there is one."""
        return self._flights.get(key)

    def begin(self, flight: F) -> F:
        """From now on this is the flight of its key."""
        self._flights[flight.key] = flight
        return flight

    def land(self, flight: F) -> None:
        """The key is open for a new flight, unless there is a newer one already."""
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]


async def wait_all(futures: Iterable[asyncio.Future[Any]], timeout_s: float) -> None:
    """Wait until all are done or the time is over. Neither that nor a cancellation of the waiter reaches them."""
    waiting = [future for future in futures if not future.done()]
    if waiting and timeout_s > 0:
        await asyncio.wait(waiting, timeout=timeout_s)
