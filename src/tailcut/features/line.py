"""The line in which keys of one group and tenant wait to be asked for. Pure: it is told the time and starts nothing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tailcut.features.entry import Outcome
from tailcut.features.sources.base import Key
from tailcut.observe.traces.trace_context import CallerSpan

MAX_CALLS = 2
"""Calls at a time."""
MAX_UNWANTED_CALLS = 1
"""Of these, calls for keys that no request waits for: a miss always finds the other place or a miss in it."""
MAX_KEYS = 256
"""Keys in one call."""
MAX_UNWANTED_KEYS = 10_000
"""Keys in line that no request waits for; more are let go, oldest first, so that a long outage costs bounded memory."""

NOBODY_WAITS = -math.inf

Caller = Callable[[Any], CallerSpan]
"""Returns the span of a group in the trace of a request."""


@dataclass(slots=True, frozen=True, eq=False)
class Lookup:
    """A key to look up."""

    key: Key
    store_key: bytes


@dataclass(slots=True, eq=False)
class KeyFlight:
    """A key that is being asked for, or waits for that."""

    lookup: Lookup
    future: asyncio.Future[Outcome]
    until_s: float
    """When the last request that waits for it gives up; ``NOBODY_WAITS`` for a refresh."""
    caller: Caller | None = None
    """Tells the span of its group that first asked for it; None where that is not traced."""


@dataclass(slots=True, frozen=True, eq=False)
class SourceCall:
    """What one call asks for."""

    flights: list[KeyFlight]
    wanted: bool
    """Whether requests wait for it."""


class KeyQueue:
    """Keys that wait for a call, and the calls under way."""

    def __init__(self) -> None:
        self._waiting: list[KeyFlight] = []
        self._calls: set[SourceCall] = set()

    @property
    def idle(self) -> bool:
        """Whether nothing waits and no call is under way."""
        return not (self._waiting or self._calls)

    def add(self, flights: Sequence[KeyFlight]) -> None:
        """Put keys at the end."""
        self._waiting += flights

    def take(self, now_s: float) -> SourceCall | None:
        """The next call, under way from now on; None while no more may start.

        Keys that requests wait for go first. Those whose requests have all given up stay, since they are wanted in
        the cache, but like refreshes they neither delay nor lengthen a call that somebody waits for.
        """
        if not self._waiting or len(self._calls) >= MAX_CALLS:
            return None
        wanted, unwanted = self._split(now_s)
        if wanted:
            call = SourceCall(wanted[:MAX_KEYS], wanted=True)
            self._waiting = unwanted + wanted[MAX_KEYS:]
        elif sum(not call.wanted for call in self._calls) < MAX_UNWANTED_CALLS:
            call = SourceCall(unwanted[:MAX_KEYS], wanted=False)
            self._waiting = unwanted[MAX_KEYS:]
        else:
            return None
        self._calls.add(call)
        return call

    def let_go(self, now_s: float) -> list[KeyFlight]:
        """Take out the keys for which there is no room."""
        if len(self._waiting) <= MAX_UNWANTED_KEYS:
            return []
        wanted, unwanted = self._split(now_s)
        excess = max(0, len(unwanted) - MAX_UNWANTED_KEYS)
        self._waiting = unwanted[excess:] + wanted
        return unwanted[:excess]

    def leave(self, call: SourceCall) -> None:
        """A call has its answer, or was given up; saying it twice changes nothing."""
        self._calls.discard(call)

    def clear(self) -> list[KeyFlight]:
        """Take out everything that waits."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def _split(self, now_s: float) -> tuple[list[KeyFlight], list[KeyFlight]]:
        wanted: list[KeyFlight] = []
        unwanted: list[KeyFlight] = []
        for flight in self._waiting:
            (wanted if flight.until_s > now_s else unwanted).append(flight)
        return wanted, unwanted
