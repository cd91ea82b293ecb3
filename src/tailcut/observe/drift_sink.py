"""The sink that watches for drift: batches go into a bounded queue, one thread compares them with the references.

The event loop appends to a list, and copies only arrays that somebody may change until the thread has compared them: it
looks every quarter of a second.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from tailcut.common.tensors import Array, Arrays, Keys
from tailcut.manifest import TensorSpec
from tailcut.observe.drift.detector import NONE, Detector, DriftAlarm, DriftSettings, State
from tailcut.observe.drift.sketch import Role, Sketch, columns_of
from tailcut.observe.sample import Sample, counter, gauge
from tailcut.observe.sinks import FinishedBatch, Sink
from tailcut.system.worker_thread import WorkerThread

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
FAILED_ROWS = counter(
    "tailcut_drift_failed_rows",
    "Rows that could not be compared with the drift reference; the log has the first error.",
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
        keeps_outputs: whether the outputs of a batch stay unchanged; a postprocess hook may change them in place.
    """

    variant: str
    version: str
    sketches: tuple[Sketch, ...]
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    settings: DriftSettings
    keeps_outputs: bool = False


_TimedBatch = tuple[float, FinishedBatch]
"""A batch, and when it ended."""


class DriftSink(Sink):
    """One detector per model that has a reference.

    Args:
        clock_s: never goes back.
        wall_s: for people: seconds since the epoch.

    Attributes:
        arrays_are_lent: whether callers in this process give inputs and get outputs that they may change at any time;
            both are then copied.
        alarm_level: of the line of an alarm: lower where alerts tell of drift, too.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic, wall_s: Callable[[], float] = time.time) -> None:
        self.arrays_are_lent = False
        self.alarm_level = logging.WARNING
        self._clock_s, self._wall_s = clock_s, wall_s
        self._models: dict[str, _Model] = {}
        self._worker: WorkerThread[tuple[_Model, _TimedBatch]] = WorkerThread(
            "tailcut-drift",
            self._compare_all,
            "what waited is not watched for drift",
            most=_MOST_ROWS,
            most_bytes=_MOST_BYTES,
            at_once=_MOST_ROWS,
            every_s=_EVERY_S,
            wakes_at=_MOST_ROWS,
        )

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
        self._worker.start()

    def work(self) -> None:
        """Compare what waits with the references, and tell alarms."""
        self._worker.run_once()

    def close(self, timeout_s: float) -> None:
        """End the thread after the block that it compares, and drop the queue; it blocks, for at most ``timeout_s``."""
        self._worker.close(timeout_s, flush=False)

    def on_batch(self, model: str, batch: FinishedBatch) -> None:
        """Put a batch of the watched variant into the queue, where there is room."""
        found = self._models.get(model)
        if found is None or not batch.outputs:
            return
        variant, version, rows, duration_ns, inputs, outputs, entities = batch
        watched = found.watch
        if version != watched.version or variant != watched.variant:
            return
        size_bytes = rows * found.row_bytes
        if not self._worker.has_room(rows, size_bytes):
            found.dropped += rows
            return
        if self.arrays_are_lent:
            batch = FinishedBatch(variant, version, rows, duration_ns, _copied(inputs), _copied(outputs), entities)
        elif not watched.keeps_outputs:
            batch = FinishedBatch(variant, version, rows, duration_ns, inputs, _copied(outputs), entities)
        self._worker.put((found, (self._clock_s(), batch)), rows, size_bytes)

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
        yield FAILED_ROWS(found.failed)
        yield ALARMS(found.alarms)
        for column in shown.columns:
            labels = column.role, column.name
            yield PSI(column.psi, *labels)
            yield EVIDENCE(float("-inf") if column.evidence is None else column.evidence, *labels)
            yield ACTIVE(float(column.drifting), *labels)
            yield MISSING(column.missing, *labels)
            yield UNSEEN(column.unseen, *labels)

    # -- Of the thread -----------------------------------------------------------------------------------------------

    def _compare_all(self, taken: Sequence[tuple[_Model, _TimedBatch]]) -> None:
        blocks: dict[_Model, list[_TimedBatch]] = {}
        for model, batch in taken:
            blocks.setdefault(model, []).append(batch)
        for model, waiting in blocks.items():
            for block in _in_blocks(waiting):
                if self._worker.closing.is_set():
                    return
                self._compare(model, block)
        now_s = self._clock_s()
        for model in list(self._models.values()):
            try:
                model.show(now_s, self._wall_s() - now_s)
            except Exception:
                model.fail(0)

    def _compare(self, model: _Model, block: Sequence[_TimedBatch]) -> None:
        try:
            alarm = model.take(block)
            if alarm is not None:
                model.alarms += 1
                _tell(self.alarm_level, model.name, alarm, self._wall_s() - self._clock_s())
        except Exception:
            model.fail(sum(batch.rows for _, batch in block))


class _Model:
    """The detector of one model; the thread owns it, others read ``shown``, ``alarms``, ``dropped`` and ``failed``."""

    def __init__(self, name: str, watch: Watch) -> None:
        self.name = name
        self.watch = watch
        self.alarms = self.dropped = self.failed = 0
        self._told = False
        self._detector = Detector(watch.sketches, watch.settings)
        self._wanted: list[tuple[Role, str]] = [(each.role, each.name) for each in watch.sketches]
        self._shown_s = float("-inf")
        self._new = False
        self.row_bytes = 0
        self.shown: State = self._detector.state()

    def take(self, block: Sequence[_TimedBatch]) -> DriftAlarm | None:
        """Compare a block of batches with the reference."""
        whole = len(self.watch.outputs)
        inputs: list[Arrays] = []
        outputs: list[Arrays] = []
        entities: list[Keys | None] = []
        for _, batch in block:
            known = batch.entities or [None] * len(batch.inputs)
            for place, found in enumerate(batch.outputs):
                if len(found) == whole:  # a request may have asked for some of the outputs only
                    inputs.append(batch.inputs[place])
                    outputs.append(found)
                    entities.append(known[place])
        if not inputs:
            return None
        self.row_bytes = _row_bytes(inputs[0]) + _row_bytes(outputs[0])
        self._new = True
        return self._detector.update(self._values(inputs, outputs), block[-1][0], _entities(inputs, entities))

    def fail(self, rows: int) -> None:
        """Note rows that could not be compared; call it where the exception is handled."""
        self.failed += rows
        if not self._told:
            self._told = True
            log.exception(
                "rows of %s cannot be compared with its holdout, so drift in them is not seen; later errors are only "
                "counted, in tailcut_drift_failed_rows_total",
                self.name,
                extra={"model": self.name},
            )

    def _values(self, inputs: Sequence[Arrays], outputs: Sequence[Arrays]) -> list[Array]:
        """Return (rows,) of each column, in the order of the sketches."""
        found: dict[tuple[Role, str], list[Array]] = {}
        tensors: list[tuple[Role, TensorSpec, Sequence[Arrays]]] = [
            *(("input", spec, inputs) for spec in self.watch.inputs),
            *(("output", spec, outputs) for spec in self.watch.outputs),
        ]
        for role, spec, arrays in tensors:
            of_requests = [each[spec.name] for each in arrays]
            # Rows of requests are put together where their shapes allow it.
            for array in of_requests if -1 in spec.shape[1:] else [np.concatenate(of_requests)]:
                for name, values in columns_of(role, spec, array).items():
                    found.setdefault((role, name), []).append(values)
        wanted = [found[each] for each in self._wanted]
        return [parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in wanted]

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


def _copied(requests: Sequence[Arrays]) -> list[Arrays]:
    return [{name: array.copy() for name, array in each.items()} for each in requests]


def _entities(inputs: Sequence[Arrays], given: Sequence[Keys | None]) -> Keys | None:
    """Return (rows,) of the rows' entities; None where none is known."""
    if all(each is None for each in given):
        return None
    parts = []
    for arrays, known in zip(inputs, given, strict=True):
        rows = len(next(iter(arrays.values())))
        # A hook may have made more rows, or fewer, than there were entities.
        parts.append(known if known is not None and len(known) == rows else np.full(rows, NONE, np.int64))
    return np.concatenate(parts)


