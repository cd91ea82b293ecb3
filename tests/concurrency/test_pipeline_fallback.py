"""Where there is no room: fresh answers from the caches are given, stale ones where the manifest says so."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.concurrency.dispatching import ManualExecutor
from tests.concurrency.pipelines import PipelineBench, rows, tensors
from tests.features_kit import features, group

from tailcut.errors import NotReady, Shed, TailcutError
from tailcut.models.batch_item import BatchItem
from tailcut.models.dispatch.dispatcher import Dispatcher
from tailcut.observe.recorder import ModelSinks, VariantBatches
from tailcut.pipeline.pipeline import Pipeline
from tailcut.pipeline.request_context import ServedVariant
from tailcut.pipeline.row_transform import encode_answer
from tailcut.scheduler.admission import Admission
from tailcut.scheduler.cost import LatencyLearner
from tailcut.scheduler.scheduler import Scheduler

REFUSED = (Shed, NotReady)
"""An executor that has been busy for long counts as stuck."""
LONG = features(group(ttl="1h"), refresh_ahead=False)


def bench_of(**settings: Any) -> PipelineBench:
    return PipelineBench(**({"manual": True, "max_queue_rows": 4, "features": LONG} | settings))


async def served(bench: PipelineBench, work: Any) -> Any:
    task = asyncio.create_task(work)
    await bench.clock.settle()
    assert bench.manual is not None
    bench.manual.finish()
    return await task


async def fill_up(pipeline: Pipeline, bench: PipelineBench) -> list[asyncio.Future]:
    """Keep the executor and the whole queue busy with rows that nobody else asks for."""
    tasks = []
    for at in range(5):
        due_ns = bench.context().deadline_ns
        (item,) = pipeline.serving.dispatcher.submit(tensors(90 + at), 1, pipeline.outputs, due_ns, None)
        tasks.append(item.future)
        await bench.clock.settle()
    assert not any(task.done() for task in tasks)
    return tasks


async def emptied(bench: PipelineBench, tasks: list[asyncio.Future]) -> None:
    assert bench.manual is not None
    while bench.manual.batch is not None:
        bench.manual.finish()
        await bench.clock.settle()
    await asyncio.gather(*tasks)


async def asked(pipeline: Pipeline, bench: PipelineBench, *ids: int) -> tuple[Any, str]:
    call = bench.context()
    return json.loads(encode_answer(await pipeline.predict_entities(call, ids))), call.cache


def wanted(*ids: int) -> list[dict[str, float]]:
    return [{"y": 1001.0 * id_, "z": -1001.0 * id_} for id_ in ids]


def test_what_is_fresh_in_the_cache_is_answered_though_the_queue_is_full() -> None:
    bench = bench_of(entity_ttl_s=5.0)

    async def main() -> None:
        async with bench.opened() as pipeline:
            await served(bench, pipeline.predict_entities(bench.context(), [1, 2]))
            busy = await fill_up(pipeline, bench)
            assert await asked(pipeline, bench, 2, 1) == (wanted(2, 1), "hit")
            with pytest.raises(REFUSED):
                await asked(pipeline, bench, 1, 3)
            await bench.clock.pass_time(5.1)
            with pytest.raises(REFUSED):
                await asked(pipeline, bench, 1)
            await emptied(bench, busy)

    bench.run(main())


def test_a_stale_answer_is_given_and_marked_where_the_manifest_says_so() -> None:
    bench = bench_of(entity_ttl_s=5.0, stale_for_s=10.0, fallback_stale=True)

    async def main() -> None:
        async with bench.opened() as pipeline:
            await served(bench, pipeline.predict_entities(bench.context(), [1]))
            await bench.clock.pass_time(6)
            await served(bench, pipeline.predict_entities(bench.context(), [2]))
            busy = await fill_up(pipeline, bench)
            assert await asked(pipeline, bench, 1, 2) == (wanted(1, 2), "stale")
            assert await asked(pipeline, bench, 2) == (wanted(2), "hit")
            assert bench.entity is not None
            assert bench.entity.stale == 1
            with pytest.raises(REFUSED):
                await asked(pipeline, bench, 1, 3)
            await bench.clock.pass_time(9.5)
            with pytest.raises(REFUSED):
                await asked(pipeline, bench, 1)
            await emptied(bench, busy)

    bench.run(main())


def test_with_room_a_stale_answer_is_never_given() -> None:
    bench = PipelineBench(entity_ttl_s=5.0, stale_for_s=60.0, fallback_stale=True, features=LONG)

    async def main() -> None:
        async with bench.opened() as pipeline:
            assert (await asked(pipeline, bench, 1))[1] == "miss"
            await bench.clock.pass_time(6)
            assert (await asked(pipeline, bench, 1))[1] == "miss"
            assert bench.computed == [1, 1]

    bench.run(main())


@pytest.mark.parametrize("route", ["infer", "rows"])
@pytest.mark.parametrize("stale", [True, False])
def test_tensors_are_recalled_too(route: str, stale: bool) -> None:
    bench = bench_of(tensor_ttl_s=5.0, stale_for_s=10.0, fallback_stale=stale)

    async def ask(pipeline: Pipeline, id_: float) -> str:
        call = bench.context()
        if route == "rows":
            await pipeline.predict_rows(call, rows(id_))
        else:
            pipeline.admit(call, 1, recalls=True)
            assert (await pipeline.infer(call, tensors(id_), 1, pipeline.outputs))["y"].tolist() == [id_]
        return call.cache

    async def main() -> None:
        async with bench.opened() as pipeline:
            await served(bench, pipeline.infer(bench.context(), tensors(1), 1, pipeline.outputs))
            busy = await fill_up(pipeline, bench)
            if stale or route == "infer":
                assert await ask(pipeline, 1) == "hit"
            with pytest.raises(REFUSED):
                await ask(pipeline, 2)
            await bench.clock.pass_time(6)
            if stale:
                assert await ask(pipeline, 1) == "stale"
            else:
                with pytest.raises(REFUSED):
                    await ask(pipeline, 1)
            await emptied(bench, busy)

    bench.run(main())


def test_a_queue_that_fills_up_after_admission_ends_in_a_stale_answer_too() -> None:
    bench = bench_of(
        entity_ttl_s=5.0, stale_for_s=10.0, fallback_stale=True, features=features(group(ttl="5s"), refresh_ahead=False)
    )

    async def main() -> None:
        async with bench.opened() as pipeline:
            await served(bench, pipeline.predict_entities(bench.context(), [1]))
            await bench.clock.pass_time(30)
            await served(bench, pipeline.predict_entities(bench.context(), [1]))
            await bench.clock.pass_time(6)
            bench.source.gate = asyncio.Event()
            call = bench.context()
            asking = asyncio.create_task(pipeline.predict_entities(call, [1]))
            await bench.clock.settle()
            assert not asking.done()
            busy = await fill_up(pipeline, bench)
            bench.source.gate.set()
            assert json.loads(encode_answer(await asking)) == wanted(1)
            assert call.cache == "stale"
            await emptied(bench, busy)

    bench.run(main())


def test_where_no_executor_is_ready_stale_answers_are_given_as_well() -> None:
    bench = bench_of(entity_ttl_s=5.0, stale_for_s=10.0, fallback_stale=True)

    async def main() -> None:
        async with bench.opened() as pipeline:
            await served(bench, pipeline.predict_entities(bench.context(), [1]))
            await bench.clock.pass_time(6)
            pipeline.serving.dispatcher.close(0)
            assert await asked(pipeline, bench, 1) == (wanted(1), "stale")
            with pytest.raises(REFUSED):
                await asked(pipeline, bench, 2)

    bench.run(main())


def test_a_tenant_pays_a_fallback_for_what_it_takes_and_for_nothing_else() -> None:
    bench = bench_of()

    async def main() -> None:
        async with bench.opened() as pipeline:
            assert bench.manual is not None
            await pipeline.serving.dispatcher.remove(bench.manual)
            scheduler: Scheduler[BatchItem] = Scheduler(max_rows=1, max_queue_rows=4)
            admission = Admission(scheduler, LatencyLearner(), tenant_share=0.25, tenant_rows_per_s=4.0)
            dispatcher = Dispatcher(
                scheduler,
                VariantBatches("onnx", "1", ModelSinks("m")),
                asyncio.get_running_loop(),
                bench.clock.monotonic_ns,
                admission=admission,
            )
            executor = ManualExecutor(bench.runtime, dispatcher.on_done, bench.clock)
            dispatcher.add(executor)
            fallback = ServedVariant(dispatcher, name="spare", version="2", deployment_version=b"v2")
            pipeline.put(pipeline.serving, fallback)
            asking = []
            for at in range(2):  # one runs, and one waits: the share of the queue
                pipeline.admit(call := bench.context("a"), 1)
                asking.append(asyncio.create_task(pipeline.infer(call, tensors(at), 1, pipeline.outputs)))
                await bench.clock.settle()
            for _ in range(5):
                with pytest.raises(NotReady):
                    pipeline.admit(bench.context("a"), 1)
            for _ in asking:
                executor.finish()
                await bench.clock.settle()
            await asyncio.gather(*asking)
            for _ in range(2):  # the third and the fourth of four in this second
                pipeline.admit(call := bench.context("a"), 1)
                assert call.served is fallback
            with pytest.raises(NotReady):
                pipeline.admit(bench.context("a"), 1)
            dispatcher.close(0)

    bench.run(main())


def test_without_a_cache_a_refusal_is_a_refusal() -> None:
    bench = bench_of()

    async def main() -> None:
        async with bench.opened() as pipeline:
            busy = await fill_up(pipeline, bench)
            call = bench.context()
            with pytest.raises(TailcutError) as caught:
                pipeline.admit(call, 1)
            assert isinstance(caught.value, Shed)
            with pytest.raises(REFUSED):
                await asked(pipeline, bench, 1)
            await emptied(bench, busy)

    bench.run(main())
