"""Loading in the background: in a thread of low priority, and dropped where it is no longer wanted."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from tailcut.errors import StartError, TailcutError
from tailcut.models.runtimes.floats import take_mode_of_models
from tailcut.models.runtimes.priority import low_priority

T = TypeVar("T")


async def in_background(work: Callable[[], T], drop: Callable[[T], None]) -> T:
    """Run blocking work in a thread of its own and of low priority; a daemon, so that it holds up no exit.

    Args:
        drop: closes a result that is no longer wanted; runs in a thread, because it may take seconds.

    Raises:
        TailcutError: what ``work`` raised; a StartError where that was something else.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: list[T], error: TailcutError | None) -> None:
        if future.done():
            for each in result:
                close_later(drop, each)
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result[0])

    def run() -> None:
        result: list[T] = []
        error: TailcutError | None = None
        take_mode_of_models()  # warm runs take as long as those of requests
        try:
            with low_priority():
                result.append(work())
        except BaseException as raised:  # the user's code may raise SystemExit
            error = foreseen(raised)
        try:
            loop.call_soon_threadsafe(deliver, result, error)
        except RuntimeError:  # the loop is closed: nothing waits for the result
            for each in result:
                drop(each)

    context = contextvars.copy_context()  # its log lines name the model
    threading.Thread(target=context.run, args=(run,), name="tailcut-loader", daemon=True).start()
    try:
        return await future
    except asyncio.CancelledError:
        if future.done():  # the result may have arrived already, and this task not have had its turn since
            _drop(drop, future)
        raise


async def in_thread(work: Callable[[], T], drop: Callable[[T], None]) -> T:
    """Run blocking work in a thread.

    Args:
        drop: closes a result that is no longer wanted; see ``in_background``.
    """
    future = asyncio.get_running_loop().run_in_executor(None, contextvars.copy_context().run, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(partial(_drop, drop))
        raise


def close_later(close: Callable[[T], None], opened: T) -> None:
    """Close what was opened, in a thread: that may take seconds. Cancelling the caller does not prevent it."""
    threading.Thread(target=close, args=(opened,), name="tailcut-closer", daemon=True).start()


def abandon(opening: asyncio.Task[T], drop: Callable[[T], None]) -> None:
    """Wait no more for what is being opened, and let go of it where it is open by now; nobody else may have it."""
    opening.cancel()
    opening.add_done_callback(partial(_drop, drop))


def _drop(drop: Callable[[T], None], opening: asyncio.Future[T]) -> None:
    """Close the result of a future that is done, where it has one."""
    if not opening.cancelled() and opening.exception() is None:
        close_later(drop, opening.result())


def foreseen(error: BaseException) -> TailcutError:
    """Return an error as it is, or what nobody foresaw as the cause of one that says so."""
    if isinstance(error, TailcutError):
        return error
    found = StartError(f"unexpected {type(error).__name__}: {error}", hint="see the server's log")
    found.__cause__ = error
    return found
