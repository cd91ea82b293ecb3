from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.history_kit import DAY_S, START_S, Run, drive
from tests.observe_kit import Ended

from tailcut.common.timings import Stage, Timings
from tailcut.observe.comparison import (
    ComparisonTerms,
    HistoryComparison,
    bucket_of,
    change_of,
    compare,
    draw_weights,
)
from tailcut.observe.latency_figures import REQUEST
from tailcut.observe.sample import Sample
from tailcut.report.comparison import comparison_document
from tailcut.report.document import terminal

MINUTES = 100
SPAN_S = MINUTES * 60.0


def compared(path: Path, model: str | None = None, seed: int = 0) -> HistoryComparison:
    at_s = START_S + DAY_S
    return compare(Run(path).history, at_s, at_s + SPAN_S, DAY_S, model=model, terms=ComparisonTerms(seed=seed))


def recorded(path: Path, seed: int, rate: float = 25, **slower: float) -> None:
    """Record an hour or two of yesterday and of today, each by a run of its own."""
    for day, factors in enumerate(({}, slower)):
        run = Run(path, START_S + day * DAY_S, process=False)
        drive(run, MINUTES, rate, 2 * seed + day, factors)
        run.end()


def verdicts(found: HistoryComparison) -> dict[str, str]:
    ((variant,),) = (model.variants for model in found.models)
    return {stage.stage: stage.verdict for stage in variant.stages}


def test_a_slowed_stage_is_named_and_others_are_not(tmp_path: Path) -> None:
    named, others = 0, 0
    for seed in range(8):
        path = tmp_path / f"{seed}.sqlite"
        recorded(path, seed, features=1.2)
        found = verdicts(compared(path, seed=seed))
        named += found["features"] == "grew"
        others += any(found[stage] in {"grew", "shrank"} for stage in ("receive", "queue", "infer", "encode"))
    assert named == 8
    assert others <= 1


