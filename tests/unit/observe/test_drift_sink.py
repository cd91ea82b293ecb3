"""The sink that watches for drift: what it takes, drops, tells and shows. ``work`` is what its thread does."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest
from tests.wait_kit import block_until

from tailcut.common.tensors import Array, Arrays, Keys
from tailcut.manifest import TensorSpec
from tailcut.observe.alerts.evaluation import MovedColumns
from tailcut.observe.drift.detector import DriftSettings
from tailcut.observe.drift.sketch import sketches_of
from tailcut.observe.drift_sink import DriftSink, Watch
from tailcut.observe.sinks import FinishedBatch
from tailcut.serving.observation import moved_columns

INPUTS = (TensorSpec(name="x", datatype="FP32", shape=(-1, 2), columns=("age", "income")),)
OUTPUTS = (TensorSpec(name="risk", datatype="FP32", shape=(-1,)),)
HOUR_S = 3600.0
WALL_S = 1_800_000_000.0


def drawn(random: np.random.Generator, rows: int, shift: float = 0.0) -> Arrays:
    values: Array = random.normal(size=(rows, 2)).astype(np.float32)
    values[:, 1] += shift
    return {"x": values}


def answers(inputs: Arrays) -> Arrays:
    return {"risk": 1 / (1 + np.exp(-inputs["x"][:, 0]))}


def watch(version: str = "1", window_s: float = 24 * HOUR_S) -> Watch:
    random = np.random.default_rng(0)
    inputs = drawn(random, 1000)
    sketches = (*sketches_of("input", INPUTS, inputs), *sketches_of("output", OUTPUTS, answers(inputs)))
    return Watch("onnx", version, sketches, INPUTS, OUTPUTS, DriftSettings(window_s=window_s))


def batch(parts: list[Arrays], entities: list[Keys | None] | None = None, variant: str = "onnx") -> FinishedBatch:
    rows = sum(len(part["x"]) for part in parts)
    outputs = [answers(part) for part in parts]
    return FinishedBatch(variant, "1", rows, 1000, parts, outputs, entities or [None] * len(parts))


class Bench:
    """A sink without its thread, on a clock that is moved by hand."""

    def __init__(self, watched: Watch | None = None) -> None:
        self.now_s = 0.0
        self.random = np.random.default_rng(1)
        self.sink = DriftSink(lambda: self.now_s, lambda: WALL_S + self.now_s)
        self.sink.watch("m", watched or watch())

    def hours(self, count: int, shift: float = 0.0) -> None:
        for _ in range(count):
            self.now_s += HOUR_S
            for _ in range(6):
                self.sink.on_batch("m", batch([drawn(self.random, 7, shift), drawn(self.random, 3, shift)]))
            self.sink.work()

    def metrics(self, name: str) -> dict[str, float]:
        found = [each for each in self.sink.samples("m") if each.name == name]
        return {each.labels.get("column", each.labels.get("rows", "")): each.value for each in found}


def test_an_alarm_is_one_line_a_count_and_a_state(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    with caplog.at_level(logging.WARNING, logger="tailcut.drift"):
        bench.hours(48)
        assert not caplog.records
        bench.hours(48, shift=1.0)
    (line,) = caplog.records
    assert "a column differs from the holdout: input income (PSI " in line.getMessage()
    assert "since 2027-01-1" in line.getMessage()
    assert line.model == "m"
    state = bench.sink.state("m")
    assert state is not None
    income = next(each for each in state.columns if each.name == "income")
    assert income.drifting
    assert income.since_s is not None
    assert abs(income.since_s - (WALL_S + 48 * HOUR_S)) < 3 * HOUR_S
    assert bench.metrics("tailcut_drift_alarms") == {"": 1}
    assert bench.metrics("tailcut_drift_active") == {"age": 0, "income": 1, "risk": 0}
    assert bench.metrics("tailcut_drift_psi")["income"] > 0.5 > bench.metrics("tailcut_drift_psi")["age"]
    assert bench.metrics("tailcut_drift_rows") == {"all": 96 * 60, "counted": 96 * 60}


def test_alerts_are_told_that_no_column_moved_only_once_a_whole_window_was_seen() -> None:
    bench = Bench()
    assert moved_columns(bench.sink, {"m": 0.1, "other": 0.1}) == []
    bench.hours(24)
    assert moved_columns(bench.sink, {"m": 0.1}) == [], "there is no alarm yet, and nothing is known"
    bench.hours(1)
    assert moved_columns(bench.sink, {"m": 0.1}) == [MovedColumns("m", [], 0.0, 0.1)]
    bench.hours(24, shift=2.0)
    assert [each.columns for each in moved_columns(bench.sink, {"m": 0.1})] == [["income"]]


def test_rows_of_one_entity_count_once_and_a_row_without_one_for_itself() -> None:
    bench = Bench()
    parts = [drawn(bench.random, 2), drawn(bench.random, 3), drawn(bench.random, 1)]
    # Of the last one a hook made another number of rows.
    entities: list[Keys | None] = [np.array([5, 6]), None, np.array([5, 6])]
    for _ in range(2):
        bench.sink.on_batch("m", batch(parts, entities))
    bench.sink.work()
    assert bench.metrics("tailcut_drift_rows") == {"all": 12, "counted": 2 + 2 * 4}


def test_only_whole_answers_of_the_watched_variant_are_looked_at() -> None:
    bench = Bench()
    bench.sink.on_batch("m", batch([drawn(bench.random, 4)], variant="fallback"))
    bench.sink.on_batch("m", batch([drawn(bench.random, 4)])._replace(version="0"))  # of before a switch
    bench.sink.on_batch("other", batch([drawn(bench.random, 4)]))
    bench.sink.on_batch("m", batch([drawn(bench.random, 4)])._replace(outputs=()))  # it failed
    bench.sink.on_batch("m", batch([drawn(bench.random, 4)])._replace(outputs=[{}]))  # asked for another output
    bench.sink.work()
    assert bench.metrics("tailcut_drift_rows") == {"all": 0, "counted": 0}


def test_outputs_that_a_hook_changes_afterwards_are_compared_as_the_model_gave_them() -> None:
    bench = Bench()
    for _ in range(40):
        one = batch([drawn(bench.random, 50)])
        bench.sink.on_batch("m", one)
        one.outputs[0]["risk"][:] = 7.0
    bench.sink.work()
    assert bench.metrics("tailcut_drift_psi")["risk"] < 0.05


def test_arrays_that_a_caller_uses_again_are_compared_as_they_were() -> None:
    bench = Bench()
    bench.sink.arrays_are_lent = True
    buffer = {"x": np.empty((50, 2), np.float32)}
    for _ in range(40):
        buffer["x"][:] = drawn(bench.random, 50)["x"]
        one = batch([buffer])
        bench.sink.on_batch("m", one)
        one.outputs[0]["risk"][:] = 7.0
        buffer["x"][:] = 7.0
    bench.sink.work()
    assert all(bench.metrics("tailcut_drift_psi")[name] < 0.05 for name in ("age", "income", "risk"))


def test_a_full_queue_drops_and_counts_and_has_room_again() -> None:
    bench = Bench()
    for _ in range(20):
        bench.sink.on_batch("m", batch([drawn(bench.random, 1000)]))
    assert bench.metrics("tailcut_drift_dropped_rows") == {"": 4000}
    bench.sink.work()
    bench.sink.on_batch("m", batch([drawn(bench.random, 1000)]))
    bench.sink.work()
    assert bench.metrics("tailcut_drift_dropped_rows") == {"": 4000}


def test_another_version_begins_anew_and_the_same_one_goes_on() -> None:
    bench = Bench()
    bench.hours(2)
    bench.sink.watch("m", watch())
    assert bench.metrics("tailcut_drift_rows")["all"] == 120
    bench.sink.watch("m", watch("2"))
    assert bench.metrics("tailcut_drift_rows")["all"] == 0
    bench.sink.unwatch("m")
    assert bench.sink.state("m") is None
    assert list(bench.sink.samples("m")) == []


def test_what_cannot_be_compared_is_logged_once_and_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    for _ in range(3):
        bench.sink.on_batch("m", batch([drawn(bench.random, 4)])._replace(inputs=[{"x": np.zeros((4, 5))}]))
        bench.sink.work()
    assert len(caplog.records) == 1
    assert bench.metrics("tailcut_drift_failed_rows") == {"": 12}
    bench.hours(1)
    assert bench.metrics("tailcut_drift_rows")["all"] == 60, "later blocks are compared"


def test_the_thread_does_the_work() -> None:
    sink = DriftSink()
    sink.watch("m", watch())
    sink.start()
    sink.on_batch("m", batch([drawn(np.random.default_rng(3), 4)]))
    try:
        block_until(lambda: (state := sink.state("m")) is not None and state.rows == 4)
    finally:
        sink.close(30)
    assert "tailcut-drift" not in {thread.name for thread in threading.enumerate()}


def test_an_error_in_the_thread_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    failing = [2]

    def clock_s() -> float:
        if threading.current_thread().name == "tailcut-drift" and failing[0]:
            failing[0] -= 1
            raise RuntimeError("no time")
        return 0.0

    sink = DriftSink(clock_s)
    sink.watch("m", watch())
    sink.start()
    try:
        block_until(lambda: not failing[0])
        sink.on_batch("m", batch([drawn(np.random.default_rng(3), 4)]))
        block_until(lambda: (state := sink.state("m")) is not None and state.rows == 4)
    finally:
        sink.close(30)
    assert sink._worker.errors == 2
    assert len(caplog.records) == 1


@pytest.mark.parametrize("level", [logging.WARNING, logging.INFO])
def test_the_line_of_an_alarm_is_no_warning_where_alerts_tell_of_it(
    level: int, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    bench.sink.alarm_level = level
    with caplog.at_level(logging.INFO, logger="tailcut.drift"):
        bench.hours(48)
        bench.hours(48, shift=1.0)
    assert [each.levelno for each in caplog.records] == [level]
