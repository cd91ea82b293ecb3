"""Makes a store harmless: down, slow or garbled, it never fails a request nor delays it beyond a time-out.

After a few failures in a row the store is bypassed: look-ups find nothing at once, and a background task probes it
with a capped, growing pause until it answers, so that no request ever pays for finding that out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Generic, Protocol, TypeVar

from tailcut.cache.freshness import retry_delay_s
from tailcut.system.cancellation import is_being_cancelled

T = TypeVar("T")
R = TypeVar("R")

FAILURES_TO_BYPASS = 3
"""In a row. One alone may be our own stalled event loop; each costs a request the time-out at most."""

_log = logging.getLogger("tailcut.cache")


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


@dataclass(slots=True)
class BypassStatistics:
    """How the store behaves; the store counts in its own, others get copies."""

    bypassed: bool = False
    """Whether the store is being bypassed now."""
    bypasses: int = 0
    """Look-ups and writes that did not reach the store because it was bypassed."""
    failures: int = 0
    """Calls that raised or timed out, probes not included."""
    timeouts: int = 0
    """Of these, those that timed out."""
    recoveries: int = 0
    """How often the store came back."""


class BypassedStore(Generic[T]):
    """A store that cannot hurt.

    Args:
        store: the real one; owned and closed by this object.
        timeout_s: longest wait for any call.
        place: what the log calls the store.
    """

    def __init__(self, store: Store[T], timeout_s: float, place: str = "the store") -> None:
        self._store = store
        self._place = place
        self.timeout_s = timeout_s
        self._failures_in_row = 0
        self._probe: asyncio.Task[None] | None = None
        self._closed = False
        self._bypassed_before = 0
        self._counts = BypassStatistics()

    async def get_many(self, keys: Sequence[bytes]) -> list[T | None]:
        """Look all keys up in one round trip; None for each that is missing, or for all when the store fails."""
        if not keys:
            return []
        if self._bypassed():
            return [None] * len(keys)
        try:
            values = await self._within(self._store.get_many(keys))
            if len(values) != len(keys):
                raise ValueError(f"the store gave {len(values)} values for {len(keys)} keys")
        except Exception as error:
            self._failed(error)
            return [None] * len(keys)
        self._failures_in_row = 0
        return values

    async def put_many(self, items: Sequence[tuple[bytes, T, float]]) -> None:
        """Keep the items if the store takes them within the time-out."""
        if not items or self._bypassed():
            return
        try:
            await self._within(self._store.put_many(items))
        except Exception as error:
            self._failed(error)
        # A write that went well says nothing about look-ups: only those end a row of failures.

    async def probe(self) -> bool:
        """Ask the store for a sign of life; start bypassing it if there is none."""
        try:
            await self._within(self._store.probe())
        except Exception as error:
            self._bypass(error)
            return False
        return True

    def statistics(self) -> BypassStatistics:
        """Snapshot of the counters."""
        return replace(self._counts, bypassed=self._probe is not None)

    async def close(self) -> None:
        """Stop probing and close the store; later calls find nothing."""
        self._closed = True
        if self._probe is not None:
            self._probe.cancel()
            with suppress(asyncio.CancelledError):
                await self._probe
            self._probe = None
        with suppress(Exception):
            async with asyncio.timeout(max(self.timeout_s, 1.0)):
                await self._store.close()

    async def _within(self, call: Awaitable[R]) -> R:
        try:
            async with asyncio.timeout(self.timeout_s):
                return await call
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            # Otherwise the store would never be probed again.
            raise ConnectionError("the store's client cancelled the call") from error

    def _bypassed(self) -> bool:
        if self._probe is None and not self._closed:
            return False
        self._counts.bypasses += 1
        return True

    def _failed(self, error: Exception) -> None:
        self._counts.failures += 1
        self._counts.timeouts += isinstance(error, TimeoutError)
        self._failures_in_row += 1
        if self._failures_in_row >= FAILURES_TO_BYPASS:
            self._bypass(error)

    def _bypass(self, error: Exception) -> None:
        if self._probe is None and not self._closed:
            _log.warning(
                "%s is bypassed until it answers again: %s; requests are answered without its values",
                self._place,
                str(error) or type(error).__name__,
            )
            self._bypassed_before = self._counts.bypasses
            self._probe = asyncio.get_running_loop().create_task(self._probe_until_well())

    async def _probe_until_well(self) -> None:
        for tries in count(1):
            await asyncio.sleep(retry_delay_s(tries))
            try:
                await self._within(self._store.probe())
                break
            except Exception as error:
                _log.debug("store probe %d failed: %s", tries, error)
        self._failures_in_row = 0
        self._counts.recoveries += 1
        self._probe = None
        calls = self._counts.bypasses - self._bypassed_before
        _log.warning("%s answers again; %d look-ups and writes bypassed it", self._place, calls)
