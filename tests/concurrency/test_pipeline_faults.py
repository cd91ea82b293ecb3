"""Clients that leave, deadlines that pass and stages that fail: the work is dropped, neighbours are served."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from tests.concurrency.dispatching import ManualExecutor
from tests.concurrency.pipelines import PipelineBench, rows, sums, tensors
from tests.features_kit import features, group

from tailcut.common.tensors import Arrays
from tailcut.common.timings import Stage
from tailcut.errors import (
    DeadlineExceeded,
    FeatureTimeout,
    FeatureUnavailable,
    HookError,
    InferenceError,
    InferTimeout,
    QueueTimeout,
    Shed,
    TailcutError,
)
from tailcut.pipeline.pipeline import Pipeline
from tailcut.pipeline.request_context import RequestContext
from tailcut.testing.runtimes import StubRuntime

FEATURES = features(group(ttl="10s"), refresh_ahead=False, timeout_s=1000.0)


def started(work: Awaitable[Any]) -> asyncio.Task[Any]:
    return asyncio.ensure_future(work)  # type: ignore[return-value]


def infer(pipeline: Pipeline, context: RequestContext, *ids: float) -> asyncio.Task[Any]:
    return started(pipeline.infer(context, tensors(*ids), len(ids), pipeline.outputs))


def executor(bench: PipelineBench) -> ManualExecutor:
    assert bench.manual is not None
    return bench.manual


def test_a_client_that_leaves_the_queue_is_not_computed() -> None:
    bench = PipelineBench(manual=True)

    async def main() -> None:
        async with bench.opened() as pipeline:
            runs = infer(pipeline, bench.context(), 1)
            await bench.clock.settle()
            context = bench.context()
            leaves, stays = infer(pipeline, context, 2), infer(pipeline, bench.context(), 3)
            await bench.clock.settle()
            context.abandon()
            await bench.clock.settle()
            assert leaves.cancelled()
            assert context.gone
            assert pipeline.serving.dispatcher.scheduler.waiting.rows == 1
            for _ in range(2):
                executor(bench).finish()
                await bench.clock.settle()
            assert ((await runs)["y"].tolist(), (await stays)["y"].tolist()) == ([1], [3])
            assert bench.computed == [1, 3]

    bench.run(main())


def test_a_client_that_leaves_a_running_batch_does_not_hurt_its_neighbour() -> None:
    bench = PipelineBench(manual=True)

    async def main() -> None:
        async with bench.opened() as pipeline:
            context = bench.context()
            leaves, stays = infer(pipeline, context, 1), infer(pipeline, bench.context(), 2)
            await bench.clock.settle()
            context.abandon()
            executor(bench).finish()
            await bench.clock.settle()
            assert leaves.cancelled()
            assert (await stays)["y"].tolist() == [2]
            assert context.timings.ns[Stage.INFER] == 0

    bench.run(main())


def test_a_client_that_leaves_takes_all_parts_of_its_request_with_it() -> None:
    bench = PipelineBench(manual=True, max_rows=2)

    async def main() -> None:
        async with bench.opened() as pipeline:
            context = bench.context()
            leaves = infer(pipeline, context, *range(6))
            await bench.clock.settle()
            context.abandon()
            await bench.clock.settle()
            assert leaves.cancelled()
            assert pipeline.serving.dispatcher.scheduler.waiting.rows == 0
            executor(bench).finish()
            await bench.clock.settle()
            assert bench.computed == [0, 1]
            assert executor(bench).batch is None

    bench.run(main())


def test_a_client_that_leaves_while_features_are_fetched_is_not_computed() -> None:
    bench = PipelineBench(features=FEATURES)
    bench.source.gate = asyncio.Event()

    async def main() -> None:
        async with bench.opened() as pipeline:
            context, other = bench.context(), bench.context()
            leaves = started(pipeline.predict_entities(context, [1]))
            stays = started(pipeline.predict_entities(other, [1]))
            await bench.clock.settle()
            context.abandon()
            await bench.clock.settle()
            assert leaves.cancelled()
            assert bench.source.gate is not None
            bench.source.gate.set()
            assert await stays == [{"y": 1001.0, "z": -1001.0}]
            assert bench.computed == [1]
            assert bench.source.asked == [1], "the other waits for the same call"

    bench.run(main())


def test_without_a_cache_the_source_call_of_a_client_that_left_is_cancelled() -> None:
    bench = PipelineBench(features=features(group(), cache="off", timeout_s=1000.0))
    bench.source.gate = asyncio.Event()

    async def main() -> None:
        async with bench.opened() as pipeline:
            context = bench.context()
            leaves = started(pipeline.predict_entities(context, [1]))
            await bench.clock.settle()
            context.abandon()
            await bench.clock.settle()
            assert leaves.cancelled()
            await bench.clock.settle()
            assert bench.source.cancelled == 1

    bench.run(main())


def test_a_request_whose_time_is_over_is_not_admitted() -> None:
    bench = PipelineBench()

    async def main() -> None:
        async with bench.opened() as pipeline:
            with pytest.raises(DeadlineExceeded, match="before the request was admitted"):
                await pipeline.predict_rows(bench.context(within_s=-1), rows(1))
            assert bench.computed == []

    bench.run(main())


@pytest.mark.parametrize("cached", [True, False])
def test_a_slow_source_ends_the_request_at_its_deadline(cached: bool) -> None:
    bench = PipelineBench(features=FEATURES if cached else features(group(), cache="off", timeout_s=1000.0))
    bench.source.gate = asyncio.Event()

    async def main() -> None:
        async with bench.opened() as pipeline:
            work = started(pipeline.predict_entities(bench.context(within_s=60), [1]))
            await bench.clock.pass_time(59)
            assert not work.done()
            await bench.clock.pass_time(1.1)
            with pytest.raises(FeatureTimeout):
                await work
            assert bench.computed == []

    bench.run(main())


@pytest.mark.parametrize(("queued", "error"), [(True, QueueTimeout), (False, InferTimeout)])
def test_a_busy_or_hanging_model_ends_the_request_at_its_deadline(queued: bool, error: type[TailcutError]) -> None:
    bench = PipelineBench(manual=True)

    async def main() -> None:
        async with bench.opened() as pipeline:
            if queued:
                first = infer(pipeline, bench.context(within_s=999), 0)
                await bench.clock.settle()
            work = infer(pipeline, bench.context(within_s=60), 1)
            await bench.clock.pass_time(59)
            assert not work.done()
            await bench.clock.pass_time(1.1)
            with pytest.raises(error):
                await work
            if queued:
                executor(bench).finish()
                assert (await first)["y"].tolist() == [0]

    bench.run(main())


def test_a_source_that_fails_is_named_and_nothing_is_computed() -> None:
    bench = PipelineBench(features=FEATURES, entity_ttl_s=60.0)
    bench.source.broken = True

    async def main() -> None:
        async with bench.opened() as pipeline:
            with pytest.raises(FeatureUnavailable, match='feature group "g"'):
                await pipeline.predict_entities(bench.context(), [1])
            assert bench.computed == []
            bench.source.broken = False
            await bench.clock.pass_time(3)
            assert await pipeline.predict_entities(bench.context(), [1])

    bench.run(main())


def test_when_one_part_of_a_request_fails_the_rest_is_not_computed() -> None:
    bench = PipelineBench(manual=True, max_rows=2)

    async def main() -> None:
        async with bench.opened() as pipeline:
            work = infer(pipeline, bench.context(), *range(6))
            await bench.clock.settle()
            executor(bench).finish(InferenceError("told to fail"))
            with pytest.raises(InferenceError, match="told to fail"):
                await work
            await bench.clock.settle()
            assert pipeline.serving.dispatcher.scheduler.waiting.rows == 0
            assert bench.computed == []

    bench.run(main())


def test_a_full_queue_refuses_before_any_work_is_done() -> None:
    bench = PipelineBench(manual=True, features=FEATURES, max_queue_rows=4)

    async def main() -> None:
        async with bench.opened() as pipeline:
            infer(pipeline, bench.context(), 1)
            await bench.clock.settle()
            waiting = infer(pipeline, bench.context(), 2, 3, 4, 5)
            await bench.clock.settle()
            with pytest.raises(Shed):
                await pipeline.predict_entities(bench.context(), [1])
            assert bench.source.asked == []
            waiting.cancel()

    bench.run(main())


def test_a_hook_that_fails_does_not_hurt_its_neighbour_in_the_batch() -> None:
    def postprocess(outputs: Any) -> list[Any]:
        if outputs["y"][0] == 1:
            raise ValueError("one is too few")
        return outputs["y"].tolist()

    bench = PipelineBench(manual=True, postprocess=postprocess)

    async def main() -> None:
        async with bench.opened() as pipeline:
            bad = started(pipeline.predict_rows(bench.context(), rows(1)))
            good = started(pipeline.predict_rows(bench.context(), rows(2)))
            await bench.clock.settle()
            executor(bench).finish()
            with pytest.raises(HookError, match="one is too few"):
                await bad
            assert await good == [2.0]
            assert bench.runtime.rows == [2]

    bench.run(main())


def test_every_stage_of_a_request_sums_to_its_total() -> None:
    bench = PipelineBench(features=FEATURES, entity_ttl_s=60.0, tensor_ttl_s=60.0)

    async def main() -> None:
        async with bench.opened() as pipeline:
            for ids in ([1], [1, 2], [2]):
                context = bench.context()
                await pipeline.predict_entities(context, ids)
                ns = context.timings.ns
                assert sum(ns) == context.timings.total_ns > 0
                assert min(ns) >= 0
            assert context.cache == "hit"
            assert ns[Stage.ENTITY_CACHE] > 0
            assert ns[Stage.FEATURES] == ns[Stage.INFER] == ns[Stage.QUEUE] == 0

    bench.run(main())


# -- A request that is alone runs without an item ---------------------------------------------------------------------


@pytest.fixture
def lone() -> PipelineBench:
    bench = PipelineBench(features=features(group(ttl="0s"), timeout_s=1000.0))
    bench.in_flight = (None,)
    return bench


def test_a_lone_request_whose_time_ends_before_the_model_is_not_computed(lone: PipelineBench) -> None:
    async def main() -> None:
        async with lone.opened() as pipeline:
            context = lone.context(within_s=60)
            await lone.clock.pass_time(61)
            with pytest.raises(QueueTimeout):
                await pipeline.infer(context, tensors(1), 1, pipeline.outputs)
            assert lone.computed == []

    lone.run(main())


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(1), KeyboardInterrupt()])
def test_a_lone_request_whose_model_fails_hurts_nobody_after_it(lone: PipelineBench, error: BaseException) -> None:
    errors = [error]

    def answer(inputs: Arrays) -> Arrays:
        if errors:
            raise errors.pop()
        return sums(inputs)

    lone.runtime = StubRuntime(answer)

    async def main() -> None:
        async with lone.opened() as pipeline:
            context = lone.context()
            with pytest.raises(InferenceError, match=type(error).__name__):
                await pipeline.infer(context, tensors(1), 1, pipeline.outputs)
            assert sum(context.timings.ns) == context.timings.total_ns
            assert (await pipeline.infer(lone.context(), tensors(2), 1, pipeline.outputs))["y"].tolist() == [2]

    lone.run(main())
