"""What runs a batch on a variant: inline (on the event loop) or in a thread of its own."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Protocol

from tailcut.common.tensors import Arrays
from tailcut.errors import TailcutError
from tailcut.models.batch_item import BatchItem, failed, run_batch, run_rows
from tailcut.models.runtimes.base import Runtime
from tailcut.models.runtimes.floats import mode_of_models, take_mode_of_models

THREADS = "tailcut-executor-"
"""What the names of the threads begin with in which models run."""

Done = Callable[["Executor", Sequence[BatchItem], "list[Arrays] | TailcutError", int, int], None]
"""Called on the event loop with the executor, its batch, the outputs or the error, and the start and end in ns."""


class Executor(Protocol):
    """Runs one batch at a time."""

    def start(self, batch: Sequence[BatchItem]) -> None:
        """Begin a batch; ``done`` is called once, on the event loop, when it has ended."""
        ...

    def close(self, timeout_s: float) -> None:
        """Stop after the running batch and free the runtime; waits for at most ``timeout_s``."""
        ...


def _attempt(runtime: Runtime, batch: Sequence[BatchItem]) -> list[Arrays] | TailcutError:
    try:
        return run_batch(runtime, batch)
    except TailcutError as error:
        return error
    except BaseException as error:  # SystemExit, say, which would end the server
        return failed(error, sum([item.rows for item in batch]))


class InlineExecutor:
    """Runs batches on the event loop: no hand-over cost, but nothing else happens meanwhile (models under 1 ms)."""

    def __init__(self, runtime: Runtime, done: Done) -> None:
        self._runtime = runtime
        self._done = done

    def start(self, batch: Sequence[BatchItem]) -> None:
        started_ns = perf_counter_ns()
        with mode_of_models():
            result = _attempt(self._runtime, batch)
        self._done(self, batch, result, started_ns, perf_counter_ns())

    def run_now(self, inputs: Arrays, rows: int, outputs: Sequence[str]) -> Arrays:
        """Run rows without an item; raises what ``run_rows`` raises."""
        try:
            with mode_of_models():
                return run_rows(self._runtime, inputs, rows, outputs)
        except TailcutError:
            raise
        except BaseException as error:
            raise failed(error, rows) from error

    def close(self, timeout_s: float) -> None:
        self._runtime.close()


class ThreadExecutor:
    """Runs batches in one thread of its own; the runtime releases the GIL while it computes."""

    def __init__(self, runtime: Runtime, done: Done, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._runtime = runtime
        self._done = done
        self._loop = loop
        self._inbox: queue.SimpleQueue[Sequence[BatchItem] | None] = queue.SimpleQueue()
        # A daemon: a hung model must not keep the process alive past kill_s.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def start(self, batch: Sequence[BatchItem]) -> None:
        self._inbox.put(batch)

    def close(self, timeout_s: float) -> None:
        self._inbox.put(None)
        self._thread.join(timeout_s)

    def _work(self) -> None:
        take_mode_of_models()
        while (batch := self._inbox.get()) is not None:
            started_ns = perf_counter_ns()
            result = _attempt(self._runtime, batch)
            finished_ns = perf_counter_ns()
            try:
                self._loop.call_soon_threadsafe(self._done, self, batch, result, started_ns, finished_ns)
            except RuntimeError:
                break  # the loop is closed: nobody is left to be told
            del batch, result  # an idle thread keeps nobody's arrays
        self._runtime.close()
