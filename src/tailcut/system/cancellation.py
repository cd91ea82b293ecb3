"""Whose a ``CancelledError`` is: that of the task it is raised in, or of something that the task awaits."""

from __future__ import annotations

import asyncio


def is_being_cancelled() -> bool:
    """Return whether the current task is being cancelled.

    If it is not, a ``CancelledError`` comes from what the task awaits, as when a client library cancels its own call.
    Raising it further would end the task although nobody asked for that.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
