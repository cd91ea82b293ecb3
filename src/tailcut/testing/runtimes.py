"""Runtimes without a model: one that answers as told, one that streams, and one that fails or hangs on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from tailcut.common.tensors import Arrays
from tailcut.errors import InferenceError
from tailcut.models.runtimes import Runtime


class StubRuntime:
    """Answers with what ``answer`` makes of the inputs, and remembers every batch.

    Args:
        answer: input arrays -> output arrays; by default each wanted output is the row sums of all inputs, (rows,)
            float32, so that every row's answer can be told from its neighbours'.

    Attributes:
        batches: the inputs of every call, in the order in which the calls began.
        closed: whether ``close`` was called.
    """

    def __init__(self, answer: Callable[[Arrays], Arrays] | None = None) -> None:
        self._answer = answer
        self.batches: list[Arrays] = []
        self.closed = False

    @property
    def rows(self) -> list[int]:
        """Rows of every batch so far."""
        return [len(next(iter(batch.values()))) for batch in self.batches]

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Answer one batch; see ``Runtime.run``."""
        if self.closed:
            raise InferenceError("the stub runtime is closed")
        self.batches.append(inputs)
        if self._answer is not None:
            made = self._answer(inputs)
            return {name: made[name] for name in outputs}
        total = sum(array.reshape(len(array), -1).sum(axis=1, dtype=np.float64) for array in inputs.values())
        return {name: np.asarray(total, dtype=np.float32) for name in outputs}

    def close(self) -> None:
        """Refuse later calls."""
        self.closed = True


class CallableRuntime:
    """Answers with Python functions, whole or in parts; a template for a streaming runtime of one's own.

    Args:
        stream: one row of inputs -> parts, each with every output.
        answer: inputs -> outputs; by default the last part for each row.

    Attributes:
        ended: set when a stream that was begun has ended or was closed.
    """

    def __init__(
        self, stream: Callable[[Arrays], Iterable[Arrays]], answer: Callable[[Arrays], Arrays] | None = None
    ) -> None:
        self._stream = stream
        self._answer = answer
        self.ended = threading.Event()

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Answer one batch; see ``Runtime.run``."""
        if self._answer is not None:
            made = self._answer(inputs)
            return {name: made[name] for name in outputs}
        rows = len(next(iter(inputs.values())))
        last: list[Arrays] = []
        for row in range(rows):
            *_, part = self._stream({name: array[row : row + 1] for name, array in inputs.items()})
            last.append(part)
        return {name: np.concatenate([part[name] for part in last]) for name in outputs}

    def stream(self, inputs: Arrays, outputs: Sequence[str]) -> Iterator[Arrays]:
        """Answer one row in parts; see ``StreamingRuntime.stream``."""
        try:
            for part in self._stream(inputs):
                yield {name: part[name] for name in outputs}
        finally:
            self.ended.set()

    def close(self) -> None:
        """Hold nothing."""


class FaultyRuntime:
    """Wraps a runtime; fails or hangs when told to, from any thread.

    Args:
        runtime: what answers while there is no fault.
        give_up_s: a hang ends by itself after this long with an InferenceError, so that no test waits for ever.

    Attributes:
        entered: set as soon as a call has begun to hang.
    """

    def __init__(self, runtime: Runtime | None = None, *, give_up_s: float = 30.0) -> None:
        self._runtime: Runtime = runtime or StubRuntime()
        self._give_up_s = give_up_s
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []
        self._open = threading.Event()
        self._open.set()
        self.entered = threading.Event()

    def fail(self, error: BaseException | None = None, *, times: int = 1) -> None:
        """Let the next ``times`` calls raise ``error`` (an InferenceError unless given)."""
        with self._lock:
            self._errors += [error or InferenceError("the faulty runtime was told to fail")] * times

    def hang(self) -> None:
        """Let calls hang from now on, until ``release``."""
        self.entered.clear()
        self._open.clear()

    def release(self) -> None:
        """Let hanging calls go on and later ones pass."""
        self._open.set()

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Hang or raise if told to, else answer as the wrapped runtime."""
        if not self._open.is_set():
            self.entered.set()
            if not self._open.wait(self._give_up_s):
                raise InferenceError(f"the faulty runtime hung for {self._give_up_s} s and was not released")
        with self._lock:
            error = self._errors.pop(0) if self._errors else None
        if error is not None:
            try:
                raise error
            finally:
                del error  # which knows this frame
        return self._runtime.run(inputs, outputs)

    def close(self) -> None:
        """Release what hangs and close the wrapped runtime."""
        self._open.set()
        self._runtime.close()
