"""Single flight: keys that are being worked out, so that whoever else wants one waits for it instead of doing it again.

Flights are a dict by key, at most one for each, owned by the event loop: no locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, TypeVar

F = TypeVar("F")


def land(flights: dict[bytes, F], key: bytes, flight: F) -> None:
    """Open a key for a new flight, unless there is a newer one already."""
    if flights.get(key) is flight:
        del flights[key]


async def wait_all(futures: Iterable[asyncio.Future[Any]], timeout_s: float) -> None:
    """Wait until all are done or the time is over. Neither that nor a cancellation of the waiter reaches them."""
    waiting = [future for future in futures if not future.done()]
    if waiting and timeout_s > 0:
        await asyncio.wait(waiting, timeout=timeout_s)
