"""Where there is no room: fresh answers from the caches are given, stale ones where the manifest says so."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.concurrency.dispatching import ManualExecutor
from tests.concurrency.paths import PathBench, rows, tensors
from tests.features_kit import features, group

from tailcut.errors import NotReady, Shed, TailcutError
from tailcut.models.batch_item import Ticket
from tailcut.models.dispatch.dispatcher import Dispatcher
from tailcut.observe.recorder import Recorder
from tailcut.pipeline.pipeline import Path
from tailcut.pipeline.row_transform import encode_answer
from tailcut.scheduler.admission import Admission
from tailcut.scheduler.latency_learner import Costs
from tailcut.scheduler.scheduler import Planner

REFUSED = (Shed, NotReady)
"""An executor that has been busy for long counts as stuck."""
LONG = features(group(ttl="1h"), refresh_ahead=False)


def bench_of(**settings: Any) -> PathBench:
    return PathBench(**({"manual": True, "max_queue_rows": 4, "features": LONG} | settings))


async def served(bench: PathBench, work: Any) -> Any:
    task = asyncio.create_task(work)
    await bench.clock.settle()
    assert bench.manual is not None
    bench.manual.finish()
    return await task


async def fill_up(path: Path, bench: PathBench) -> list[asyncio.Task]:
    """Keep the executor and the whole queue busy with rows that nobody else asks for."""
    tasks = []
    for at in range(5):
        tasks.append(asyncio.create_task(path.compute(bench.call(), tensors(90 + at), 1, path.outputs)))
        await bench.clock.settle()
    assert not any(task.done() for task in tasks)
    return tasks


async def emptied(bench: PathBench, tasks: list[asyncio.Task]) -> None:
    assert bench.manual is not None
    while bench.manual.batch is not None:
        bench.manual.finish()
        await bench.clock.settle()
    await asyncio.gather(*tasks)


async def asked(path: Path, bench: PathBench, *ids: int) -> tuple[Any, str]:
    call = bench.call()
    return json.loads(encode_answer(await path.predict_entities(call, ids))), call.cache


def wanted(*ids: int) -> list[dict[str, float]]:
    return [{"y": 1001.0 * id_, "z": -1001.0 * id_} for id_ in ids]


def test_what_is_fresh_in_the_cache_is_answered_though_the_queue_is_full() -> None:
    bench = bench_of(entity_ttl_s=5.0)

    async def main() -> None:
        async with bench.opened() as path:
            await served(bench, path.predict_entities(bench.call(), [1, 2]))
            busy = await fill_up(path, bench)
            assert await asked(path, bench, 2, 1) == (wanted(2, 1), "hit")
            with pytest.raises(REFUSED):
                await asked(path, bench, 1, 3)
            await bench.clock.pass_time(5.1)
            with pytest.raises(REFUSED):
                await asked(path, bench, 1)
            await emptied(bench, busy)

    bench.run(main())


def test_a_stale_answer_is_given_and_marked_where_the_manifest_says_so() -> None:
    bench = bench_of(entity_ttl_s=5.0, stale_for_s=10.0, fallback_stale=True)

    async def main() -> None:
        async with bench.opened() as path:
            await served(bench, path.predict_entities(bench.call(), [1]))
            await bench.clock.pass_time(6)
            await served(bench, path.predict_entities(bench.call(), [2]))
            busy = await fill_up(path, bench)
            assert await asked(path, bench, 1, 2) == (wanted(1, 2), "stale")
            assert await asked(path, bench, 2) == (wanted(2), "hit")
            assert bench.entity is not None
            assert bench.entity.stale == 1
            with pytest.raises(REFUSED):
                await asked(path, bench, 1, 3)
            await bench.clock.pass_time(9.5)
            with pytest.raises(REFUSED):
                await asked(path, bench, 1)
            await emptied(bench, busy)

    bench.run(main())


def test_with_room_a_stale_answer_is_never_given() -> None:
    bench = PathBench(entity_ttl_s=5.0, stale_for_s=60.0, fallback_stale=True, features=LONG)

    async def main() -> None:
        async with bench.opened() as path:
            assert (await asked(path, bench, 1))[1] == "miss"
            await bench.clock.pass_time(6)
            assert (await asked(path, bench, 1))[1] == "miss"
            assert bench.computed == [1, 1]

    bench.run(main())


@pytest.mark.parametrize("route", ["infer", "rows"])
@pytest.mark.parametrize("stale", [True, False])
def test_tensors_are_recalled_too(route: str, stale: bool) -> None:
    bench = bench_of(tensor_ttl_s=5.0, stale_for_s=10.0, fallback_stale=stale)

    async def ask(path: Path, id_: float) -> str:
        call = bench.call()
        if route == "rows":
            await path.predict_rows(call, rows(id_))
        else:
            path.admit(call, 1, recalls=True)
            assert (await path.infer(call, tensors(id_), 1, path.outputs))["y"].tolist() == [id_]
        return call.cache

    async def main() -> None:
        async with bench.opened() as path:
            await served(bench, path.infer(bench.call(), tensors(1), 1, path.outputs))
            busy = await fill_up(path, bench)
            if stale or route == "infer":
                assert await ask(path, 1) == "hit"
            with pytest.raises(REFUSED):
                await ask(path, 2)
            await bench.clock.pass_time(6)
            if stale:
                assert await ask(path, 1) == "stale"
            else:
                with pytest.raises(REFUSED):
                    await ask(path, 1)
            await emptied(bench, busy)

    bench.run(main())


def test_a_queue_that_fills_up_after_admission_ends_in_a_stale_answer_too() -> None:
    bench = bench_of(
        entity_ttl_s=5.0, stale_for_s=10.0, fallback_stale=True, features=features(group(ttl="5s"), refresh_ahead=False)
    )

    async def main() -> None:
        async with bench.opened() as path:
            await served(bench, path.predict_entities(bench.call(), [1]))
            await bench.clock.pass_time(30)
            await served(bench, path.predict_entities(bench.call(), [1]))
            await bench.clock.pass_time(6)
            bench.source.gate = asyncio.Event()
            call = bench.call()
            asking = asyncio.create_task(path.predict_entities(call, [1]))
            await bench.clock.settle()
            assert not asking.done()
            busy = await fill_up(path, bench)
            bench.source.gate.set()
            assert json.loads(encode_answer(await asking)) == wanted(1)
            assert call.cache == "stale"
            await emptied(bench, busy)

    bench.run(main())


def test_where_no_executor_is_ready_stale_answers_are_given_as_well() -> None:
    bench = bench_of(entity_ttl_s=5.0, stale_for_s=10.0, fallback_stale=True)

    async def main() -> None:
        async with bench.opened() as path:
            await served(bench, path.predict_entities(bench.call(), [1]))
            await bench.clock.pass_time(6)
            path.dispatcher.close(0)
            assert await asked(path, bench, 1) == (wanted(1), "stale")
            with pytest.raises(REFUSED):
                await asked(path, bench, 2)

    bench.run(main())


def test_a_tenant_pays_a_fallback_for_what_it_takes_and_for_nothing_else() -> None:
    bench = bench_of()

    async def main() -> None:
        async with bench.opened() as path:
            assert bench.manual is not None
            await path.dispatcher.remove(bench.manual)
            planner: Planner[Ticket] = Planner(max_rows=1, max_queue_rows=4)
            admission = Admission(planner, Costs(), tenant_share=0.25, tenant_rows_per_s=4.0)
            dispatcher = Dispatcher(
                planner, Recorder(), asyncio.get_running_loop(), bench.clock.monotonic_ns, admission=admission
            )
            executor = ManualExecutor(bench.runtime, dispatcher.on_done, bench.clock)
            dispatcher.add(executor)
            path.fallback = fallback = path.beside(b"v2", ("spare", "2"), dispatcher, None, rows_alone=False)
            asking = []
            for at in range(2):  # one runs, and one waits: the share of the queue
                path.admit(call := bench.call("a"), 1)
                asking.append(asyncio.create_task(path.infer(call, tensors(at), 1, path.outputs)))
                await bench.clock.settle()
            for _ in range(5):
                with pytest.raises(NotReady):
                    path.admit(bench.call("a"), 1)
            for _ in asking:
                executor.finish()
                await bench.clock.settle()
            await asyncio.gather(*asking)
            for _ in range(2):  # the third and the fourth of four in this second
                path.admit(call := bench.call("a"), 1)
                assert call.path is fallback
            with pytest.raises(NotReady):
                path.admit(bench.call("a"), 1)
            dispatcher.close(0)

    bench.run(main())


def test_without_a_cache_a_refusal_is_a_refusal() -> None:
    bench = bench_of()

    async def main() -> None:
        async with bench.opened() as path:
            busy = await fill_up(path, bench)
            call = bench.call()
            with pytest.raises(TailcutError) as caught:
                path.admit(call, 1)
            assert isinstance(caught.value, Shed)
            with pytest.raises(REFUSED):
                await asked(path, bench, 1)
            await emptied(bench, busy)

    bench.run(main())
