"""A feature source that a test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tailcut.features.sources.base import Key, SourceContext


class StubSource:
    """An async feature function: answers from ``rows``, remembers its calls, and fails or waits on demand.

    Args:
        rows: key -> row, or a callable that makes the row (None: no row).
    """

    def __init__(self, rows: Mapping[Key, Mapping[str, Any]] | Callable[[Key], Mapping[str, Any] | None]) -> None:
        self.rows: Callable[[Key], Mapping[str, Any] | None] = rows if callable(rows) else dict(rows).get
        self.calls: list[list[Key]] = []
        self.contexts: list[SourceContext] = []
        self.cancelled = 0
        """Calls that were cancelled while they waited."""
        self.error: Exception | None = None
        """Raised by every call while it is set."""
        self._gate = asyncio.Event()
        self._gate.set()

    def hold(self) -> None:
        """Make calls wait until ``release``."""
        self._gate.clear()

    def release(self) -> None:
        """Let waiting and later calls go on."""
        self._gate.set()

    async def __call__(self, keys: Sequence[Key], context: SourceContext) -> list[Mapping[str, Any] | None]:
        """Answer for ``keys``."""
        self.calls.append(list(keys))
        self.contexts.append(context)
        try:
            await self._gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return [self.rows(key) for key in keys]
