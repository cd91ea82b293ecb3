"""Wait for a condition by polling, where the code under test signals nothing."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

from tailcut.store import StoreWriter

PERIOD_S = 0.002
PATIENCE_S = 30.0


async def until(holds: Callable[[], object | Awaitable[object]], within_s: float = PATIENCE_S) -> None:
    """Let the loop run until a condition holds.

    Raises:
        TimeoutError: it did not hold in time.
    """
    async with asyncio.timeout(within_s):
        while True:
            found = holds()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(PERIOD_S)


def block_until(holds: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Block this thread until a condition holds.

    Raises:
        TimeoutError: it did not hold in time.
    """
    give_up_s = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > give_up_s:
            raise TimeoutError(f"the condition did not hold within {within_s:g} s")
        time.sleep(PERIOD_S)


def wait_written(writer: StoreWriter, within_s: float = PATIENCE_S) -> None:
    """Block this thread until a writer has tried to write all that was submitted.

    Raises:
        TimeoutError: it had not in time.
    """
    block_until(lambda: not writer._arriving.unfinished_tasks, within_s)
