"""Runs models that answer in parts: each stream in a thread of its own, its parts handed to the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from time import perf_counter_ns
from typing import Any

from tailcut.common.tensors import Arrays
from tailcut.common.timings import Stage
from tailcut.errors import BadRequest, InferenceError, InferTimeout, NotReady, Shed
from tailcut.models.batch_item import failed
from tailcut.models.runtimes.base import StreamingRuntime
from tailcut.models.runtimes.floats import take_mode_of_models
from tailcut.models.shared_runtime import borrow
from tailcut.pipeline.request_context import RequestContext

_AHEAD = 16
"""Parts that a runtime may be ahead of what the server has taken, which takes no more than its client does; over HTTP/2
up to ``server.max_stream`` more."""

MAX_STREAMS = 64

_Part = Arrays | BaseException | None


class Streams:
    """The streams of one deployment. Owned by the event loop.

    They go past the scheduler: parts of several requests cannot share a batch. What bounds them is their number.

    Attributes:
        are_stopping: whether every stream ends, at its next part at the latest.
    """

    def __init__(self) -> None:
        self._open: set[_Stream] = set()
        """With a thread that has not ended, whether or not somebody still reads."""
        self._running: set[_Stream] = set()
        self.are_stopping = False

    def stop(self) -> None:
        """End every stream with an error; those that begin from now on, too: they would hold a stop up."""
        self.are_stopping = True
        for stream in self._running:
            stream.parts.put_nowait(None)  # wakes the request that waits for a part

    def check_room(self) -> None:
        """Refuse one stream too many; raises Shed, and NotReady where all end."""
        self._check_stop()
        if len(self._open) >= MAX_STREAMS:
            raise Shed(
                f"{len(self._open)} streams are open, the limit is {MAX_STREAMS}",
                hint="retry after Retry-After seconds, when another stream has ended",
            )

    async def run(
        self, context: RequestContext, runtime: StreamingRuntime, inputs: Arrays, outputs: Sequence[str]
    ) -> AsyncGenerator[Arrays, None]:
        """Yield the parts of one answer; close it to let the runtime stop.

        Args:
            runtime: stays open until the stream has ended, whatever becomes of its executor.
            inputs: every input, of one row.
            outputs: names wanted.

        Raises:
            Shed: too many streams are open.
            NotReady: the server is shutting down.
            InferenceError: the runtime raised, or a part lacks an output.
            InferTimeout: the deadline passed.
            CancelledError: the client is gone.
        """
        self.check_room()
        stream = _Stream(runtime, inputs, outputs, asyncio.get_running_loop())
        self._open.add(stream)
        self._running.add(stream)
        stream.thread_ended.add_done_callback(lambda _: self._open.discard(stream))
        try:
            stream.start()
            while (part := await self._next(context, stream)) is not None:
                yield part
                stream.room.release()
        finally:
            self._running.discard(stream)
            stream.end()
            context.timings.lap(Stage.INFER, perf_counter_ns())

    async def _next(self, context: RequestContext, stream: _Stream) -> Arrays | None:
        """Wait for one part; None at the end."""
        self._check_stop()
        left_s = (context.deadline_ns - perf_counter_ns()) / 1e9
        # A task of its own, so that it can be cancelled when the client goes.
        context.waiting = waiting = asyncio.ensure_future(stream.parts.get())
        try:
            part = await asyncio.wait_for(waiting, max(left_s, 0))
        except TimeoutError:
            raise InferTimeout(
                "the deadline passed before the stream ended",
                hint="send a longer timeout in x-tailcut-timeout-ms, up to server.max_timeout",
            ) from None
        finally:
            context.waiting = None
        if isinstance(part, BaseException):
            raise failed(part, 1) from part
        if part is not None and (missing := [name for name in stream.outputs if name not in part]):
            raise InferenceError(
                f"the model yielded a part without the output {missing[0]!r}, which the request asks for",
                hint="let the model's stream yield every requested output in each part, or request fewer outputs",
            )
        self._check_stop()
        return part

    def _check_stop(self) -> None:
        if self.are_stopping:
            raise NotReady("the server is shutting down", hint="retry later or on another server")


def streaming_of(runtimes: Sequence[Any]) -> StreamingRuntime | None:
    """Return what streams of the runtimes that were opened; None where the model does not."""
    first = runtimes[0] if runtimes else None
    return first if isinstance(first, StreamingRuntime) else None


def no_stream(name: str) -> BadRequest:
    """Return the error for a stream that is asked of a model that answers at once."""
    return BadRequest(f"model {name!r} does not stream", hint="post the request to generate or infer")


class _Stream:
    """One thread that produces, as far ahead as there is room."""

    def __init__(
        self, runtime: StreamingRuntime, inputs: Arrays, outputs: Sequence[str], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._runtime = runtime
        self._inputs = inputs
        self.outputs = outputs
        self._loop = loop
        self._ended = threading.Event()
        self.parts: asyncio.Queue[_Part] = asyncio.Queue()
        self.room = threading.Semaphore(_AHEAD)
        self.thread_ended: asyncio.Future[None] = loop.create_future()
        self._give_back = borrow(runtime)

    def start(self) -> None:
        try:
            threading.Thread(target=self._produce, name="tailcut-stream", daemon=True).start()
        except BaseException:
            self._give_back()
            self.thread_ended.set_result(None)
            raise

    def end(self) -> None:
        """Let the thread stop after the part that it is making."""
        self._ended.set()
        self.room.release()

    def _produce(self) -> None:
        last: BaseException | None = None
        take_mode_of_models()
        try:
            parts = iter(self._runtime.stream(self._inputs, self.outputs))
            try:
                for part in parts:
                    self.room.acquire()
                    if self._ended.is_set():
                        break
                    self._call(self.parts.put_nowait, part)
            finally:
                close = getattr(parts, "close", None)
                if close is not None:
                    close()
        except BaseException as error:  # SystemExit, say, of the user's code
            last = error
        self._call(self.parts.put_nowait, last)
        self._call(self.thread_ended.set_result, None)
        self._give_back()

    def _call(self, function: Any, *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            self._ended.set()  # the loop is closed
