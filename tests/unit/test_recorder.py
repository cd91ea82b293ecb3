from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.core.histogram import ROW_BOUNDS, Histogram
from tailcut.core.timings import STAGE_NAMES, Stage, Timings
from tailcut.observe.recorder import Recorder


def timings(**stages_ns: int) -> Timings:
    made = Timings(0)
    now_ns = 0
    for name, ns in stages_ns.items():
        now_ns += ns
        made.lap(Stage[name.upper()], now_ns)
    return made


@given(st.lists(st.lists(st.integers(0, 20_000_000_000), min_size=11, max_size=11), max_size=20))
def test_every_stage_counts_as_a_histogram_of_its_own_would(requests: list[list[int]]) -> None:
    recorder = Recorder()
    wanted = [Histogram() for _ in STAGE_NAMES]
    for ns in requests:
        recorder.request(timings(**dict(zip(STAGE_NAMES, ns, strict=True))), "infer", "onnx", "ok", "off")
        for histogram, value in zip(wanted, ns, strict=True):
            if value:
                histogram.add(value)
    assert [stage.counts for stage in recorder.stages] == [histogram.counts for histogram in wanted]
    assert [stage.total for stage in recorder.stages] == [histogram.total for histogram in wanted]
    assert sum(recorder.requests.values()) == len(requests)
    if requests:
        assert recorder.answered["infer"].count == len(requests)
        assert recorder.answered["infer"].total == sum(map(sum, requests))


def test_requests_are_counted_by_route_variant_outcome_and_cache() -> None:
    recorder = Recorder()
    for outcome in ("ok", "ok", "shed"):
        recorder.request(timings(receive=1), "infer", "onnx", outcome, "off")
    recorder.request(timings(receive=1), "predict", "onnx", "ok", "hit")
    assert recorder.requests == {
        ("infer", "onnx", "ok", "off"): 2,
        ("infer", "onnx", "shed", "off"): 1,
        ("predict", "onnx", "ok", "hit"): 1,
    }


def test_the_time_of_failures_is_kept_apart_from_that_of_answers() -> None:
    recorder = Recorder()
    for outcome, ns in (("ok", 5_000), ("shed", 10), ("bad_request", 20)):
        recorder.request(timings(receive=ns), "infer", "onnx", outcome, "off")
    answered, failed = recorder.answered["infer"], recorder.failed["infer"]
    assert (answered.count, answered.total) == (1, 5_000)
    assert (failed.count, failed.total) == (2, 30)


def test_a_loop_that_woke_early_counts_as_no_lag() -> None:
    recorder = Recorder()
    recorder.lag(-5)
    recorder.lag(2_000_000)
    assert (recorder.loop_lag.count, recorder.loop_lag.total) == (2, 2_000_000)


def test_a_request_costs_no_histogram_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many are counted together (a call each would cost more than most stages), and all are there when one looks."""
    calls: list[int] = []
    recorder = Recorder()
    full: dict[str, Any] = dict.fromkeys(STAGE_NAMES, 1000)
    monkeypatch.setattr(Histogram, "add", lambda self, value: calls.append(value))
    for number in range(1, 1001):
        recorder.request(timings(**full), "infer", "onnx", "ok" if number % 3 else "shed", "off")
    assert calls == []
    assert [stage.count for stage in recorder.stages] == [1000] * 11
    assert (recorder.answered["infer"].count, recorder.failed["infer"].count) == (667, 333)
    assert sum(recorder.requests.values()) == 1000


@given(st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 20_000_000_000)), max_size=200))
def test_batches_are_counted_by_rows_and_by_how_long_they_took(batches: list[tuple[int, int]]) -> None:
    recorder = Recorder()
    rows, took = Histogram(ROW_BOUNDS), Histogram()
    for size, ns in batches:
        recorder.batch(size, ns)
        rows.add(size)
        took.add(ns)
    assert (recorder.batch_rows.counts, recorder.batch_rows.total) == (rows.counts, rows.total)
    assert (recorder.batch_ns.counts, recorder.batch_ns.total) == (took.counts, took.total)
    sizes = {size for size, _ in batches}
    assert recorder.by_rows == {
        size: [sum(one == size for one, _ in batches), sum(ns for one, ns in batches if one == size)] for size in sizes
    }
