from __future__ import annotations

import numpy as np
import pytest

from tailcut.common.histogram import Histogram
from tailcut.common.slo import LatencyObjective
from tailcut.common.timings import STAGE_NAMES
from tailcut.observe.exposition import Exposition, ModelSeries
from tailcut.observe.latency_figures import REQUEST, STAGES, LatencyFigures
from tailcut.observe.recorder import Recorder

INFER = STAGE_NAMES.index("infer")
P95 = LatencyObjective(share=0.95, limit_s=0.02)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def rows(*infer_ms: float) -> np.ndarray:
    found = np.zeros((len(infer_ms), len(STAGE_NAMES)), np.int64)
    found[:, INFER] = [round(each * 1e6) for each in infer_ms]
    return found


def add(figures: LatencyFigures, *infer_ms: float, code: str = "ok", variant: str = "onnx") -> None:
    count = len(infer_ms)
    figures.add(rows(*infer_ms), [variant] * count, [code] * count)


def percentiles(figures: LatencyFigures) -> dict[tuple[str, str, str], float]:
    return {
        (each.labels["variant"], each.labels["stage"], each.labels["quantile"]): each.value * 1e3
        for each in figures.samples()
        if each.name == "tailcut_latency_seconds"
    }


def test_a_percentile_that_grew_by_15_percent_is_seen_and_stages_that_were_not_met_have_none() -> None:
    figures, slower = LatencyFigures(), LatencyFigures()
    durations = np.random.default_rng(3).lognormal(1, 0.4, 5_000)
    add(figures, *durations)
    add(slower, *(durations * 1.15))
    found, grown = percentiles(figures), percentiles(slower)
    assert {stage for _, stage, _ in found} == {"infer", REQUEST}
    for key, ms in found.items():
        assert ms == pytest.approx(float(np.quantile(durations, float(key[2]))), rel=0.03)
        assert grown[key] / ms == pytest.approx(1.15, abs=0.04)


def test_percentiles_are_of_the_last_window_and_the_running_one() -> None:
    clock = Clock()
    figures = LatencyFigures(60, clock)
    add(figures, *[100.0] * 50)
    clock.now_s += 61
    add(figures, *[1.0] * 10)
    assert percentiles(figures)["onnx", REQUEST, "0.95"] == pytest.approx(100, rel=0.04)
    clock.now_s += 60
    assert percentiles(figures)["onnx", REQUEST, "0.95"] == pytest.approx(1, rel=0.04)
    clock.now_s += 600  # nobody asked, nothing was looked at
    assert not percentiles(figures)
    assert figures.counts["onnx"].places[STAGES.index(REQUEST)].sum() == 60


def test_an_objective_counts_late_failed_and_shed_requests_and_none_that_were_wrong() -> None:
    figures = LatencyFigures()
    figures.set_objectives([P95], errors=0.001)
    add(figures, 19.9, 20.0, 20.1)
    add(figures, 1.0, code="shed")
    add(figures, 1.0, code="inference_error")
    add(figures, 1.0, 1.0, code="bad_request")
    add(figures, 1.0, 50.0, code="client_gone")
    latency, errors = figures.objectives
    assert (latency.name, latency.good, latency.total) == ("p95", 2, 6)  # the second client had waited too long
    assert (errors.name, errors.share, errors.good, errors.total) == ("errors", 0.999, 3, 5)


def test_variants_are_told_apart_within_one_call() -> None:
    figures = LatencyFigures()
    figures.add(rows(1.0, 9.0), ["a", "b"], ["ok", "ok"])
    figures.add(rows(1.0, 9.0), ["a", "b"], ["ok", "shed"])
    found = {key: value for key, value in percentiles(figures).items() if key[1:] == (REQUEST, "0.5")}
    assert found == {
        ("a", REQUEST, "0.5"): pytest.approx(1.0, rel=0.04),
        ("b", REQUEST, "0.5"): pytest.approx(9.0, rel=0.04),
    }


@pytest.mark.parametrize("errors", [0.5, 0.001, 1.5e-6, 4e-7])
def test_the_alerts_read_the_error_budget_from_the_label(errors: float) -> None:
    figures = LatencyFigures()
    figures.set_objectives([], errors)
    labels = {each.labels["objective"] for each in figures.samples()}
    assert [1 - float(label) for label in labels] == pytest.approx([errors], rel=1e-4)


def test_the_limits_of_the_slo_are_bounds_of_the_request_histogram() -> None:
    recorder = Recorder()
    recorder.expect("infer")
    recorder.set_objectives([LatencyObjective(share=0.95, limit_s=0.0213)], errors=0.001)
    series = ModelSeries("m", recorder, recorder.latency.samples)
    page = Exposition(lambda: [series], Histogram()).render().decode()
    assert 'tailcut_request_seconds_bucket{le="0.0213",model="m",outcome="ok",route="infer"} 0.0' in page
    assert 'tailcut_slo_good_total{limit="0.0213",model="m",objective="0.95",slo="p95"} 0.0' in page
    assert 'tailcut_slo_requests_total{limit="",model="m",objective="0.999",slo="errors"} 0.0' in page
