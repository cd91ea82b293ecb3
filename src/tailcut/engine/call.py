"""One request on its way through the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tailcut.core.timings import Timings


class Call:
    """One request on its way: its record, its deadline and what it holds."""

    __slots__ = ("cache", "deadline_ns", "disconnected", "gone", "route", "tenant", "timings", "variant", "waiting")

    def __init__(self, route: str, start_ns: int, deadline_ns: int, tenant: str, variant: str) -> None:
        self.route = route
        self.timings = Timings(start_ns)
        self.deadline_ns = deadline_ns
        self.tenant = tenant
        self.variant = variant
        self.cache = "off"
        self.disconnected: Callable[[], Awaitable[None]] | None = None
        self.gone = False
        self.waiting: asyncio.Future[Any] | None = None

    def abandon(self) -> None:
        """Drop the work of a client that is gone: whatever the request waits for is cancelled."""
        self.gone = True
        if self.waiting is not None:
            self.waiting.cancel()
