"""A prediction cache that does not pay goes off by itself, says so, and comes back when repeats do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.concurrency import pipelines
from tests.concurrency.pipelines import PipelineBench, sums, tensors
from tests.features_kit import features, group

from tailcut.cache.keys import Normal
from tailcut.common.tensors import Arrays
from tailcut.pipeline import cache_fill
from tailcut.pipeline import pipeline as path_module
from tailcut.pipeline.pipeline import Pipeline
from tailcut.pipeline.stages import batching, entity_cache, tensor_cache, transform
from tailcut.pipeline.stages import features as feature_stage

LONG = features(group(ttl="1h", defaults={"value": 0.0}), refresh_ahead=False)
SETTINGS = [{"tensor_ttl_s": 2.0}, {"entity_ttl_s": 2.0, "features": LONG}]
both = pytest.mark.parametrize("settings", SETTINGS, ids=["tensor", "entity"])


class SlowModel:
    """A model that takes a millisecond, without anybody waiting for it."""

    def __init__(self) -> None:
        self._spent_ns = 0
        self.batch_ns = 1_000_000
        self.clock_ns: Callable[[], int] = lambda: 0

    def __call__(self, inputs: Arrays) -> Arrays:
        self._spent_ns += self.batch_ns
        return sums(inputs)

    def now_ns(self) -> int:
        """A clock by which everything but the model takes two microseconds, however busy the machine is."""
        self._spent_ns += 2_000
        return self.clock_ns() + self._spent_ns


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowModel]:
    made = SlowModel()
    stages = entity_cache, feature_stage, transform, tensor_cache, batching
    for module in (*stages, cache_fill, path_module, pipelines):
        monkeypatch.setattr(module, "perf_counter_ns", made.now_ns)
    return made


def bench_of(model: SlowModel, settings: dict[str, Any], **cache: Any) -> PipelineBench:
    bench = PipelineBench(answer=model, cache={"auto": True, **cache}, **settings)
    model.clock_ns = bench.clock.monotonic_ns
    return bench


async def ask(pipeline: Pipeline, bench: PipelineBench, id_: int) -> str:
    bench.clock.advance(0.01)
    call = bench.context()
    if bench.entity is not None:
        await pipeline.predict_entities(call, [id_])
    else:
        await pipeline.infer(call, tensors(id_), 1, pipeline.outputs)
    return call.cache


async def until_on(pipeline: Pipeline, bench: PipelineBench, id_of: Callable[[int], Any]) -> None:
    """Ask until the cache is on and sees repeats, 20,000 times at most; once it is on it stays on."""
    was_on = False
    for at in range(20_000):
        await ask(pipeline, bench, id_of(at))
        is_on = bool(metric(pipeline, "enabled"))
        assert is_on or not was_on, f"off again, on the strength of {metric(pipeline, 'repeat_ratio')}"
        was_on = is_on
        if at % 150 == 149 and is_on and metric(pipeline, "repeat_ratio") > 0.4:
            return
    raise AssertionError(f"on: {metric(pipeline, 'enabled')}, repeats: {metric(pipeline, 'repeat_ratio')}")


def metric(pipeline: Pipeline, name: str) -> float:
    (value,) = (sample.value for sample in pipeline.samples() if sample.name == f"tailcut_prediction_cache_{name}")
    return value


@both
def test_it_goes_off_comes_back_and_says_so(
    settings: dict[str, Any], model: SlowModel, caplog: pytest.LogCaptureFixture
) -> None:
    bench = bench_of(model, settings)

    async def main() -> None:
        async with bench.opened() as pipeline:
            assert metric(pipeline, "enabled") == 1
            new = iter(range(10**6))
            seen = [await ask(pipeline, bench, next(new)) for _ in range(1000)]
            assert (seen[0], seen[-1]) == ("miss", "off")
            assert (metric(pipeline, "enabled"), metric(pipeline, "advice")) == (0, -1)
            assert "is off because it does not pay: 0% of look-ups repeat" in caplog.text
            before = bench.entity or bench.tensor
            assert before is not None
            kept = before.store.statistics().entries
            await ask(pipeline, bench, 1)
            assert before.store.statistics().entries == kept, "while it is off nothing is kept"
            # 150 keys in turn: each comes again after 1.5 seconds. One in sixteen is watched, and shows it.
            assert await ask(pipeline, bench, 500_000) == "off"
            await until_on(pipeline, bench, lambda at: 500_000 + at % 150)
            back = [await ask(pipeline, bench, 500_000 + at % 150) for at in range(600)]
            assert back[-300:].count("hit") > 100
            assert (metric(pipeline, "enabled"), metric(pipeline, "advice")) == (1, 1)
            assert "is on again: 0%" not in caplog.text
            assert "is on again" in caplog.text
            assert metric(pipeline, "repeat_ratio") > 0.4

    with caplog.at_level(logging.INFO, "tailcut.cache"):
        bench.run(main())


@both
def test_with_repeats_it_stays_on_and_is_advised(
    settings: dict[str, Any], model: SlowModel, caplog: pytest.LogCaptureFixture
) -> None:
    bench = bench_of(model, settings)

    async def main() -> None:
        async with bench.opened() as pipeline:
            for at in range(4000):
                await ask(pipeline, bench, at // 2)
            assert (metric(pipeline, "enabled"), metric(pipeline, "advice")) == (1, 1)
            assert 0.45 < metric(pipeline, "repeat_ratio") < 0.55

    with caplog.at_level(logging.INFO, "tailcut.cache"):
        bench.run(main())
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert "pays: 50% of look-ups repeat" in caplog.text


def test_a_model_quicker_than_a_look_up_gets_no_cache(model: SlowModel) -> None:
    bench = bench_of(model, {"tensor_ttl_s": 2.0})

    async def main() -> None:
        async with bench.opened() as pipeline:
            assert bench.tensor is not None
            model.batch_ns = 0
            for at in range(2000):
                await ask(pipeline, bench, at // 2)
                bench.tensor.advisor.cost(1e6, 1e6)  # as if looking up and keeping took a millisecond each
            assert metric(pipeline, "enabled") == 0

    bench.run(main())


def test_without_auto_it_only_advises(model: SlowModel, caplog: pytest.LogCaptureFixture) -> None:
    bench = bench_of(model, {"tensor_ttl_s": 2.0}, auto=False)

    async def main() -> None:
        async with bench.opened() as pipeline:
            seen = [await ask(pipeline, bench, at) for at in range(2000)]
            assert set(seen) == {"miss"}
            assert (metric(pipeline, "enabled"), metric(pipeline, "advice")) == (1, -1)

    bench.run(main())
    assert caplog.text.count("does not pay") == 1
    assert "set cache.tensor.enabled = false" in caplog.text


def test_rows_that_differ_and_look_alike_bring_a_cache_back_too(model: SlowModel) -> None:
    bench = bench_of(model, {"tensor_ttl_s": 2.0}, normal=Normal(digits={"x": 0}))

    async def main() -> None:
        async with bench.opened() as pipeline:
            for at in range(1000):
                await ask(pipeline, bench, at)
            assert metric(pipeline, "enabled") == 0
            await until_on(pipeline, bench, lambda at: at % 150 + (at % 7) / 100)

    bench.run(main())
