"""A daemon thread with a bounded queue: it does work that must not hold up the thread that hands it over."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger("tailcut.server")

T = TypeVar("T")


class WorkerThread(Generic[T]):
    """Does work in a thread of its own, in order. ``put`` never waits, and is for one thread at a time.

    The thread starts with ``start``, so that a process can fork before it. It survives what the work raises: the first
    error is logged, all are counted.

    Args:
        name: of the thread.
        work: takes what waits, at most ``at_once`` items; none after a wait of ``every_s``, and perhaps in the end.
        loss: what an error of the work means, for the log.
        most, most_bytes: weight that may wait, and memory of what waits or is in work; further items are dropped.
        at_once: items that are taken together.
        every_s: longest wait for items; None: without end.
        wakes_at: weight that waits when ``put`` wakes the thread; what is less waits for ``every_s``.
        begin, end: called in the thread, before its first and after its last work.

    Attributes:
        errors: how often the work raised.
        closing: set where the thread is about to end, for work that waits.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[list[T]], object],
        loss: str,
        *,
        most: int,
        most_bytes: int = sys.maxsize,
        at_once: int = 1,
        every_s: float | None = None,
        wakes_at: int = 1,
        begin: Callable[[], object] = lambda: None,
        end: Callable[[], object] = lambda: None,
    ) -> None:
        self.errors = 0
        self.closing = threading.Event()
        self._name, self._work, self._loss = name, work, loss
        self._most, self._most_bytes, self._at_once = most, most_bytes, at_once
        self._every_s, self._wakes_at = every_s, wakes_at
        self._begin, self._end = begin, end
        self._queue: deque[tuple[T, int, int]] = deque()
        # One thread counts what is put, another one what is taken: what waits is the difference, and needs no lock.
        self._put = self._put_bytes = self._taken = self._taken_bytes = 0
        self._awake = threading.Event()
        self._flushes = True
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, where it was not started."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def has_room(self, weight: int = 1, size_bytes: int = 0) -> bool:
        """Return whether ``put`` would take an item."""
        return (
            self._put - self._taken + weight <= self._most
            and self._put_bytes - self._taken_bytes + size_bytes <= self._most_bytes
        )

    def put(self, item: T, weight: int = 1, size_bytes: int = 0) -> bool:
        """Hand an item over; return whether it was taken: none is without room for it, nor after ``close``."""
        put, put_bytes = self._put + weight, self._put_bytes + size_bytes
        waiting = put - self._taken
        if waiting > self._most or put_bytes - self._taken_bytes > self._most_bytes:
            return False
        self._put, self._put_bytes = put, put_bytes
        self._queue.append((item, weight, size_bytes))
        if waiting >= self._wakes_at and not self._awake.is_set():
            self._awake.set()
        return True

    def run_once(self) -> None:
        """Do the work that waits, in the calling thread."""
        left = len(self._queue)
        while True:
            taken = [self._queue.popleft() for _ in range(min(left, self._at_once))]
            left -= len(taken)
            self._taken += sum([weight for _, weight, _ in taken])
            items = [item for item, _, _ in taken]
            self._guarded(lambda: self._work(items))  # noqa: B023 - it is called at once
            self._taken_bytes += sum([size_bytes for _, _, size_bytes in taken])  # until then they take memory
            if not left:
                return

    def close(self, timeout_s: float, *, flush: bool = True) -> None:
        """End the thread, after what waits unless ``flush`` is off; it blocks, for at most ``timeout_s``."""
        self._most, self._flushes = -1, flush  # nothing has room any more
        self.closing.set()
        self._awake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        self._guarded(self._begin)
        is_closing = False
        while not is_closing:
            self._awake.wait(self._every_s)
            self._awake.clear()
            is_closing = self.closing.is_set()
            if self._flushes or not is_closing:
                self.run_once()
        self._guarded(self._end)

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception:  # without the thread nothing would be done any more
            self.errors += 1
            if self.errors == 1:
                log.exception("%s; later errors are only counted", self._loss)
