"""Executors: what runs a batch, on the event loop (inline), in a thread or in a process of its own."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, Generic, Protocol, TypeVar

from tailcut.common.tensors import Arrays
from tailcut.errors import TailcutError
from tailcut.models.batch_item import BatchItem, check_rows, failed, part, run_batch, run_rows
from tailcut.models.runtimes.base import Runtime
from tailcut.models.runtimes.floats import mode_of_models, take_mode_of_models
from tailcut.models.runtimes.remote import RemoteRuntime
from tailcut.models.runtimes.remote.messages import BatchFailed, Ran

J = TypeVar("J")

THREADS = "tailcut-executor-"
"""What the names of the threads begin with in which models run."""

Done = Callable[["Executor", Sequence[BatchItem], "list[Arrays] | TailcutError", int, int], None]
"""Called on the event loop with the executor, its batch, the outputs or the error, and the start and end in ns."""


Lost = Callable[["Executor", TailcutError], None]
"""Called on the event loop, once, with the executor and what became of it: it runs nothing any more."""


class Executor(Protocol):
    """Runs one batch at a time."""

    def start(self, batch: Sequence[BatchItem], /) -> None:
        """Begin a batch; ``done`` is called once, on the event loop, when it has ended."""

    def close(self, timeout_s: float) -> None:
        """Stop after the running batch and free the runtime; waits for at most ``timeout_s``."""


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


class JobThread(Generic[J]):
    """A thread that does one job at a time and hands each result to the event loop.

    Args:
        attempt: does a job; returns its error where it fails.
        done: called on the event loop with this thread, the job, what ``attempt`` returned, its start and its end.

    Attributes:
        start: takes a job; None ends the thread.
    """

    def __init__(
        self, attempt: Callable[[J], Any], done: Callable[..., None], loop: asyncio.AbstractEventLoop, name: str
    ) -> None:
        self._attempt = attempt
        self._done = done
        self._loop = loop
        self._inbox: queue.SimpleQueue[J | None] = queue.SimpleQueue()
        self.start: Callable[[J | None], None] = self._inbox.put
        # A daemon: what hangs must not keep the process alive past kill_s.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (job := self._inbox.get()) is not None:
            started_ns = perf_counter_ns()
            result = self._attempt(job)
            finished_ns = perf_counter_ns()
            try:
                self._loop.call_soon_threadsafe(self._done, self, job, result, started_ns, finished_ns)
            except RuntimeError:
                break  # the loop is closed: nothing waits for the result
            del job, result  # an idle thread must not keep arrays alive


class ThreadExecutor(JobThread[Sequence[BatchItem]]):
    """Runs batches in one thread of its own; the runtime releases the GIL while it computes."""

    def __init__(self, runtime: Runtime, done: Done, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._runtime = runtime
        super().__init__(partial(_attempt, runtime), done, loop, name)

    def close(self, timeout_s: float) -> None:
        self.start(None)
        self._thread.join(timeout_s)

    def _work(self) -> None:
        take_mode_of_models()
        super()._work()
        self._runtime.close()


class ProcessExecutor:
    """Runs batches in a child process; crashes and memory that leaks stay there.

    Costs two copies of the tensors and a wake-up on each side: about 0.1 ms a batch. For models that hold the GIL, that
    crash, or that leak.

    Args:
        runtime: open and warm; owned from now on.
        lost: told when the process is gone without having been closed.
    """

    def __init__(self, runtime: RemoteRuntime, done: Done, lost: Lost, loop: asyncio.AbstractEventLoop) -> None:
        self.runtime = runtime
        self._done = done
        self._lost = lost
        self._loop = loop
        self._batch: Sequence[BatchItem] = ()
        self._reads = True
        runtime.listen()
        loop.add_reader(runtime.connection.fileno(), self._readable)
        if runtime.ended >= 0:  # what the model started may hold the connection open after the process
            loop.add_reader(runtime.ended, self._died)

    def start(self, batch: Sequence[BatchItem]) -> None:
        self._batch, sent_ns = batch, perf_counter_ns()
        try:
            self.runtime.send([item.inputs for item in batch], batch[0].outputs)
        except OSError:
            # The reader is told too, but perhaps of nothing more: a child that was killed while idle.
            self._loop.call_soon(self._ended)
        except Exception as error:
            rows = sum([item.rows for item in batch])
            self._finish(failed(error, rows), sent_ns, perf_counter_ns())

    def kill(self) -> None:
        """End the process at once; ``lost`` is called as soon as the event loop sees it."""
        self.runtime.kill()

    def detach(self) -> None:
        """Listen to the process no more; call it on the event loop before ``close`` where that runs in a thread."""
        if self._reads:
            self._reads = False
            self._loop.remove_reader(self.runtime.connection.fileno())
            if self.runtime.ended >= 0:
                self._loop.remove_reader(self.runtime.ended)

    def close(self, timeout_s: float) -> None:
        self.detach()
        self.runtime.close(timeout_s)

    def _readable(self) -> None:
        try:
            reply = self.runtime.receive()
            outputs = self.runtime.take(reply) if isinstance(reply, Ran) else {}
        except (TailcutError, MemoryError):  # no memory for the copy: the batch would wait for ever
            self._ended()
            return
        rows = sum([item.rows for item in self._batch])
        if isinstance(reply, BatchFailed):
            self._finish(failed(reply.error, rows), reply.started_ns, reply.finished_ns)
        elif isinstance(reply, Ran):
            result: list[Arrays] | TailcutError
            try:
                check_rows(outputs, rows)
                result = part(outputs, self._batch)
            except TailcutError as error:
                result = error
            self._finish(result, reply.started_ns, reply.finished_ns)

    def _died(self) -> None:
        self._loop.remove_reader(self.runtime.ended)
        self._loop.call_soon(self._ended)  # after what it said before it died, which can be read now too

    def _finish(self, result: list[Arrays] | TailcutError, started_ns: int, finished_ns: int) -> None:
        batch, self._batch = self._batch, ()
        self._done(self, batch, result, started_ns, finished_ns)

    def _ended(self) -> None:
        if self._reads:
            error = self.runtime.lost()
            self.detach()
            self._lost(self, error)