def _row_bytes(arrays: Arrays) -> int:
    rows = len(next(iter(arrays.values())))
    return sum(array.nbytes for array in arrays.values()) // max(rows, 1)


def _in_blocks(waiting: Sequence[_TimedBatch]) -> Iterator[list[_TimedBatch]]:
    block: list[_TimedBatch] = []
    rows = 0
    for at_s, batch in waiting:
        block.append((at_s, batch))
        rows += batch.rows
        if rows >= _AT_ONCE:
            yield block
            block, rows = [], 0
    if block:
        yield block


def _tell(level: int, model: str, alarm: DriftAlarm, to_wall_s: float) -> None:
    """Write the one line of an alarm."""
    named = [
        f"{each.role} {each.name} (PSI {each.psi:.2f}, "
        f"since {datetime.fromtimestamp(each.since_s + to_wall_s, UTC):%Y-%m-%dT%H:%MZ})"
        for each in alarm.columns[:_NAMED]
    ]
    more = len(alarm.columns) - _NAMED
    log.log(
        level,
        "%s differ%s from the holdout: %s%s; compare with tailcut_drift_psi on /metrics; a change that is meant: build "
        "with a new holdout, or name the columns in drift.ignore",
        "a column" if len(alarm.columns) == 1 else f"{len(alarm.columns)} columns",
        "s" if len(alarm.columns) == 1 else "",
        ", ".join(named),
        f" and {more} more" if more > 0 else "",
        extra={"model": model},
    )
