"""What the supervisor's main thread waits for, so that signals reach it."""

from __future__ import annotations

import time

_LOOK_S = 0.1


class Alert:
    """What granian's main loop waits for, in place of a ``threading.Event``.

    A signal that the kernel hands to another thread does not wake a main thread that waits for a lock, and Python runs
    handlers in the main thread only: a SIGTERM to the process group was lost so, now and then. And a handler that sets
    an event in whose lock the main thread stands would wait for itself.
    """

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self) -> bool:
        while not self._is_set:
            time.sleep(_LOOK_S)
        return True
