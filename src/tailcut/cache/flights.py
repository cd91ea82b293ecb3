"""Single flight: keys that are being worked out, so that whoever else wants one waits for it instead of doing it again.

Owned by the event loop: no locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from typing import Any, Protocol, TypeVar


class Keyed(Protocol):
    """Anything that knows which key it is for."""

    @property
    def key(self) -> Hashable:
        """What is being worked out."""
        ...


F = TypeVar("F", bound=Keyed)


class Flights(dict[Hashable, F]):
    """Flights by key, at most one for each."""

    def begin(self, flight: F) -> F:
        """From now on this is the flight of its key."""
        self[flight.key] = flight
        return flight

    def land(self, flight: F) -> None:
        """The key is open for a new flight, unless there is a newer one already."""
        if self.get(flight.key) is flight:
            del self[flight.key]


async def wait_all(futures: Iterable[asyncio.Future[Any]], timeout_s: float) -> None:
    """Wait until all are done or the time is over. Neither that nor a cancellation of the waiter reaches them."""
    waiting = [future for future in futures if not future.done()]
    if waiting and timeout_s > 0:
        await asyncio.wait(waiting, timeout=timeout_s)
