"""The path's caches: a hit is the answer that a miss would have made, and no entry outlives what it was made from."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.concurrency.pipelines import PipelineBench, Source, rows, tensors
from tests.features_kit import features, group

from tailcut.common.tensors import Arrays
from tailcut.errors import BadRequest, TooLarge, UnknownEntity
from tailcut.pipeline.pipeline import Pipeline
from tailcut.pipeline.row_transform import encode_answer

PLAIN = features(group(ttl="10s"), refresh_ahead=False)


async def ask(pipeline: Pipeline, bench: PipelineBench, *ids: Any, tenant: str = "") -> tuple[list[Any], str]:
    """Answers as they are on the wire, and how the caches did."""
    call = bench.context(tenant)
    values = await pipeline.predict_entities(call, ids)
    return json.loads(encode_answer(values)), call.cache


def wanted(*ids: int) -> list[dict[str, float]]:
    return [{"y": 1001.0 * id_, "z": -1001.0 * id_} for id_ in ids]


def test_an_entity_is_answered_from_the_cache_until_its_time_is_over() -> None:
    bench = PipelineBench(features=features(group(ttl="1h"), refresh_ahead=False), entity_ttl_s=5.0)

    async def main() -> None:
        async with bench.opened() as pipeline:
            assert await ask(pipeline, bench, 1) == (wanted(1), "miss")
            await bench.clock.pass_time(4.9)
            assert await ask(pipeline, bench, 1) == (wanted(1), "hit")
            assert bench.computed == [1]
            await bench.clock.pass_time(0.2)
            assert await ask(pipeline, bench, 1) == (wanted(1), "miss")
            assert bench.computed == [1, 1]
            assert bench.source.asked == [1], "features live longer than the prediction here"

    bench.run(main())


def test_an_entry_never_outlives_the_features_it_was_made_from() -> None:
    bench = PipelineBench(features=PLAIN, entity_ttl_s=60.0)

    async def main() -> None:
        async with bench.opened() as pipeline:
            assert bench.service is not None
            await bench.service.fetch([(1,)], "", bench.clock.monotonic_s() + 60)
            await bench.clock.pass_time(7)
            assert await ask(pipeline, bench, 1) == (wanted(1), "miss")
            await bench.clock.pass_time(2.9)
            assert (await ask(pipeline, bench, 1))[1] == "hit"
            await bench.clock.pass_time(0.2)
            assert (await ask(pipeline, bench, 1))[1] == "miss"
            assert bench.source.asked == [1, 1]

    bench.run(main())


def test_the_shortest_lived_of_several_groups_counts_and_every_entity_has_its_own() -> None:
    long_lived, short_lived = Source(), Source()
    groups = (
        group("a", ttl="50s", columns=("value",)),
        group("b", ttl="test:ttl", columns=("other",)),
    )

    async def other(keys: Any, context: Any) -> list[dict[str, float]]:
        return [{"other": value["value"]} for value in await short_lived(keys, context) if value is not None]

    functions = {"a": long_lived, "b": other, "ttl": lambda key, row: 4.0 if key[0] == 1 else 8.0}
    bench = PipelineBench(features=features(*groups, refresh_ahead=False), functions=functions, entity_ttl_s=60.0)

    async def main() -> None:
        async with bench.opened() as pipeline:
            assert (await ask(pipeline, bench, 1, 2))[1] == "miss"
            await bench.clock.pass_time(3.9)
            assert (await ask(pipeline, bench, 1, 2))[1] == "hit"
            await bench.clock.pass_time(0.2)
            assert (await ask(pipeline, bench, 2))[1] == "hit"
            assert await ask(pipeline, bench, 2, 1) == (wanted(2, 1), "miss")
            assert short_lived.asked == [1, 2, 1]
            assert long_lived.asked == [1, 2]

    bench.run(main())


def test_stale_features_are_told_and_their_answers_are_not_kept() -> None:
    setup = features(group(ttl="10s", stale_for_s=30.0), refresh_ahead=False)
    bench = PipelineBench(features=setup, entity_ttl_s=60.0)

    async def main() -> None:
        async with bench.opened() as pipeline:
            assert (await ask(pipeline, bench, 1))[1] == "miss"
            await bench.clock.pass_time(11)
            bench.source.broken = True
            for times in (1, 2):
                assert await ask(pipeline, bench, 1) == (wanted(1), "stale")
                assert bench.computed == [1] * (times + 1)
            assert bench.entity is not None
            assert bench.entity.store.statistics().entries == 0
            bench.source.broken = False
            await bench.clock.pass_time(3)
            assert (await ask(pipeline, bench, 1))[1] == "stale", "the source is tried again beside the request"
            await bench.clock.settle()
            assert (await ask(pipeline, bench, 1))[1] == "miss"
            assert (await ask(pipeline, bench, 1))[1] == "hit"

    bench.run(main())


def test_one_stale_entity_does_not_keep_its_neighbours_from_being_cached() -> None:
    setup = features(group(ttl="10s", stale_for_s=30.0), refresh_ahead=False)
    bench = PipelineBench(features=setup, entity_ttl_s=60.0)

    async def main() -> None:
        async with bench.opened() as pipeline:
            await ask(pipeline, bench, 1)
            await bench.clock.pass_time(8)
            assert bench.service is not None
            await bench.service.fetch([(2,)], "", bench.clock.monotonic_s() + 60)
            await bench.clock.pass_time(3)
            bench.source.broken = True
            assert await ask(pipeline, bench, 1, 2) == (wanted(1, 2), "stale")
            assert (await ask(pipeline, bench, 2))[1] == "hit"
            assert (await ask(pipeline, bench, 1))[1] == "stale"

    bench.run(main())


def test_known_and_new_entities_are_answered_in_the_order_asked() -> None:
    bench = PipelineBench(features=PLAIN, entity_ttl_s=60.0)

    async def main() -> None:
        async with bench.opened() as pipeline:
            await ask(pipeline, bench, 3, 1)
            assert await ask(pipeline, bench, 2, 1, 4, 3, 2) == (wanted(2, 1, 4, 3, 2), "miss")
            assert sorted(set(bench.computed)) == [1, 2, 3, 4]
            assert bench.source.asked.count(1) == bench.source.asked.count(3) == 1

    bench.run(main())


@pytest.mark.parametrize("settings", [{}, {"entity_ttl_s": 60.0}, {"tensor_ttl_s": 60.0}])
def test_an_answer_is_the_same_from_the_model_and_from_either_cache(settings: dict[str, float]) -> None:
    bench = PipelineBench(features=PLAIN, postprocess=lambda outputs: [{"p": y} for y in outputs["y"]], **settings)

    async def main() -> None:
        async with bench.opened() as pipeline:
            for _ in range(2):
                assert (await ask(pipeline, bench, 5))[0] == [{"p": 5005.0}]

    bench.run(main())


def test_tenants_do_not_share_entries() -> None:
    bench = PipelineBench(features=PLAIN, entity_ttl_s=60.0)

    async def main() -> None:
        async with bench.opened() as pipeline:
            assert (await ask(pipeline, bench, 1, tenant="a"))[1] == "miss"
            assert (await ask(pipeline, bench, 1, tenant="b"))[1] == "miss"
            assert (await ask(pipeline, bench, 1))[1] == "miss"
            assert (await ask(pipeline, bench, 1, tenant="a"))[1] == "hit"

    bench.run(main())


@pytest.mark.parametrize("cache", ["entity_ttl_s", "tensor_ttl_s"])
def test_another_deployment_version_never_meets_an_old_entry(cache: str) -> None:
    bench = PipelineBench(features=PLAIN, **{cache: 60.0})

    async def main() -> None:
        async with bench.opened(b"v1") as pipeline:
            assert (await ask(pipeline, bench, 1))[1] == "miss"
        async with bench.opened(b"v2") as pipeline:
            assert (await ask(pipeline, bench, 1))[1] == "miss"
        async with bench.opened(b"v1") as pipeline:
            assert (await ask(pipeline, bench, 1))[1] == "hit"

    bench.run(main())


def test_an_unknown_entity_is_not_kept_and_hurts_nobody() -> None:
    bench = PipelineBench(features=PLAIN, entity_ttl_s=60.0)

    async def main() -> None:
        async with bench.opened() as pipeline:
            with pytest.raises(UnknownEntity, match="500"):
                await ask(pipeline, bench, 500)
            assert await ask(pipeline, bench, 1) == (wanted(1), "miss")
            assert bench.computed == [1]

    bench.run(main())


def test_without_features_entities_are_refused() -> None:
    bench = PipelineBench()

    async def main() -> None:
        async with bench.opened() as pipeline:
            with pytest.raises(BadRequest, match="no feature groups"):
                await pipeline.predict_entities(bench.context(), [1])

    bench.run(main())


# -- The tensor cache --------------------------------------------------------------------------------------------------


async def infer(pipeline: Pipeline, bench: PipelineBench, *ids: float, tenant: str = "") -> tuple[Arrays, str]:
    call = bench.context(tenant)
    return await pipeline.infer(call, tensors(*ids), len(ids), pipeline.outputs), call.cache


def test_tensors_are_cached_row_by_row_and_partial_hits_keep_the_order() -> None:
    bench = PipelineBench(tensor_ttl_s=60.0)

    async def main() -> None:
        async with bench.opened() as pipeline:
            assert (await infer(pipeline, bench, 1, 2))[1] == "miss"
            outputs, cache = await infer(pipeline, bench, 2, 3, 1, 4, 2)
            assert (outputs["y"].tolist(), outputs["z"].tolist()) == ([2, 3, 1, 4, 2], [-2, -3, -1, -4, -2])
            assert cache == "miss"
            assert bench.computed == [1, 2, 3, 4]
            outputs, cache = await infer(pipeline, bench, 3, 1)
            assert (outputs["y"].tolist(), cache) == ([3, 1], "hit")
            assert (await infer(pipeline, bench, 1))[0]["y"].tolist() == [1]
            assert bench.computed == [1, 2, 3, 4]

    bench.run(main())


def test_tensor_entries_expire() -> None:
    bench = PipelineBench(tensor_ttl_s=5.0)

    async def main() -> None:
        async with bench.opened() as pipeline:
            await infer(pipeline, bench, 1)
            await bench.clock.pass_time(4.9)
            assert (await infer(pipeline, bench, 1))[1] == "hit"
            await bench.clock.pass_time(0.2)
            assert (await infer(pipeline, bench, 1))[1] == "miss"

    bench.run(main())


def test_tensor_entries_are_the_tenants_own_and_know_which_outputs_were_asked_for() -> None:
    bench = PipelineBench(tensor_ttl_s=60.0)

    async def main() -> None:
        async with bench.opened() as pipeline:
            await infer(pipeline, bench, 1, tenant="a")
            assert (await infer(pipeline, bench, 1, tenant="b"))[1] == "miss"
            assert (await infer(pipeline, bench, 1, tenant="a"))[1] == "hit"
            call = bench.context("a")
            assert list(await pipeline.infer(call, tensors(1), 1, ("z",))) == ["z"]
            assert call.cache == "miss"

    bench.run(main())


def test_a_hook_that_changes_its_outputs_does_not_change_the_cached_ones() -> None:
    def percent(outputs: Arrays) -> list[Any]:
        outputs["y"] *= np.float32(100)
        return outputs["y"].tolist()

    bench = PipelineBench(tensor_ttl_s=60.0, postprocess=percent)

    async def main() -> None:
        async with bench.opened() as pipeline:
            for _ in range(3):
                assert await pipeline.predict_rows(bench.context(), rows(2)) == [200.0]
            for _ in range(3):
                assert await pipeline.predict_rows(bench.context(), rows(2, 3)) == [200.0, 300.0]

    bench.run(main())


def test_an_entry_does_not_keep_the_whole_batch_in_memory() -> None:
    bench = PipelineBench(tensor_ttl_s=60.0)

    async def main() -> None:
        async with bench.opened() as pipeline:
            await infer(pipeline, bench, *range(8))
            assert bench.tensor is not None
            kept = [entry[0] for entry in bench.tensor.store._entries.values()]
            assert len(kept) == 8
            assert all(array.base is None for value in kept for array in value.values())

    bench.run(main())


def test_what_fails_is_not_kept() -> None:
    failing = [True]

    def answer(inputs: Arrays) -> Arrays:
        if failing[0]:
            raise RuntimeError("not now")
        return {"y": inputs["x"][:, 0], "z": inputs["x"][:, 0]}

    bench = PipelineBench(tensor_ttl_s=60.0, answer=answer)

    async def main() -> None:
        async with bench.opened() as pipeline:
            with pytest.raises(Exception, match="not now"):
                await infer(pipeline, bench, 1)
            failing[0] = False
            assert (await infer(pipeline, bench, 1))[1] == "miss"
            assert (await infer(pipeline, bench, 1))[1] == "hit"

    bench.run(main())


def test_a_cached_answer_is_already_encoded() -> None:
    """So that a hit costs no postprocessing and no encoding."""
    bench = PipelineBench(features=PLAIN, entity_ttl_s=60.0)

    async def main() -> None:
        async with bench.opened() as pipeline:
            for _ in range(2):
                values = await pipeline.predict_entities(bench.context(), [1])
                assert isinstance(values[0], msgspec.Raw)

    bench.run(main())


def test_too_many_entities_are_refused_before_they_are_read() -> None:
    bench = PipelineBench(features=PLAIN)

    async def main() -> None:
        async with bench.opened() as pipeline:
            with pytest.raises(TooLarge):
                await pipeline.predict_entities(
                    bench.context(), [["no entity"]] * 65
                )  # reading one would be a BadRequest

    bench.run(main())


def test_a_client_that_left_between_two_waits_is_not_computed_for() -> None:
    bench = PipelineBench()

    async def main() -> None:
        async with bench.opened() as pipeline:
            call = bench.context()
            call.abandon()
            with pytest.raises(asyncio.CancelledError):
                await pipeline.infer(call, tensors(1), 1, ("y", "z"))
            assert bench.computed == []

    bench.run(main())


def test_text_counts_in_an_entrys_size() -> None:
    text = "x" * 5000
    bench = PipelineBench(
        tensor_ttl_s=5.0, answer=lambda inputs: {"y": np.full(len(inputs["x"]), text, object), "z": inputs["x"][:, 0]}
    )

    async def main() -> None:
        async with bench.opened() as pipeline:
            await pipeline.infer(bench.context(), tensors(1), 1, ("y", "z"))
            assert bench.tensor is not None
            assert bench.tensor.store.statistics().bytes > 5000

    bench.run(main())
