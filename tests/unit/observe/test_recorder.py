from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.observe_kit import Ended, record

from tailcut.common.histogram import ROW_BOUNDS, Histogram
from tailcut.common.slo import LatencyObjective
from tailcut.common.timings import STAGE_NAMES, Stage, Timings
from tailcut.observe.outcomes import CODES, OUTCOMES, outcome_of
from tailcut.observe.recorder import ModelSinks, Recorder


def timings(**stages_ns: int) -> Timings:
    made = Timings(0)
    now_ns = 0
    for name, ns in stages_ns.items():
        now_ns += ns
        made.lap(Stage[name.upper()], now_ns)
    return made


@given(st.lists(st.tuples(*[st.integers(0, 20_000_000_000)] * len(STAGE_NAMES)), max_size=20))
def test_every_stage_counts_as_a_histogram_of_its_own_would(requests: list[tuple[int, ...]]) -> None:
    recorder = Recorder()
    wanted = [Histogram() for _ in STAGE_NAMES]
    for ns in requests:
        record(recorder, timings(**dict(zip(STAGE_NAMES, ns, strict=True))), "infer", "onnx", "ok", "off")
        for histogram, value in zip(wanted, ns, strict=True):
            if value:
                histogram.add(value)
    assert [stage.counts for stage in recorder.stages] == [histogram.counts for histogram in wanted]
    assert [stage.total for stage in recorder.stages] == [histogram.total for histogram in wanted]
    assert sum(recorder.requests.values()) == len(requests)
    if requests:
        assert recorder.ended["infer", "ok"].count == len(requests)
        assert recorder.ended["infer", "ok"].total == sum(map(sum, requests))


def counted(recorder: Recorder) -> dict[tuple[str, ...], int]:
    return {key: count for key, count in recorder.requests.items() if count}


def test_requests_are_counted_by_route_variant_code_and_cache() -> None:
    recorder = Recorder()
    for code in ("ok", "ok", "shed"):
        record(recorder, timings(receive=1), "infer", "onnx", code, "off")
    record(recorder, timings(receive=1), "predict", "onnx", "ok", "hit")
    assert counted(recorder) == {
        ("infer", "onnx", "ok", "off"): 2,
        ("infer", "onnx", "shed", "off"): 1,
        ("predict", "onnx", "ok", "hit"): 1,
    }


def test_the_time_of_failures_is_kept_apart_from_that_of_answers() -> None:
    recorder = Recorder()
    for code, ns in (("ok", 5_000), ("shed", 10), ("bad_request", 20), ("queue_timeout", 40)):
        record(recorder, timings(receive=ns), "infer", "onnx", code, "off")
    seen = {outcome: (found.count, found.total) for (_, outcome), found in recorder.ended.items()}
    assert seen == {"ok": (1, 5_000), "4xx": (2, 30), "5xx": (1, 40)}
    assert [each.count for each in recorder.answered] == [1]
    assert recorder.totals == {"ok": (1, 5_000), "4xx": (2, 30), "5xx": (1, 40)}
    recorder.set_objectives([LatencyObjective(share=0.95, limit_s=0.0213)], errors=0.001)
    record(recorder, timings(receive=7), "infer", "onnx", "ok", "off")
    assert [each.count for each in recorder.answered] == [1], "with other bounds the histograms begin again"
    assert recorder.totals["ok"] == (2, 5_007)


def test_every_way_to_end_has_a_series_before_the_first_request() -> None:
    """And a request makes none of a route that was expected: a rate would miss the first of each."""
    recorder = Recorder()
    recorder.expect("infer")
    recorder.serve("onnx")
    before, ended = set(recorder.requests), set(recorder.ended)
    assert set(recorder.requests.values()) == {0}
    assert ended == {("infer", outcome) for outcome in OUTCOMES}
    for code in ("ok", *CODES):
        record(recorder, timings(receive=1), "infer", "onnx", code, "off" if code == "ok" else "miss")
    assert (set(recorder.requests), set(recorder.ended)) == (before, ended)
    assert set(recorder.requests.values()) == {1}


def test_a_route_that_was_not_expected_has_all_series_from_its_first_request_on() -> None:
    recorder = Recorder()
    record(recorder, timings(receive=1), "generate", "onnx", "shed", "off")
    assert set(recorder.ended) == {("generate", outcome) for outcome in OUTCOMES}
    assert {code for _, _, code, _ in recorder.requests} == {"ok", *CODES}


@given(st.sampled_from(sorted(CODES)))
def test_the_class_of_a_code_is_that_of_its_status(code: str) -> None:
    assert outcome_of(code) == f"{CODES[code] // 100}xx"


def test_a_request_costs_no_histogram_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many are counted together (a call each would cost more than most stages), and all are there when one looks."""
    calls: list[int] = []
    sinks = ModelSinks("m")
    recorder = sinks.metrics
    full: dict[str, Any] = dict.fromkeys(STAGE_NAMES, 1000)
    monkeypatch.setattr(Histogram, "add", lambda self, value: calls.append(value))

    async def main() -> None:
        for number in range(1, 1001):
            sinks.request(Ended(timings(**full), code="ok" if number % 3 else "shed"))

    asyncio.run(main())
    assert calls == []
    assert [stage.count for stage in recorder.stages] == [1000] * len(STAGE_NAMES)
    assert [recorder.ended["infer", outcome].count for outcome in OUTCOMES] == [667, 333, 0]
    assert sum(recorder.requests.values()) == 1000


@given(st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 20_000_000_000)), max_size=200))
def test_batches_are_counted_by_rows_and_by_how_long_they_took(batches: list[tuple[int, int]]) -> None:
    recorder = Recorder()
    rows, took = Histogram(ROW_BOUNDS), Histogram()
    for size, ns in batches:
        recorder.count_batch(size, ns)
        rows.add(size)
        took.add(ns)
    assert (recorder.batch_rows.counts, recorder.batch_rows.total) == (rows.counts, rows.total)
    assert (recorder.batch_ns.counts, recorder.batch_ns.total) == (took.counts, took.total)
    sizes = {size for size, _ in batches}
    assert recorder.by_rows == {
        size: [sum(one == size for one, _ in batches), sum(ns for one, ns in batches if one == size)] for size in sizes
    }
