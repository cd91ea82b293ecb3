from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.observe_kit import record

from tailcut.common.histogram import LATENCY_BOUNDS_NS, Histogram
from tailcut.common.timings import Stage, Timings
from tailcut.observe.exposition import Exposition, ModelSeries
from tailcut.observe.recorder import Recorder
from tailcut.observe.sample import Sample, Source


def exposition_of(recorder: Recorder, source: Source = tuple) -> Exposition:
    return Exposition(lambda: [ModelSeries("m", recorder, source)], Histogram())


def scraped(exposition: Exposition) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(exposition.render().decode())}


def one_request() -> Recorder:
    recorder = Recorder()
    timings = Timings(0)
    timings.lap(Stage.RECEIVE, 3_000)
    timings.lap(Stage.INFER, 20_000_003_000)
    record(recorder, timings, "infer", "onnx", "ok", "miss")
    recorder.count_batch(3, 2_000_000)
    return recorder


def test_an_empty_recorder_can_be_scraped() -> None:
    families = scraped(exposition_of(Recorder()))
    assert families["tailcut_requests"].samples == []
    assert {"tailcut_stage_seconds", "tailcut_batch_rows", "tailcut_loop_lag_seconds"} <= set(families)


def test_stages_are_histograms_in_seconds() -> None:
    stage = scraped(exposition_of(one_request()))["tailcut_stage_seconds"]
    assert stage.type == "histogram"
    receive = {
        sample.labels["le"]: sample.value
        for sample in stage.samples
        if sample.name.endswith("_bucket") and sample.labels["stage"] == "receive"
    }
    assert [float(bound) for bound in receive][:-1] == pytest.approx([ns / 1e9 for ns in LATENCY_BOUNDS_NS])
    assert (receive["2.5e-06"], receive["5e-06"], receive["+Inf"]) == (0, 1, 1)
    infer = [sample for sample in stage.samples if sample.labels["stage"] == "infer"]
    above = {sample.labels["le"]: sample.value for sample in infer if sample.name.endswith("_bucket")}
    assert (above["10"], above["+Inf"]) == (0, 1)
    assert next(sample.value for sample in infer if sample.name.endswith("_sum")) == pytest.approx(20)
    assert {sample.labels["stage"] for sample in stage.samples} == {"receive", "infer"}


def test_buckets_ascend_and_end_at_infinity() -> None:
    for family in scraped(exposition_of(one_request())).values():
        if family.type != "histogram":
            continue
        series: dict[str, list[tuple[float, float]]] = {}
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                key = str({name: value for name, value in sample.labels.items() if name != "le"})
                series.setdefault(key, []).append((float(sample.labels["le"]), sample.value))
        for buckets in series.values():
            assert buckets == sorted(buckets)
            assert [value for _, value in buckets] == sorted(value for _, value in buckets)
            assert buckets[-1][0] == math.inf


def test_requests_are_counted_by_their_labels() -> None:
    found = [
        sample
        for sample in scraped(exposition_of(one_request()))["tailcut_requests"].samples
        if sample.name == "tailcut_requests_total"
    ]
    (sample,) = [each for each in found if each.value]
    labels = {"model": "m", "route": "infer", "variant": "onnx", "outcome": "ok", "code": "ok", "cache": "miss"}
    assert (sample.value, sample.labels) == (1, labels)
    assert {(each.labels["outcome"], each.labels["code"]) for each in found} >= {
        ("4xx", "shed"),
        ("4xx", "bad_request"),
        ("5xx", "feature_unavailable"),
        ("5xx", "queue_timeout"),
    }


def test_further_sources_are_read_at_every_scrape() -> None:
    values = iter([1.0, 2.0])

    def source() -> list[Sample]:
        value = next(values)
        return [
            Sample("tailcut_things", "Things.", "counter", {"kind": kind}, value) for kind in ("a", 'quo"te\\and\nline')
        ] + [Sample("tailcut_level", "Level.", "gauge", {}, -value)]

    exposition = exposition_of(Recorder(), source)
    for wanted in (1.0, 2.0):
        families = scraped(exposition)
        things = [sample for sample in families["tailcut_things"].samples if sample.name.endswith("_total")]
        assert [sample.value for sample in things] == [wanted, wanted]
        assert {sample.labels["kind"] for sample in things} == {"a", 'quo"te\\and\nline'}
        assert families["tailcut_level"].samples[0].value == -wanted


def test_a_source_that_fails_hides_no_other_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Iterator[Sample]:
        yield Sample("tailcut_before", "", "gauge", {}, 1.0)
        raise RuntimeError("broken")

    exposition = exposition_of(one_request(), broken)
    exposition.add(lambda: [Sample("tailcut_after", "", "gauge", {}, 2.0)])
    for count in (1, 2):
        families = scraped(exposition)
        assert [families[name].samples[0].value for name in ("tailcut_before", "tailcut_after")] == [1.0, 2.0]
        assert families["tailcut_metric_source_errors"].samples[0].value == count
        assert families["tailcut_requests"].samples
    assert caplog.text.count("RuntimeError: broken") == 1
