"""Runtimes that streams use beside their executor: each is closed when the last who uses it has let go of it.

Executors know when their last batch has ended, but nothing of streams, which go past the dispatcher.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from tailcut.common.tensors import Arrays
from tailcut.models.runtimes.base import Runtime, StreamingRuntime


class LentRuntime:
    """A streaming runtime; ``close`` waits for nobody and takes effect when nobody uses it any more.

    Args:
        runtime: owned from now on.
    """

    def __init__(self, runtime: StreamingRuntime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._users = 0
        self._to_close = False

    @property
    def in_use(self) -> bool:
        """Whether a stream runs."""
        return self._users > 0

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run one batch; see ``Runtime.run``."""
        return self._runtime.run(inputs, outputs)

    def stream(self, inputs: Arrays, outputs: Sequence[str]) -> Iterator[Arrays]:
        """Answer one row in parts; see ``StreamingRuntime.stream``."""
        return self._runtime.stream(inputs, outputs)

    def borrow(self) -> None:
        """Keep it open until it is given back."""
        with self._lock:
            self._users += 1

    def give_back(self) -> None:
        """Use it no more; blocks for as long as closing takes, where that is what the runtime is waiting for."""
        with self._lock:
            self._users -= 1
            closes = self._to_close and not self._users
        if closes:
            self._runtime.close()

    def close(self) -> None:
        """Free what the runtime holds, now or when the last stream has ended."""
        with self._lock:
            self._to_close = True
            closes = not self._users
        if closes:
            self._runtime.close()


def lendable(runtime: Runtime) -> Runtime:
    """Return a runtime whose streams keep it open, where it streams."""
    return LentRuntime(runtime) if isinstance(runtime, StreamingRuntime) else runtime


def is_lent(runtime: Runtime) -> bool:
    """Whether a stream uses a runtime."""
    return isinstance(runtime, LentRuntime) and runtime.in_use


def borrow(runtime: StreamingRuntime) -> Callable[[], None]:
    """Keep a runtime open for a stream; return what gives it back, from any thread."""
    if not isinstance(runtime, LentRuntime):
        return _keep
    runtime.borrow()
    return runtime.give_back


def _keep() -> None:
    """Do nothing: whoever opened the runtime closes it after the stream."""
