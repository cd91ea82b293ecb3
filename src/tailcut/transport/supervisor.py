"""The parent of the worker process: drains it on SIGTERM, kills it where it does not stop, and reports how it ended.

After SIGTERM or SIGINT the worker drains for ``drain_s``: not ready, and ``Connection: close`` on every reply, so that
busy keep-alive connections end between two requests instead of losing one. Then it is told to stop, and killed where it
has not ended at ``kill_s``. A second signal skips the rest of the drain.

Service managers send SIGTERM to the supervisor, to all of its process group, or (by mistake) to the worker alone. All
three do the same, because the worker does not stop on SIGTERM: the two processes tell one another with signals of
their own. Supervisor to worker: SIGUSR1 drain, SIGUSR2 stop. Worker to supervisor: SIGUSR2 I was told to stop.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NamedTuple

log = logging.getLogger("tailcut.server")

STOP = signal.SIGUSR2
"""What the supervisor stops its worker with; SIGTERM and SIGINT may come from anybody."""

_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, STOP, signal.SIGCHLD)
_LEAST_KILL_S = 0.1
"""Time that a worker has to end, at least, before it is killed."""


_REPEAT_S = 0.3
"""A signal within it of the first is the same request to stop: a terminal and a wrapper may both send one."""


class WorkerExit(NamedTuple):
    """How a worker ended.

    Attributes:
        exit_code: negative for the signal that ended it.
        asked: whether it was told to.
        killed: whether the supervisor killed it, because it did not stop in time.
    """

    exit_code: int
    asked: bool
    killed: bool = False


class Supervisor:
    """Starts one worker process by a fork, and waits for its end. For the main thread, once.

    Args:
        work: serves, in the worker; returns after ``STOP``.
        drain_s: from the signal until the worker is told to stop.
        kill_s: from the signal until it is killed.
        on_started: called in this process once the worker has begun.
    """

    def __init__(
        self, work: Callable[[], object], *, drain_s: float, kill_s: float, on_started: Callable[[], object]
    ) -> None:
        self._work = work
        self._drain_s = drain_s
        self._kill_s = max(kill_s - drain_s, _LEAST_KILL_S)
        self._on_started = on_started
        self._process = multiprocessing.get_context("fork").Process(target=self._run_worker)
        self._pipe = -1, -1
        """Numbers of signals, written by the interpreter."""
        self._signalled_s = math.inf
        self._draining = False
        self._stopping = False
        self._killed = False
        self._due_s = math.inf
        """When the drain, or then the time to stop, is over; of the monotonic clock."""

    def run(self) -> WorkerExit:
        """Serve until the worker has ended."""
        # Inherited by the worker: told to drain before it listens for that, it must not die of it.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self._pipe = reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # The word to drain waits in the worker, too, until that listens for it.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {*_HEARD, signal.SIGUSR1})
        for number in _HEARD:
            # The number goes to the pipe, whichever thread the kernel chose; handlers run in the main thread only.
            signal.signal(number, _note)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self._on_started()
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        while self._process.exitcode is None:
            left_s = self._due_s - time.monotonic()
            if left_s <= 0:
                self._end_phase()
                continue
            poll.poll(None if left_s == math.inf else math.ceil(left_s * 1e3))
            with suppress(BlockingIOError):
                for heard in os.read(reading, 4096):
                    self._hear(heard)
        return WorkerExit(self._process.exitcode, self._draining, self._killed)

    def _run_worker(self) -> None:
        """Serve, in the worker. Until it has handlers of its own, signals that others sent do nothing."""
        signal.set_wakeup_fd(-1)
        for end in self._pipe:
            os.close(end)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(STOP, _exit)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
        self._work()

    def _hear(self, number: int) -> None:
        if number in {signal.SIGTERM, signal.SIGINT}:
            now_s = time.monotonic()
            if now_s - self._signalled_s >= _REPEAT_S:
                self._stop()
            if self._signalled_s < math.inf:
                return
            self._signalled_s = now_s
            if self._drain_s > 0:
                log.info("draining for %g s; Ctrl-C or SIGTERM again stops now", self._drain_s)
            self._drain()
        elif number == STOP:
            # The worker's word that it was told to stop; it may come before or after a SIGTERM of one's own.
            self._drain()
        elif number == signal.SIGHUP:
            # A second worker beside the first would share its port, and connections be lost at the change.
            log.warning("SIGHUP ignored; to reload, start a new server and stop this one with SIGTERM")

    def _drain(self) -> None:
        if self._draining:
            return
        self._draining = True
        if self._drain_s > 0:
            self._tell(signal.SIGUSR1)
            self._due_s = time.monotonic() + self._drain_s
        else:
            self._stop()

    def _stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._tell(STOP)
            self._due_s = time.monotonic() + self._kill_s

    def _end_phase(self) -> None:
        if not self._stopping:
            self._stop()
            return
        log.warning("killed the worker: it did not stop within %g s (server.kill)", self._drain_s + self._kill_s)
        self._tell(signal.SIGKILL)
        self._killed = True
        self._due_s = math.inf

    def _tell(self, number: signal.Signals) -> None:
        pid = self._process.pid
        # It is reaped by this thread alone, so that the number is no other process's yet.
        if pid is not None and self._process.exitcode is None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _note(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the number is in the pipe."""


def _exit(_number: int, _frame: FrameType | None) -> None:
    """End a worker that has not come to its own handlers: nothing is served that could be lost."""
    os._exit(0)
