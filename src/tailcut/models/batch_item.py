"""One unit of work for an executor, and how a batch of them is run and taken apart again."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence

import numpy as np

from tailcut.common.tensors import Arrays, Keys
from tailcut.errors import InferenceError, TailcutError
from tailcut.models.runtimes.base import Runtime
from tailcut.scheduler.cost import kind_of
from tailcut.scheduler.request_queue import DEFAULT_LEVEL
from tailcut.scheduler.scheduler import QueueEntry

_HINT = "see the server's log; `tailcut check` runs one row through every stage"


class WrongRows(InferenceError):
    """The model returned another number of rows than it was given: its own fault, whatever it was given."""


class BatchItem(QueueEntry):
    """Rows that wait for an executor, with the future that their request awaits.

    ``started_ns`` and ``finished_ns`` are set by the executor; the request's queue and infer stages come from them.
    ``alone`` where it runs a second time, by itself, because the batch that it was in failed. ``batch`` is the one
    that it ran in: a number of its own, how many requests and rows, its begin and its end in nanoseconds; empty before.
    """

    __slots__ = ("alone", "batch", "entities", "finished_ns", "future", "inputs", "outputs", "started_ns")

    def __init__(
        self,
        inputs: Arrays,
        rows: int,
        outputs: Sequence[str],
        deadline_ns: int,
        lane: Hashable,
        future: asyncio.Future[Arrays],
        priority: int = 0,
        arrived_ns: int = 0,
        size_bytes: int = 0,
        tenant: str = "",
        kind: int = 0,
        target_ns: int = 0,
        entities: Keys | None = None,
    ) -> None:
        # All of Entry's fields, set here: its own constructor would be a second call for every request.
        self.rows = rows
        self.deadline_ns = deadline_ns
        self.target_ns = target_ns or deadline_ns
        self.lane = lane
        self.level = priority or DEFAULT_LEVEL
        self.arrived_ns = arrived_ns
        self.size_bytes = size_bytes
        self.tenant = tenant
        self.kind = kind
        self.waiting = False
        self.late = False
        self.inputs = inputs
        self.outputs = outputs
        self.future = future
        self.started_ns = 0
        self.finished_ns = 0
        self.batch: tuple[int, ...] = ()
        self.alone = False
        self.entities = entities

    def set_alone(self) -> None:
        """Share no batch with anybody."""
        self.alone = True
        self.lane = object()  # equal to nobody else's


def run_rows(runtime: Runtime, inputs: Arrays, rows: int, outputs: Sequence[str]) -> Arrays:
    """Run one batch and check that there is an answer for every row.

    Raises:
        InferenceError: the runtime raised, or returned a number of rows other than it was given (WrongRows); an
            answer is then nobody's, so none is handed out.
    """
    try:
        found = runtime.run(inputs, outputs)
    except Exception as error:
        raise failed(error, rows) from error.__cause__ or error
    check_rows(found, rows)
    return found


def check_rows(found: Arrays, rows: int) -> None:
    """Check that there is an answer for every row.

    Raises:
        WrongRows: there is not.
    """
    for name, array in found.items():
        if not array.ndim or len(array) != rows:
            raise WrongRows(
                f"output {name!r} has shape {list(array.shape)} for a batch of {rows} rows",
                hint="the first dimension of every output must be the batch; export the model with a dynamic batch",
            )


def failed(error: BaseException, rows: int) -> InferenceError:
    """Return the error of a batch that raised: what the model or its library said is not for clients."""
    cause = error.__cause__ or error
    what = f"the model failed on a batch of {rows} rows"
    if isinstance(error, TailcutError) and cause is error:
        return InferenceError(f"{what}: {error.message}", hint=error.hint or _HINT, detail=error.detail)
    said = error.message if isinstance(error, TailcutError) else str(error)
    return InferenceError(f"{what} ({type(cause).__name__})", hint=_HINT, detail=said)


def run_batch(runtime: Runtime, batch: Sequence[BatchItem]) -> list[Arrays]:
    """Run the items of one batch together and return each one's outputs, in order; raises as ``run_rows``."""
    first = batch[0]
    if len(batch) == 1:
        return [run_rows(runtime, first.inputs, first.rows, first.outputs)]
    rows = sum([item.rows for item in batch])
    inputs = {name: np.concatenate([item.inputs[name] for item in batch]) for name in first.inputs}
    return part(run_rows(runtime, inputs, rows, first.outputs), batch)


def part(outputs: Arrays, batch: Sequence[BatchItem]) -> list[Arrays]:
    """Cut the outputs of a batch into each item's, in order."""
    if len(batch) == 1:
        return [outputs]
    parts = []
    at = 0
    for item in batch:
        parts.append({name: array[at : at + item.rows] for name, array in outputs.items()})
        at += item.rows
    return parts


def ran_ns(items: Sequence[BatchItem]) -> int:
    """Return for how long a request, in one part or several, was computed; 0 where it did not begin."""
    if len(items) == 1:
        return items[0].finished_ns - items[0].started_ns if items[0].started_ns else 0
    started_ns = min([item.started_ns for item in items])
    return max([item.finished_ns for item in items]) - started_ns if started_ns else 0


def bytes_of(inputs: Arrays) -> int:
    """Return what the tensors take in memory; of text and bytes, their contents."""
    size = 0
    for array in inputs.values():
        size += array.nbytes
        if array.dtype.hasobject:
            size += sum([len(value) for value in array.ravel().tolist()])
    return size


def length_class(inputs: Arrays, rows: int) -> int:
    """Return which cost model the rows follow where rows differ in length: that of the longest input."""
    return kind_of(max([array.size for array in inputs.values()]) // rows)


def cut(item: BatchItem, max_rows: int, loop: asyncio.AbstractEventLoop) -> list[BatchItem]:
    """Return one item for each part of an item that has more than ``max_rows`` rows."""
    item.future.cancel()
    return [
        BatchItem(
            part,
            rows,
            item.outputs,
            item.deadline_ns,
            item.lane,
            loop.create_future(),
            item.level,
            item.arrived_ns,
            item.size_bytes * rows // item.rows,
            item.tenant,
            item.kind,
            item.target_ns,
            None if item.entities is None else item.entities[number * max_rows : number * max_rows + rows],
        )
        for number, (part, rows) in enumerate(split(item.inputs, item.rows, max_rows))
    ]


def split(inputs: Arrays, rows: int, max_rows: int) -> list[tuple[Arrays, int]]:
    """Cut a request of more than ``max_rows`` rows into parts, in row order, each with its number of rows."""
    return [
        ({name: array[at : at + max_rows] for name, array in inputs.items()}, min(max_rows, rows - at))
        for at in range(0, rows, max_rows)
    ]


def join(parts: Sequence[Arrays]) -> Arrays:
    """Put the outputs of a split request together again, in row order."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
