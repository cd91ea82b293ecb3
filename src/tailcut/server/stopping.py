"""The stop of Granian's worker: on a signal of our own, and after what has to end before it.

Granian has no setting for the signals, and once set its handlers cannot be called or moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import granian._signals
from granian._granian import WorkerSignal
from granian.server.mp import MPServer

from tailcut.server.signals import STOP

_first: list[Callable[[], None]] = []  # of this process, which is one worker


def spawn(*arguments: Any) -> None:
    """Run Granian's worker with its stop moved to ``STOP``, inside the worker."""
    granian._signals.set_loop_signals = _set_loop_signals
    MPServer._spawn_rsgi_worker(*arguments)


def before_stop(do: Callable[[], None]) -> None:
    """Have something done on ``STOP`` before Granian waits for the requests that are open."""
    _first.append(do)


def _set_loop_signals(loop: asyncio.AbstractEventLoop) -> WorkerSignal:
    stopped = WorkerSignal()
    loop.add_signal_handler(STOP, _stop, stopped)
    return stopped


def _stop(stopped: WorkerSignal) -> None:
    try:
        for do in _first:
            do()
    finally:
        stopped.set()