def test_a_stage_that_was_met_in_few_minutes_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    for day, ms in enumerate((1, 3)):
        run = Run(path, START_S + day * DAY_S, process=False)
        drive(run, MINUTES // 2, 25, day)
        timings = Timings(0)
        timings.ns[Stage.PREPROCESS] = timings.last_ns = ms * 1_000_000
        run.recorder.on_requests("risk", [Ended(timings)])
        drive(run, MINUTES // 2, 25, day + 2)
        run.end()
    assert verdicts(compared(path))["preprocess"] == "noise", "one slow call each, in the same minute"


def test_nothing_is_named_where_nothing_changed(tmp_path: Path) -> None:
    falsely = 0
    for seed in range(100, 108):
        path = tmp_path / f"{seed}.sqlite"
        recorded(path, seed)
        falsely += any(verdict in {"grew", "shrank"} for verdict in verdicts(compared(path, seed=seed)).values())
    assert falsely <= 1


def test_growth_is_told_with_intervals_and_its_part_of_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    recorded(path, 1, rate=60, infer=1.5)
    found = compared(path)
    (variant,) = found.models[0].variants
    whole, first = variant.stages[:2]
    assert (whole.stage, first.stage, first.verdict) == ("request", "infer", "grew")
    assert first.mean.low < 0.5 < first.mean.high
    assert first.p95 is not None
    assert first.p95.low < 0.5 < first.p95.high
    assert first.growth_share == pytest.approx(first.growth_ms / whole.growth_ms)
    assert 0.6 < (first.growth_share or 0) < 1.6
    assert first.growth_low_ms < 3.0 < first.growth_high_ms
    features = next(stage for stage in variant.stages if stage.stage == "features")
    assert 0.45 < features.met_before < 0.55
    assert found.grew
    assert found.said


def test_too_little_is_said_and_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    run = Run(path, START_S)
    drive(run, MINUTES, 30, 1)
    run.end()
    run = Run(path, START_S + DAY_S)
    drive(run, 3, 30, 2)
    run.end()
    found = compared(path)
    ((variant,),) = (model.variants for model in found.models)
    assert "the recent span has" in variant.too_little
    assert "at least 400 in 10 are needed" in variant.too_little
    assert not found.said
    assert any("the recent span has rows of 3 of its 100 minutes" in note for note in found.models[0].notes)


def test_another_variant_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    for day, (variant, route, count) in enumerate((("onnx", "infer", 10), ("int8", "predict", 30))):
        run = Run(path, START_S + day * DAY_S)
        run.samples = [Sample("tailcut_served", "", "gauge", {"variant": variant, "version": "v1"}, 1.0)]
        for _ in range(MINUTES):
            run.ask(*[5.0] * count, variant=variant, route=route)
            run.pass_s()
        run.end()
    (model,) = compared(path).models
    notes = " | ".join(model.notes)
    assert "another variant or version was served: onnx v1 before, int8 v1 now" in notes
    assert [variant.variant for variant in model.variants] == [""]  # both have other ones: all together


def test_figures_beside_latencies_that_changed_are_told(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    rng = np.random.default_rng(3)
    for day, (hit, failing) in enumerate(((0.9, 0.0), (0.5, 0.05))):
        run = Run(path, START_S + day * DAY_S)
        hits = misses = 0
        for _ in range(MINUTES):
            found = int(rng.binomial(50, hit))
            hits, misses = hits + found, misses + 50 - found
            run.samples = [
                Sample("tailcut_feature_cache_lookups", "", "counter", {"group": "weather", "result": which}, value)
                for which, value in (("hit", hits), ("miss", misses))
            ]
            run.ask(*[5.0] * 40)
            run.ask(*[1.0] * (1 + 10 * day), code="bad_request")  # says nothing of the server
            if rng.random() < failing * 10:
                run.ask(*[1.0] * 4, code="inference_failed")
            run.pass_s()
        run.end()
    (model,) = compared(path).models
    figures = {each.name: each for each in model.figures}
    hit_rate = figures["hit rate of feature group weather"]
    assert hit_rate.verdict == "shrank"
    assert hit_rate.change.low < -0.4 < hit_rate.change.high
    assert figures["error share"].verdict == "grew"
    assert 0.02 < figures["error share"].change.change < 0.08
    assert "shed share" not in figures  # there was none


@pytest.mark.parametrize(("counts", "idle"), [((0, 20), "earlier"), ((20, 0), "recent")])
def test_a_span_in_which_no_request_came_is_noted(tmp_path: Path, counts: tuple[int, int], idle: str) -> None:
    path = tmp_path / "history.sqlite"
    for day, count in enumerate(counts):
        run = Run(path, START_S + day * DAY_S)
        for _ in range(MINUTES):
            if count:
                run.ask(*[5.0] * count)
            run.pass_s()
        run.end()
    found = compared(path)
    (model,) = found.models
    assert f"no requests came in the {idle} span" in model.notes
    assert "request rate" not in {each.name for each in model.figures}
    assert not any(variant.stages for variant in model.variants)
    assert "nothing could be compared" in terminal(comparison_document(found))


def test_a_stage_with_a_lower_mean_and_a_higher_p95_grew(tmp_path: Path) -> None:
    """As with a cache in front of a model that became slower."""
    path = tmp_path / "history.sqlite"
    random = np.random.default_rng(0)
    for day, (hit_ms, miss_ms) in enumerate(((10.0, 12.0), (5.0, 20.0))):
        run = Run(path, START_S + day * DAY_S, process=False)
        for _ in range(MINUTES):
            run.ask(*(np.where(random.random(60) < 0.2, miss_ms, hit_ms) * random.lognormal(0, 0.1, 60)).tolist())
            run.pass_s()
        run.end()
    found = compared(path)
    ((_, _, stage), *_) = found.grew
    assert (stage.stage, stage.verdict) == (REQUEST, "grew")
    assert stage.p95 is not None
    assert stage.mean.change < 0 < stage.p95.change
    assert "request of risk (onnx) grew in p95 by " in terminal(comparison_document(found))


def test_one_model_alone_is_read(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    recorded(path, 1)
    assert [model.model for model in compared(path, "risk").models] == ["risk"]
    assert compared(path, "other").models == ()


def test_p95_is_the_one_of_the_metrics_page(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    shown = []
    for day in range(2):
        run = Run(path, START_S + day * DAY_S, process=False)
        drive(run, MINUTES, 8, seed=day)
        run.end()
        page = [each for each in run.recorder.latency.samples() if each.labels.get("quantile") == "0.95"]
        shown.append({each.labels["stage"]: each.value for each in page})
    (variant,) = compared(path).models[0].variants
    p95s = {each.stage: (each.p95.before / 1e3, each.p95.after / 1e3) for each in variant.stages if each.p95}
    assert REQUEST in p95s
    for stage, both in p95s.items():
        assert both == pytest.approx((shown[0][stage], shown[1][stage]), rel=1e-12)


def test_intervals_hold_where_neighbours_resemble_one_another() -> None:
    """The mean of a series whose values last for some ten elements, 150 times: its interval holds 0."""
    held, drawn_one_by_one = 0, 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        noise = rng.normal(size=220)
        series = np.zeros(220)
        for place in range(1, 220):
            series[place] = 0.8 * series[place - 1] + noise[place]
        series = series[20:]
        drawn = draw_weights(200, seed) @ series / 200
        found = change_of((0.0, series.mean()), (np.zeros_like(drawn), drawn), 200, is_relative=False)
        held += found.low <= 0 <= found.high
        drawn_one_by_one += abs(series.mean()) <= 2.58 * series.std() / np.sqrt(200)
    assert held >= 0.95 * 150
    assert drawn_one_by_one < 0.75 * 150  # what blocks are for


def test_weights_are_blocks_that_go_around_the_end() -> None:
    weights = draw_weights(50, 1, resamples=40)
    assert weights.shape == (40, 50)
    assert (weights.sum(1) == 50).all()
    assert (draw_weights(50, 1, resamples=40) == weights).all()
    assert weights.mean(0) == pytest.approx(np.ones(50), abs=0.8)


@pytest.mark.parametrize(("span_s", "bucket_s"), [(3600, 60), (DAY_S, 300), (7 * DAY_S, 2100)])
def test_a_span_has_at_most_288_buckets(span_s: int, bucket_s: int) -> None:
    assert bucket_of(span_s) == bucket_s
