"""Small bodies whose requests were refused unread: the HTTP layer reads them, and nobody waits for them.

A refusal must cost little, and a task that waits for the body is half of what it costs. But a body that never comes
would hold its connection, and the stop, for good: after a second it is given up, and the HTTP layer closes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

_PATIENCE_S = 1.0
_LOOK_S = 0.25
"""What has come is let go as often, so that no more bodies are kept than come in that time."""


class Coming(Protocol):
    """A body that is being read, as Granian hands it out."""

    def done(self) -> bool:
        """Whether it has come, or never will."""
        ...

    def cancel(self) -> object:
        """Stop reading it."""
        ...


class Remains:
    """What is still to come of refused requests."""

    def __init__(self) -> None:
        self._coming: deque[tuple[float, Coming]] = deque()
        self._is_looking = False

    def expect(self, body: Coming) -> None:
        """Let a body come, for a second."""
        loop = asyncio.get_running_loop()
        self._coming.append((loop.time() + _PATIENCE_S, body))
        if not self._is_looking:
            self._is_looking = True
            loop.call_later(_LOOK_S, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        left: deque[tuple[float, Coming]] = deque()
        for due_s, body in self._coming:
            if body.done():
                continue
            if due_s <= now_s:
                body.cancel()
            else:
                left.append((due_s, body))
        self._coming = left
        self._is_looking = bool(left)
        if left:
            loop.call_later(_LOOK_S, self._look, loop)
