"""A group's whole table in memory: looked up without I/O, read again in the background once per TTL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

from tailcut.cache.freshness import refresh_lead_s, retry_delay_s
from tailcut.features.entry import Row
from tailcut.features.key_types import KeyType
from tailcut.features.sources.base import (
    LARGE_TABLE_ROWS,
    ColumnProblem,
    Key,
    Source,
    SourceContext,
    SourceError,
    Values,
)
from tailcut.system.cancellation import is_being_cancelled

LONGEST_LOAD_S = 60.0
"""A whole table may take longer than one request's keys, but not forever."""

_log = logging.getLogger("tailcut.features")


class PreloadedRows:
    """The rows of a preloaded group.

    While reading it again fails the old rows stay; ``fresh_until_s`` tells how old they are.
    """

    def __init__(
        self,
        name: str,
        columns: tuple[str, ...],
        ttl_s: float,
        source: Source,
        clock: Callable[[], float],
        monotonic_s: Callable[[], float] = monotonic,
    ) -> None:
        self.rows: dict[Key, Row] = {}
        self.key_types: tuple[KeyType, ...] = source.table_types
        """Types of the keys of ``rows``, which are in normal form."""
        self.problem = ""
        """What is wrong with the table's columns, while that keeps it from being read."""
        self.ttl_s = ttl_s
        self.fresh_until_s = float("-inf")
        self.load_s = 0.0
        self._is_slow = self._is_failing = False
        self._name = name
        self._columns = columns
        self._source = source
        self._clock = clock
        self._monotonic_s = monotonic_s

    async def load(self) -> None:
        """Read the table once.

        Raises:
            SourceError: it could not be read; the old rows stay.
        """
        asked_s = self._monotonic_s()
        context = SourceContext(now=self._clock(), tenant="", deadline_s=asked_s + LONGEST_LOAD_S, preload=True)
        try:
            async with asyncio.timeout(LONGEST_LOAD_S):
                found = await self._source.fetch_all(context)
        except ColumnProblem as error:
            self.problem = str(error)
            raise
        except TimeoutError as error:
            raise SourceError(f"reading the table took longer than {LONGEST_LOAD_S:g} s") from error
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            # Otherwise the table would never be reloaded again.
            raise SourceError("the source cancelled its own call") from error
        large = len(found) > LARGE_TABLE_ROWS
        types = self._source.table_types
        self.rows = await asyncio.to_thread(self._by_key, found) if large else self._by_key(found)
        self.key_types, self.problem = types, ""
        # Counted from when the source was asked: the rows may be that old.
        self.fresh_until_s = asked_s + self.ttl_s
        self.load_s = self._monotonic_s() - asked_s
        self._is_failing = False
        self._warn_of_slow_reads()

    def why_expired(self) -> str:
        """Say why the table is past its TTL, for the error of a request that may not have it."""
        if self._is_failing:
            why = f": {self.problem}" if self.problem else ""
            return f"its table could not be reloaded and is past its stale limit{why}"
        return (
            f"its table is being read again and is past its stale limit (the last read took {self.load_s:.3g} s, "
            f"its ttl is {self.ttl_s:g} s): raise the group's ttl or stale_for, or make the read faster"
        )

    async def keep_fresh(self) -> None:
        """Read the table again shortly before each expiry, forever; retry with a growing pause while that fails."""
        failures = 0
        while True:
            left_s = self.fresh_until_s - refresh_lead_s(self.ttl_s, self.load_s) - self._monotonic_s()
            await asyncio.sleep(retry_delay_s(failures) if failures else max(0.0, left_s))
            try:
                await self.load()
            except Exception as error:
                failures += 1
                self._is_failing = True
                level = logging.WARNING if failures == 1 else logging.DEBUG
                _log.log(level, 'feature group "%s" could not be reloaded, the old table stays: %s', self._name, error)
                continue
            if failures:
                _log.warning('feature group "%s" is reloaded again', self._name)
            failures = 0

    def _warn_of_slow_reads(self) -> None:
        """Log, once until it is cured, that a table takes so long to read that it cannot stay fresh."""
        # Read again half a TTL ahead of its expiry at most, and as old as its read is long: see refresh_lead_s.
        slow = self.load_s > self.ttl_s / 2
        if slow and not self._is_slow:
            _log.warning(
                'feature group "%s": reading its table took %.3g s, more than half of its ttl of %g s, so it expires '
                "before it is read again; raise the group's ttl to %.3g s or more, or make the read faster",
                self._name,
                self.load_s,
                self.ttl_s,
                3 * self.load_s,
            )
        self._is_slow = slow

    def _by_key(self, found: list[tuple[Key, Values]]) -> dict[Key, Row]:
        return {key: dict(zip(self._columns, values, strict=True)) for key, values in found}
