"""The sink that watches for drift: batches go into a bounded queue, one thread compares them with the references.

The event loop appends to a list and copies the outputs, nothing more. The thread looks every quarter of a second.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from tailcut.common.tensors import Array, Arrays, Keys
from tailcut.observe.drift.columns import TensorSpec, columns_of
from tailcut.observe.drift.detector import Detector, Settings
from tailcut.observe.drift.entities import NONE
from tailcut.observe.drift.sketch import Sketch
from tailcut.observe.drift.state import Alarm, State
from tailcut.observe.sample import Sample, counter, gauge
from tailcut.observe.sinks import FinishedBatch, FinishedRequest, VariantSwitch

log = logging.getLogger("tailcut.drift")

ROWS = counter(
    "tailcut_drift_rows",
    "Rows compared with the drift reference (all), and those of them that counted: the first of each entity in a "
    "window (counted).",
    "rows",
)
DROPPED_ROWS = counter(
    "tailcut_drift_dropped_rows", "Rows not compared with the drift reference because the queue was full."
)
ALARMS = counter("tailcut_drift_alarms", "Drift alarms since the variant is served.")
PSI = gauge(
    "tailcut_drift_psi",
    "Population stability index of a column: the current window against the reference.",
    "role",
    "column",
)
EVIDENCE = gauge(
    "tailcut_drift_evidence",
    "Evidence of drift of a column: log10 of its share of what an alarm needs; an alarm needs the PSI as well.",
    "role",
    "column",
)
ACTIVE = gauge(
    "tailcut_drift_active", "1 for a column that a drift alarm named and that has not come back.", "role", "column"
)
MISSING = gauge(
    "tailcut_drift_missing_share",
    "Share of the current window's rows without a value (NaN or empty text).",
    "role",
    "column",
)
UNSEEN = gauge(
    "tailcut_drift_unseen_share",
    "Share of the current window's rows with a category, or outside a range, that the drift reference does not have.",
    "role",
    "column",
)

_EVERY_S = 0.25
_SHOWN_EVERY_S = 1.0
_MOST_ROWS = 16_384
_MOST_BYTES = 64 << 20
"""What may wait in the queue, of all models."""
_AT_ONCE = 1024
"""Rows of a block: a change begins with one."""
_NAMED = 5
"""Columns that a log line names."""


class Watch(NamedTuple):
    """What is watched of a model.

    Attributes:
        variant, version: that is served; batches of others are not looked at.
        sketches: of the reference, without ignored columns.
        inputs, outputs: tensors of the model.
        settings: how drift is judged.
    """

    variant: str
    version: str
    sketches: tuple[Sketch, ...]
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    settings: Settings


class _Waiting(NamedTuple):
    model: _Model
    batch: FinishedBatch
    at_s: float
    size_bytes: int


class DriftSink:
    """A ``Sink`` with one detector per model that has a reference.

    Args:
        clock_s: never goes back.
        wall_s: for people: seconds since the epoch.

    Attributes:
        dropped: rows that found no room in the queue.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic, wall_s: Callable[[], float] = time.time) -> None:
        self.dropped = 0
        self._clock_s, self._wall_s = clock_s, wall_s
        self._models: dict[str, _Model] = {}
        self._queue: deque[_Waiting] = deque()
        self._rows = self._bytes = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    # -- Of the event loop -------------------------------------------------------------------------------------------

    def watch(self, model: str, watch: Watch) -> None:
        """Watch a variant of a model from now on, in place of the one before; the same one is watched on."""
        known = self._models.get(model)
        if known is None or known.watch != watch:
            self._models[model] = _Model(model, watch)

    def unwatch(self, model: str) -> None:
        """Watch a model no more; nothing happens where it was not watched."""
        self._models.pop(model, None)

    def start(self) -> None:
        """Start the thread; without one, ``work`` does what it would do."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tailcut-drift", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread after what it is doing; the queue is dropped."""
        self._ended.set()

    def on_requests(self, model: str, requests: Sequence[FinishedRequest]) -> None:
        """See ``Sink``; drift is of batches."""

    def on_switch(self, model: str, switch: VariantSwitch) -> None:
        """See ``Sink``; who serves a variant says with ``watch`` what its reference is."""

    def on_batch(self, model: str, batch: FinishedBatch) -> None:
        """Put a batch of the watched variant into the queue, where there is room."""
        found = self._models.get(model)
        if found is None or not batch.outputs or batch.variant != found.watch.variant:
            return
        size_bytes = sum([array.nbytes for arrays in (*batch.inputs, *batch.outputs) for array in arrays.values()])
        with self._lock:
            if self._rows + batch.rows > _MOST_ROWS or self._bytes + size_bytes > _MOST_BYTES:
                self.dropped += batch.rows
                found.dropped += batch.rows
                return
            self._rows += batch.rows
            self._bytes += size_bytes
        # A postprocess hook may change its outputs in place.
        kept = batch._replace(outputs=[{name: array.copy() for name, array in each.items()} for each in batch.outputs])
        self._queue.append(_Waiting(found, kept, self._clock_s(), size_bytes))

    def state(self, model: str) -> State | None:
        """Return a model's snapshot, a second old or so; times are seconds since the epoch. None: it is not watched."""
        found = self._models.get(model)
        return None if found is None else found.shown

    def samples(self, model: str) -> Iterator[Sample]:
        """Yield what /metrics shows of a model; nothing where it is not watched."""
        found = self._models.get(model)
        if found is None:
            return
        shown = found.shown
        yield ROWS(shown.rows, "all")
        yield ROWS(shown.counted, "counted")
        yield DROPPED_ROWS(found.dropped)
        yield ALARMS(found.alarms)
        for column in shown.columns:
            labels = column.role, column.name
            yield PSI(column.psi, *labels)
            yield EVIDENCE(column.evidence, *labels)
            yield ACTIVE(float(column.drifting), *labels)
            yield MISSING(column.missing, *labels)
            yield UNSEEN(column.unseen, *labels)

    # -- Of the thread -----------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Compare what waits with the references, and tell alarms."""
        blocks: dict[_Model, list[_Waiting]] = {}
        with self._lock:
            taken = [self._queue.popleft() for _ in range(len(self._queue))]
            self._rows -= sum(each.batch.rows for each in taken)
            self._bytes -= sum(each.size_bytes for each in taken)
        for each in taken:
            blocks.setdefault(each.model, []).append(each)
        for model, waiting in blocks.items():
            for block in _in_blocks(waiting):
                self._compare(model, block)
        now_s = self._clock_s()
        for model in list(self._models.values()):
            model.show(now_s, self._wall_s() - now_s)

    def _compare(self, model: _Model, block: Sequence[_Waiting]) -> None:
        try:
            alarm = model.take(block)
        except Exception:
            if not model.failed:
                log.exception("drift of %s is not watched any more", model.name, extra={"model": model.name})
            model.failed = True
            return
        if alarm is not None:
            model.alarms += 1
            _tell(model.name, alarm, self._wall_s() - self._clock_s())

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self.work()


