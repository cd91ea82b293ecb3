"""Live figures: differences of counts, and when they are made; with clocks of the tests."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.observe_kit import Ended

from tailcut.common.histogram import Histogram
from tailcut.common.slo import LatencyObjective
from tailcut.common.timings import Stage, Timings
from tailcut.observe.exposition import ModelSeries
from tailcut.observe.live import live as module
from tailcut.observe.live.figures import ModelAbout, ModelFigures
from tailcut.observe.live.live import LiveFigures
from tailcut.observe.live.model_figures import POINT, burn_rate
from tailcut.observe.recorder import Recorder
from tailcut.observe.sample import METRICS, Sample

READY = ModelAbout(state="ready", ready=True, costs={"onnx": (0.25, "EUR")})


def ended(infer_ms: float, code: str = "ok", variant: str = "onnx", cache: str = "off") -> Ended:
    timings = Timings(0)
    timings.lap(Stage.RECEIVE, 100_000)
    timings.lap(Stage.INFER, 100_000 + round(infer_ms * 1e6))
    return Ended(timings, code=code, variant=variant, cache=cache)


class Server:
    """A host of recorders, and its live figures, at times that the test sets."""

    def __init__(self, *names: str) -> None:
        self.now_s = 1000.0
        self.recorders = {name: Recorder() for name in names}
        self.samples: dict[str, list[Sample]] = {name: [] for name in names}
        self.abouts = dict.fromkeys(names, READY)
        self.lag = Histogram()
        self.live = LiveFigures(
            self._series,
            lambda: self.abouts,
            lambda: "ready",
            self.lag,
            clock_s=lambda: self.now_s,
            wall_s=lambda: self.now_s + 1.7e9,
        )

    def _series(self) -> list[ModelSeries]:
        return [
            ModelSeries(name, recorder, lambda name=name: self.samples[name])
            for name, recorder in self.recorders.items()
        ]

    def end(self, *requests: Ended, model: str = "m") -> None:
        self.recorders[model].on_requests(model, requests)

    def sample(self, name: str, value: float, *labels: str, model: str = "m") -> None:
        held = [each for each in self.samples[model] if (each.name, tuple(each.labels.values())) != (name, labels)]
        self.samples[model] = [*held, METRICS[name](value, *labels)]

    def take(self, after_s: float = 0.0, model: str = "m") -> ModelFigures:
        self.now_s += after_s
        asyncio.run(self.live.take())
        assert self.live.latest is not None
        return next(each for each in self.live.latest.models if each.name == model)


def defined() -> None:
    """Have every metric defined."""
    import tailcut.transport.lifecycle  # noqa: F401


def test_a_snapshot_is_what_happened_in_the_last_ten_seconds() -> None:
    server = Server("m")
    server.end(*[ended(500)] * 50)
    server.take()
    durations = np.random.default_rng(1).lognormal(1, 0.5, 2_000)
    server.end(*map(ended, durations))
    server.end(ended(1, "shed"), ended(1, "queue_timeout"), ended(1, "model_error"), *[ended(1, "bad_request")] * 3)
    found = server.take(10.0)
    assert found.window_s == 10.0
    requests = found.requests
    assert (requests.all.total, requests.all.rate) == (2_056, 200.6)
    assert (requests.answered.total, requests.answered.rate) == (2_050, 200.0)
    assert [each.total for each in (requests.shed, requests.failed, requests.refused)] == [2, 1, 3]
    assert {code: each.total for code, each in requests.codes.items()} == {
        "shed": 1, "queue_timeout": 1, "model_error": 1, "bad_request": 3,
    }  # fmt: skip
    stages = {each.name: each for each in found.stages}
    assert (stages["infer"].count, stages["queue"].count, stages["queue"].p95_s) == (2_000, 0, None)
    for share, value in zip(
        (50, 95, 99), (stages["infer"].p50_s, stages["infer"].p95_s, stages["infer"].p99_s), strict=True
    ):
        assert value == pytest.approx(np.percentile(durations, share) / 1e3, rel=0.021)
    assert stages["request"].mean_s == pytest.approx(durations.mean() / 1e3 + 1e-4, rel=1e-6)
    parts = [each.mean_s for each in found.stages[:-1]]
    assert sum(filter(None, parts)) == pytest.approx(stages["request"].mean_s)


def test_the_mark_nearest_to_the_window_is_compared_with_and_none_is_kept_for_longer() -> None:
    server = Server("m")
    server.live.viewers = 1
    for second in range(40):
        server.end(*[ended(1)] * (100 if second < 20 else 10))
        found = server.take(1.0)
    assert (found.window_s, found.requests.all.rate) == (10.0, 10.0)
    assert len(list(server.live._tracks["m"].marks)) <= 12


def test_objectives_and_their_burn_rates() -> None:
    server = Server("m")
    server.recorders["m"].set_objectives([LatencyObjective(share=0.95, limit_s=0.02)], 0.01)
    server.end(*[ended(1)] * 80, *[ended(50)] * 20)
    assert [(each.name, each.good, each.total) for each in server.take().objectives] == [
        ("p95", 80, 100),
        ("errors", 100, 100),
    ]
    for _ in range(40):
        server.end(*[ended(1)] * 10)
        found = server.take(10.0)
    p95, errors = found.objectives
    assert (p95.good, p95.total, p95.burn) == (480, 500, pytest.approx(20 / 500 / 0.05))
    assert (p95.burn_recent, errors.burn) == (0.0, 0.0)
    assert burn_rate(0, 0, 0.95) is None
    assert burn_rate(9, 10, 1.0) is None


def test_look_ups_batches_variants_and_gauges_come_from_the_samples() -> None:
    defined()
    server = Server("m")

    def looked(hits: float, misses: float) -> None:
        for result, value in (("hit", hits), ("miss", misses)):
            server.sample("tailcut_feature_cache_lookups", value, "weather", "airport", result)
            server.sample("tailcut_prediction_cache_lookups", value, "entity", result)
        server.sample("tailcut_prediction_cache_enabled", 1.0, "entity")
        server.sample("tailcut_prediction_cache_bytes", 4096, "entity")
        server.sample("tailcut_served", 1.0, "onnx", "v7")
        server.sample("tailcut_queue_rows", 12)
        server.sample("tailcut_executors", 3, "thread")

    looked(100, 100)
    server.take()
    looked(190, 110)
    for rows in (1, 3, 3, 8):
        server.recorders["m"].count_batch(rows, rows * 1_000_000)
    server.end(*[ended(1)] * 6, *[ended(9, variant="int8")] * 2)
    found = server.take(10.0)
    for looked_up in (*found.features, *found.caches):
        assert (looked_up.hits.total, looked_up.misses.total, looked_up.share) == (190, 110, pytest.approx(0.9))
    assert (found.features[0].about, found.caches[0].about, found.caches[0].size_bytes) == ("airport", "on", 4096)
    batches = found.batches
    assert (batches.count.total, batches.rows_mean, batches.seconds_mean) == (4, 3.75, pytest.approx(3.75e-3))
    assert [each for each in batches.sizes if each[1]] == [(1, 1), (4, 2), (8, 1)]
    onnx, int8 = found.variants
    assert (onnx.name, onnx.served, onnx.version, onnx.share, onnx.cost) == ("onnx", True, "v7", 0.75, 0.25)
    assert (int8.served, int8.share, int8.cost, int8.p50_s) == (False, 0.25, None, pytest.approx(9.1e-3, rel=0.03))
    assert (found.now.queue_rows, found.now.executors, found.now.at_risk) == (12, 3, None)


def test_a_counter_that_began_again_is_no_negative_rate() -> None:
    defined()
    server = Server("m")
    for value in (100.0, 3.0):
        for result in ("hit", "miss"):
            server.sample("tailcut_feature_cache_lookups", value, "weather", "airport", result)
        found = server.take(10.0)
    assert (found.features[0].hits.rate, found.features[0].share) == (0.0, None)


def test_the_figures_take_the_names_of_metrics_from_their_definitions() -> None:
    text = "".join(path.read_text() for path in Path(module.__file__).parent.glob("*.py"))
    assert not re.findall(r'["{]tailcut_\w+', text)
    assert len(set(re.findall(r"\bknown\.([A-Z_]+)\b", text))) > 15


def test_snapshots_are_made_each_second_for_viewers_and_rarely_otherwise() -> None:
    server = Server("m")
    taken: list[float] = []
    server.live.on_snapshot.append(lambda snapshot: taken.append(server.now_s))

    async def pass_time(seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            server.now_s = round(server.now_s + 0.1, 1)
            server.live.tick()
            for _ in range(5):
                await asyncio.sleep(0)

    async def main() -> None:
        await pass_time(60)
        assert len(taken) == 6
        server.live.watch()
        server.live.viewers = 1
        await pass_time(10)
        assert len(taken) == 16
        server.live.viewers = 0
        await pass_time(1)
        taken.clear()
        await server.live.asked()
        await pass_time(30)
        assert 5 <= len(taken) <= 9, "whoever asked is taken to watch for five seconds"
        server.live.stop()
        await pass_time(30)
        assert len(taken) <= 9

    asyncio.run(main())


def test_plots_go_back_for_fifteen_minutes_and_no_further() -> None:
    server = Server("m", "other")
    for _ in range(200):
        server.end(ended(2))
        server.take(10.0)
    points = json.loads(server.live.points("m"))
    assert len(points) == 91
    assert all(len(each) == len(POINT) for each in points)
    latest = dict(zip(POINT, points[-1], strict=True))
    assert (latest["rate"], latest["infer"], latest["queue"]) == (0.1, 0.002, 0.0)
    assert json.loads(server.live.last_point("m")) == points[-1]
    assert len(json.loads(server.live.sparks("m"))) == 91
    del server.abouts["other"]
    server.take()
    assert server.live.points("other") == b"[]"


def test_a_model_that_could_not_be_loaded_is_shown_with_the_reason() -> None:
    server = Server("m")
    server.abouts["broken"] = ModelAbout(state="failed", ready=False, reason="its artifact is corrupt")
    found = server.take(model="broken")
    assert (found.state, found.reason, found.requests.all.total) == ("failed", "its artifact is corrupt", 0)


def test_a_snapshot_that_fails_is_logged_once_and_the_next_one_is_made(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("m")

    def fail() -> Sequence[Sample]:
        raise RuntimeError("no figures")

    async def main() -> None:
        for broken in (True, True, False):
            server.live.drift = (lambda model: fail()) if broken else (lambda model: None)
            server.now_s += 20
            server.live.tick()
            for _ in range(5):
                await asyncio.sleep(0)

    asyncio.run(main())
    assert server.live.latest is not None
    assert len([each for each in caplog.records if "live figures" in each.message]) == 1
