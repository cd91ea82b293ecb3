"""How a thread that loads a model gives way to those that serve: by its priority, and by short turns with the GIL."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_NICENESS = 10
"""Priority of a loading thread. Not the lowest, 19: where it runs Python it holds the lock that the event loop waits
for, and on a busy machine a thread of the lowest priority holds it for long."""

_GIL_INTERVAL_S = 0.0005
"""How long a loading thread that runs Python may keep the event loop waiting; Python's own default is 5 ms."""

_LOOK_S = 1.0
_STARVED_SHARE = 0.1
"""Of a core. A loader that wants one and had less meanwhile steps aside no more: on a machine that is busy all the time
it would come to no end, and it may be loading what is to end just that. Its low priority alone leaves it a tenth, even
then: whoever had more aside would win nothing, and take from those who serve what they need to get over a burst."""


class Loader:
    """A thread that loads: it steps aside while that lets it go on. Used as a context, in that thread."""

    def __init__(self) -> None:
        self.thread = threading.get_native_id()
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._lock = threading.Lock()
        self._before: set[int] | None = None
        self._starved = False
        self._ended = threading.Event()

    def __enter__(self) -> None:
        threading.Thread(target=self.watch, name="tailcut-watch", daemon=True).start()
        LOADERS[threading.get_ident()] = self

    def __exit__(self, *_: object) -> None:
        del LOADERS[threading.get_ident()]
        self._ended.set()

    def begin(self) -> None:
        """Step aside."""
        before = _threads()
        with self._lock:
            if not self._starved:
                self._before = before
                _schedule(self.thread, os.SCHED_IDLE)

    def end(self) -> None:
        """Step back, with the threads that were started meanwhile."""
        with self._lock:
            before, self._before = self._before, None
            if before is not None:
                _step_back(self.thread, before)

    def watch(self) -> None:
        """Look now and then, until the context ends, whether the thread goes on; in a thread of its own."""
        with suppress(OSError):  # it has ended: so has its clock
            used_s, looked_s = _clocks(self._clock)
            while not self._ended.wait(_LOOK_S):
                now_used_s, now_s = _clocks(self._clock)
                if now_used_s - used_s < _STARVED_SHARE * (now_s - looked_s) and _wants_core(self.thread):
                    with self._lock:
                        self._starved = True
                        if self._before is not None:
                            _step_back(self.thread, self._before)
                    return
                used_s, looked_s = now_used_s, now_s


LOADERS: dict[int, Loader] = {}
"""Who loads, by ``threading.get_ident()``, and may step aside: see ``aside``. Empty nearly always, so that who runs
batches looks here first."""


@contextmanager
def low_priority() -> Iterator[None]:
    """Let this thread give way to all others of the process while it runs the block.

    Threads inherit a priority from the thread that starts them, so those that a runtime starts inside are put back
    at the end. Where that is not permitted (nobody may raise a priority again without CAP_SYS_NICE or RLIMIT_NICE)
    this thread keeps its own: a pool that stayed slow for good would be worse than a disturbance of seconds. See
    ``lower_priority`` for where no pool is started.
    """
    before = _threads()
    usual = _priority()
    restores, returns = _permitted()
    with Loader() if restores and returns else nullcontext():
        if restores:
            lower_priority()
        try:
            with short_turns():
                yield
        finally:
            if restores:
                for thread in _started(before) | {threading.get_native_id()}:
                    with suppress(OSError):
                        os.setpriority(os.PRIO_PROCESS, thread, usual)


def aside(work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Do work without the GIL; where this thread is one of ``LOADERS``, with what others leave of the processor.

    For native code that runs for milliseconds and holds the GIL for next to none of them: Linux's SCHED_IDLE, under
    which a thread never takes the turn of one that serves, as one of low priority does now and then. Three kinds of
    reloads in turns (MiniLM INT8 at half of capacity on one core, 25 of each): requests that came meanwhile had 0.96
    (0.86 to 1.07) of the p99 before with it, 1.26 (1.10 to 1.36) without, 0.99 (0.85 to 1.30) where none was reloaded.
    With the GIL such a thread could keep the event loop waiting for others who compute, so that the rest of the loading
    runs under ``low_priority`` alone; so does all of it where it hardly comes to its turn. Threads that are started
    inside inherit it, and are put back.
    """
    loader = LOADERS.get(threading.get_ident())
    if loader is None:
        return work(*args, **options)
    loader.begin()
    try:
        return work(*args, **options)
    finally:
        loader.end()


def _step_back(loader: int, before: set[int]) -> None:
    # What the server's threads have now, not what this one had before:
    # ``transport.worker`` may have changed it since.
    usual = os.sched_getscheduler(os.getpid())
    # First of all itself: it may hold the GIL.
    _schedule(loader, usual)
    for thread in _started(before):
        with suppress(OSError):
            if os.sched_getscheduler(thread) == os.SCHED_IDLE:
                _schedule(thread, usual)


def _schedule(thread: int, policy: int) -> None:
    with suppress(OSError):  # it has ended
        os.sched_setscheduler(thread, policy, os.sched_param(0))


def _clocks(clock: int) -> tuple[float, float]:
    return time.clock_gettime(clock), time.monotonic()


def _wants_core(thread: int) -> bool:
    """Whether a thread computes or waits for a core (and not for a disk, a lock, or others who compute for it)."""
    # https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html: the state follows the name, which may hold anything.
    with open(f"/proc/self/task/{thread}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "R"


@contextmanager
def short_turns() -> Iterator[None]:
    """Let no thread hold the GIL for long while the block runs; blocks may overlap, the last one puts it back."""
    with _TURNS_LOCK:
        _TURNS.append(sys.getswitchinterval())
        sys.setswitchinterval(min(_TURNS[0], _GIL_INTERVAL_S))
    try:
        yield
    finally:
        with _TURNS_LOCK:
            before_s = _TURNS.pop()
            if not _TURNS:
                sys.setswitchinterval(before_s)


_TURNS_LOCK = threading.Lock()
_TURNS: list[float] = []
"""The interval before each block that runs, of the whole process; the first is the usual one."""


def lower_priority() -> None:
    """Let this thread, and those that it starts from now on, give way to all others of the process; Linux only."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(_NICENESS, _priority()))


def _priority() -> int:
    # On Linux PRIO_PROCESS with a thread's id means that thread alone.
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) if sys.platform == "linux" else 0


def _permitted() -> tuple[bool, bool]:
    """Whether a thread may raise its priority again, and whether it may leave SCHED_IDLE again.

    Tried in a thread that ends afterwards: where it is not permitted, what was tried cannot be taken back.
    """
    raised, left = [], []

    def trial() -> None:
        me, usual, policy = threading.get_native_id(), _priority(), os.sched_getscheduler(0)
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, me, usual + 1)
            os.setpriority(os.PRIO_PROCESS, me, usual)
            raised.append(True)
        with suppress(OSError):
            lower_priority()  # leaving is permitted by the priority that a thread has then
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setscheduler(0, policy, os.sched_param(0))
            left.append(True)

    if sys.platform == "linux":
        thread = threading.Thread(target=trial, name="tailcut-trial", daemon=True)
        thread.start()
        thread.join()
    return bool(raised), bool(left)


def _started(before: set[int]) -> set[int]:
    """Return the threads that were started since, but for others who load, who see to themselves."""
    return _threads() - before - {loader.thread for loader in list(LOADERS.values())}


def _threads() -> set[int]:
    with suppress(OSError):
        return {int(name) for name in os.listdir("/proc/self/task")}
    return set()
