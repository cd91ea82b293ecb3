"""The executor whose batches run in a process of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter_ns

from tailcut.common.tensors import Arrays
from tailcut.errors import TailcutError
from tailcut.models.batch_item import BatchItem, check_rows, failed, part
from tailcut.models.executors.in_process import Done, Executor
from tailcut.models.runtimes.remote import RemoteRuntime
from tailcut.models.runtimes.remote.messages import BatchFailed, Ran

Lost = Callable[[Executor, TailcutError], None]
"""Called on the event loop, once, with the executor and what became of it: it runs nothing any more."""


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
        self._sent_ns = 0
        self._reads = True
        runtime.listen()
        loop.add_reader(runtime.connection.fileno(), self._readable)
        if runtime.ended >= 0:  # what the model started may hold the connection open after the process
            loop.add_reader(runtime.ended, self._died)

    def start(self, batch: Sequence[BatchItem]) -> None:
        self._batch, self._sent_ns = batch, perf_counter_ns()
        try:
            self.runtime.send([item.inputs for item in batch], batch[0].outputs)
        except OSError:
            # The reader is told too, but perhaps of nothing more: a child that was killed while idle.
            self._loop.call_soon(self._ended, self.runtime.lost())
        except Exception as error:
            rows = sum([item.rows for item in batch])
            self._finish(failed(error, rows), self._sent_ns, perf_counter_ns())

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
        except TailcutError as error:
            self._ended(error)
            return
        except MemoryError:  # for the copy: the batch would wait for ever
            self._ended(self.runtime.lost())
            return
        if isinstance(reply, BatchFailed):
            rows = sum([item.rows for item in self._batch])
            self._finish(failed(reply.error, rows), reply.started_ns, reply.finished_ns)
        elif isinstance(reply, Ran):
            self._answered(outputs, reply)

    def _died(self) -> None:
        self._loop.remove_reader(self.runtime.ended)
        self._loop.call_soon(self._gone)  # after what it said before it died, which can be read now too

    def _gone(self) -> None:
        if self._reads:
            self._ended(self.runtime.lost())

    def _answered(self, outputs: Arrays, reply: Ran) -> None:
        batch = self._batch
        result: list[Arrays] | TailcutError
        try:
            check_rows(outputs, sum([item.rows for item in batch]))
            result = part(outputs, batch)
        except TailcutError as error:
            result = error
        self._finish(result, reply.started_ns, reply.finished_ns)

    def _finish(self, result: list[Arrays] | TailcutError, started_ns: int, finished_ns: int) -> None:
        batch, self._batch = self._batch, ()
        self._done(self, batch, result, started_ns, finished_ns)

    def _ended(self, error: TailcutError) -> None:
        if self._reads:
            self.detach()
            self._lost(self, error)