class _Model:
    """The detector of one model; the thread owns it, others read ``shown``, ``alarms`` and ``dropped``."""

    def __init__(self, name: str, watch: Watch) -> None:
        self.name = name
        self.watch = watch
        self.alarms = self.dropped = 0
        self.failed = False
        self._detector = Detector(watch.sketches, watch.settings)
        self._wanted = [(each.role, each.name) for each in watch.sketches]
        self._shown_s = float("-inf")
        self._new = False
        self.shown: State = self._detector.state()

    def take(self, block: Sequence[_Waiting]) -> Alarm | None:
        """Compare a block of batches with the reference."""
        if self.failed:
            return None
        parts = [
            (inputs, outputs, _entities(inputs, each.batch.entities[place : place + 1]))
            for each in block
            for place, (inputs, outputs) in enumerate(zip(each.batch.inputs, each.batch.outputs, strict=True))
            # A request may have asked for some of the outputs only.
            if len(outputs) == len(self.watch.outputs)
        ]
        if not parts:
            return None
        values = self._values([part[0] for part in parts], [part[1] for part in parts])
        entities = np.concatenate([part[2] for part in parts])
        self._new = True
        return self._detector.update(values, block[-1].at_s, entities)

    def _values(self, inputs: Sequence[Arrays], outputs: Sequence[Arrays]) -> list[Array]:
        """Return (rows,) of each column, in the order of the sketches."""
        found: dict[tuple[str, str], list[Array]] = {}
        for role, specs, arrays in (("input", self.watch.inputs, inputs), ("output", self.watch.outputs, outputs)):
            for spec in specs:
                for array in _joined([each[spec.name] for each in arrays], spec):
                    for column in columns_of("input" if role == "input" else "output", spec, array):
                        found.setdefault((role, column.name), []).append(column.values)
        return [np.concatenate(found[each]) for each in self._wanted]

    def show(self, now_s: float, to_wall_s: float) -> None:
        """Make a new snapshot where there is something new, at most once a second."""
        if not self._new or now_s - self._shown_s < _SHOWN_EVERY_S:
            return
        self._shown_s, self._new = now_s, False
        state = self._detector.state()
        columns = [
            replace(each, since_s=None if each.since_s is None else each.since_s + to_wall_s) for each in state.columns
        ]
        self.shown = replace(state, columns=tuple(columns))


def _joined(arrays: Sequence[Array], spec: TensorSpec) -> list[Array]:
    """Put the rows of requests together, where their shapes allow it."""
    return list(arrays) if -1 in spec.shape[1:] else [np.concatenate(arrays)]


def _entities(inputs: Arrays, given: Sequence[Keys | None]) -> Keys:
    rows = len(next(iter(inputs.values())))
    known = given[0] if given else None
    # A hook may have made more rows, or fewer, than there were entities.
    return known if known is not None and len(known) == rows else np.full(rows, NONE, np.int64)


def _in_blocks(waiting: Sequence[_Waiting]) -> Iterator[list[_Waiting]]:
    block: list[_Waiting] = []
    rows = 0
    for each in waiting:
        block.append(each)
        rows += each.batch.rows
        if rows >= _AT_ONCE:
            yield block
            block, rows = [], 0
    if block:
        yield block


def _tell(model: str, alarm: Alarm, to_wall_s: float) -> None:
    """Write the one line of an alarm."""
    named = [
        f"{each.role} {each.name} (PSI {each.psi:.2f}, since {_time(each.since_s + to_wall_s)})"
        for each in alarm.columns[:_NAMED]
    ]
    more = len(alarm.columns) - _NAMED
    log.warning(
        "%s differ%s from the holdout: %s%s; compare with tailcut_drift_psi on /metrics; a change that is meant: build "
        "with a new holdout, or name the columns in drift.ignore",
        "a column" if len(alarm.columns) == 1 else f"{len(alarm.columns)} columns",
        "s" if len(alarm.columns) == 1 else "",
        ", ".join(named),
        f" and {more} more" if more > 0 else "",
        extra={"model": model},
    )


def _time(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="minutes").replace("+00:00", "Z")
