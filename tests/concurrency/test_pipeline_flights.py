"""One request works a key out: who waits for it, who leaves and who fails never hurts anybody else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.concurrency.dispatching import ManualExecutor
from tests.concurrency.pipelines import PipelineBench, tensors
from tests.features_kit import features, group

from tailcut.common.tensors import Arrays
from tailcut.errors import DeadlineExceeded, InferenceError
from tailcut.pipeline.pipeline import Pipeline
from tailcut.pipeline.request_context import RequestContext

PLAIN = features(group(ttl="10s"), refresh_ahead=False)
SETTINGS = [{"tensor_ttl_s": 60.0}, {"entity_ttl_s": 60.0, "features": PLAIN}]
both = pytest.mark.parametrize("settings", SETTINGS, ids=["tensor", "entity"])


def begin(
    pipeline: Pipeline, bench: PipelineBench, *ids: float, within_s: float = 60.0, **context: Any
) -> tuple[RequestContext, asyncio.Task]:
    """Start a request by whichever cache there is."""
    made = bench.context(context.get("tenant", ""), within_s)
    made.priority = context.get("priority", 0)
    if bench.entity is not None:
        work: Any = pipeline.predict_entities(made, [int(id_) for id_ in ids])
    else:
        work = pipeline.infer(made, tensors(*ids), len(ids), pipeline.outputs)
    return made, asyncio.create_task(work)


def executor(bench: PipelineBench) -> ManualExecutor:
    assert bench.manual is not None
    return bench.manual


def joins(bench: PipelineBench) -> int:
    cache = bench.entity or bench.tensor
    assert cache is not None
    assert len(cache.flights) == 0, "a flight never landed"
    return cache.joins


@both
def test_requests_for_one_key_are_computed_once(settings: dict[str, Any]) -> None:
    bench = PipelineBench(manual=True, **settings)

    async def main() -> None:
        async with bench.opened() as pipeline:
            asked = [begin(pipeline, bench, 1) for _ in range(20)]
            await bench.clock.settle()
            executor(bench).finish()
            answers = [await task for _, task in asked]
            assert all(str(answer) == str(answers[0]) for answer in answers)
            assert bench.computed == [1]
            assert {context.cache for context, _ in asked} == {"miss"}
            assert joins(bench) == 19
            context, task = begin(pipeline, bench, 1)
            await task
            assert context.cache == "hit"

    bench.run(main())


@both
def test_boards_share_rows_and_a_row_twice_on_a_board_is_computed_once(settings: dict[str, Any]) -> None:
    bench = PipelineBench(manual=True, **settings)

    async def main() -> None:
        async with bench.opened() as pipeline:
            _, one = begin(pipeline, bench, 1, 2, 1)
            await bench.clock.settle()
            _, other = begin(pipeline, bench, 2, 3, 2)
            await bench.clock.settle()
            executor(bench).finish()
            await bench.clock.settle()
            assert one.done()
            assert not other.done()
            executor(bench).finish()
            found = await other
            if bench.tensor is not None:
                assert found["y"].tolist() == [2, 3, 2]
                assert (await one)["y"].tolist() == [1, 2, 1]
            assert bench.computed == [1, 2, 3]
            assert joins(bench) == 2

    bench.run(main())


@both
@pytest.mark.parametrize("how", ["fails", "leaves"])
def test_the_next_one_leads_where_the_leader_fails_or_leaves(settings: dict[str, Any], how: str) -> None:
    bench = PipelineBench(manual=True, **settings)

    async def main() -> None:
        async with bench.opened() as pipeline:
            leader, leading = begin(pipeline, bench, 1)
            await bench.clock.settle()
            others = [begin(pipeline, bench, 1) for _ in range(3)]
            await bench.clock.settle()
            if how == "leaves":
                leader.abandon()
                with pytest.raises(asyncio.CancelledError):
                    await leading
                await bench.clock.settle()
                executor(bench).finish()  # what was running is no longer anybody's
            else:
                executor(bench).finish(InferenceError("not now"))
                with pytest.raises(InferenceError, match="not now"):
                    await leading
            await bench.clock.settle()
            assert not any(task.done() for _, task in others)
            executor(bench).finish()
            await asyncio.gather(*[task for _, task in others])
            assert joins(bench) == 2
            assert bench.computed.count(1) <= 2

    bench.run(main())


@both
def test_every_waiter_has_its_own_deadline(settings: dict[str, Any]) -> None:
    bench = PipelineBench(manual=True, **settings)

    async def main() -> None:
        async with bench.opened() as pipeline:
            _, leading = begin(pipeline, bench, 1)
            await bench.clock.settle()
            _, hurried = begin(pipeline, bench, 1, within_s=0.2)
            _, patient = begin(pipeline, bench, 1)
            await bench.clock.pass_time(0.25)
            with pytest.raises(DeadlineExceeded, match="another request"):
                await hurried
            assert not leading.done()
            executor(bench).finish()
            await asyncio.gather(leading, patient)
            assert joins(bench) == 1

    bench.run(main())


@both
def test_a_waiter_that_leaves_hurts_nobody(settings: dict[str, Any]) -> None:
    bench = PipelineBench(manual=True, **settings)

    async def main() -> None:
        async with bench.opened() as pipeline:
            _, leading = begin(pipeline, bench, 1)
            await bench.clock.settle()
            gone, waiting = begin(pipeline, bench, 1)
            _, staying = begin(pipeline, bench, 1)
            await bench.clock.settle()
            gone.abandon()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            executor(bench).finish()
            await asyncio.gather(leading, staying)
            assert joins(bench) == 1

    bench.run(main())


def test_who_waited_for_two_that_failed_tries_it_alone() -> None:
    """Else the last of many that ask for a row on which the model fails would wait for all of them, one by one."""
    bench = PipelineBench(manual=True, tensor_ttl_s=60.0)

    async def main() -> None:
        async with bench.opened() as pipeline:
            tasks = [begin(pipeline, bench, 1)[1] for _ in range(10)]
            for left in (10, 9, 8):
                await bench.clock.settle()
                assert [task.done() for task in tasks].count(False) == left
                rows = pipeline.serving.dispatcher.running.rows + pipeline.serving.dispatcher.scheduler.waiting.rows
                assert rows == (1 if left > 8 else 8)
                executor(bench).finish(InferenceError("never"))
            await bench.clock.settle()
            while executor(bench).batch is not None:  # the batch of eight is taken apart
                executor(bench).finish(InferenceError("never"))
                await bench.clock.settle()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(error) for error in found} == {InferenceError}
            assert bench.tensor is not None
            assert bench.tensor.store.statistics().entries == 0
            assert joins(bench) == 0

    bench.run(main())


def test_urgent_requests_do_not_wait_for_less_urgent_ones() -> None:
    bench = PipelineBench(manual=True, tensor_ttl_s=60.0)

    async def main() -> None:
        async with bench.opened() as pipeline:
            _, busy = begin(pipeline, bench, 9)
            await bench.clock.settle()
            _, late = begin(pipeline, bench, 1, priority=3)
            await bench.clock.settle()
            _, urgent = begin(pipeline, bench, 1, priority=1)
            _, also_late = begin(pipeline, bench, 1, priority=3)
            await bench.clock.settle()
            for _ in range(3):
                if executor(bench).batch is not None:
                    executor(bench).finish()
                await bench.clock.settle()
            await asyncio.gather(busy, late, urgent, also_late)
            assert joins(bench) == 1, "the second of low priority waits for the urgent one"

    bench.run(main())


def test_tenants_and_outputs_are_worked_out_apart() -> None:
    bench = PipelineBench(manual=True, tensor_ttl_s=60.0)

    async def main() -> None:
        async with bench.opened() as pipeline:
            tasks = [begin(pipeline, bench, 1, tenant=tenant)[1] for tenant in ("a", "b")]
            tasks.append(asyncio.create_task(pipeline.infer(bench.context("a"), tensors(1), 1, ("z",))))
            await bench.clock.settle()
            while executor(bench).batch is not None:
                executor(bench).finish()
                await bench.clock.settle()
            found = await asyncio.gather(*tasks)
            assert [list(one) for one in found] == [["y", "z"], ["y", "z"], ["z"]]
            assert joins(bench) == 0
            assert bench.computed == [1, 1, 1]

    bench.run(main())


def test_answers_made_of_stale_features_are_shared_with_those_who_wait_and_marked() -> None:
    setup = features(group(ttl="10s", stale_for_s=30.0), refresh_ahead=False)
    bench = PipelineBench(manual=True, entity_ttl_s=60.0, features=setup)

    async def main() -> None:
        async with bench.opened() as pipeline:
            assert bench.service is not None
            await bench.service.fetch([(1,)], "", bench.clock.monotonic_s() + 60)
            await bench.clock.pass_time(11)
            bench.source.broken = True
            asked = [begin(pipeline, bench, 1) for _ in range(2)]
            await bench.clock.settle()
            executor(bench).finish()
            await asyncio.gather(*[task for _, task in asked])
            assert [context.cache for context, _ in asked] == ["stale", "stale"]
            assert bench.computed == [1]
            assert bench.entity is not None
            assert bench.entity.store.statistics().entries == 0

    bench.run(main())


def test_a_shared_answer_can_be_changed_by_a_hook_without_harm() -> None:
    def percent(outputs: Arrays) -> list[Any]:
        outputs["y"] *= 100
        return outputs["y"].tolist()

    bench = PipelineBench(manual=True, tensor_ttl_s=60.0, postprocess=percent)

    async def main() -> None:
        async with bench.opened() as pipeline:
            rows = [{"id": 2.0, "value": 0.0}]
            tasks = [asyncio.create_task(pipeline.predict_rows(bench.context(), rows)) for _ in range(3)]
            await bench.clock.settle()
            executor(bench).finish()
            assert await asyncio.gather(*tasks) == [[200.0]] * 3

    bench.run(main())
