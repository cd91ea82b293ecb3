"""Rows that a build keeps: of all lengths, answered and allowed; and rows that it sends under load, as they are."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.app_kit import running
from tests.models import graphs

from tailcut.builder import Holdout
from tailcut.builder.holdouts import kept_rows
from tailcut.builder.speed import served
from tailcut.common.bounds import Bound
from tailcut.common.tensors import Arrays
from tailcut.errors import ManifestError
from tailcut.manifest import Deployment, Model, TensorSpec, load
from tailcut.registry.rows import KeptRows

TOKENS = 64
PADDED = Model(
    source="m:m",
    inputs=(
        TensorSpec(name="ids", datatype="INT64", shape=(-1, -1)),
        TensorSpec(name="mask", datatype="INT64", shape=(-1, -1)),
    ),
    outputs=(TensorSpec(name="y"),),
)
NUMBERS = Model(
    source="m:m", inputs=(TensorSpec(name="x", shape=(-1, 2), allow_nan=True),), outputs=(TensorSpec(name="y"),)
)


def padded(ends: list[int]) -> Holdout:
    mask = (np.arange(TOKENS)[None] < np.array(ends)[:, None]).astype(np.int64)
    return Holdout({"ids": mask * np.arange(1, len(ends) + 1)[:, None], "mask": mask}, padding="mask")


def numbers(count: int) -> Holdout:
    return Holdout({"x": np.arange(2.0 * count, dtype=np.float32).reshape(count, 2)})


def chosen(holdout: Holdout, model: Model = NUMBERS, count: int = 8, answers: Arrays | None = None) -> KeptRows:
    found = kept_rows.choose(holdout, answers or {}, model, [], count)
    assert found is not None
    return found


@given(ends=st.lists(st.integers(1, TOKENS), min_size=1, max_size=60), count=st.integers(1, 12))
def test_rows_are_of_all_lengths_from_the_shortest_to_the_longest(ends: list[int], count: int) -> None:
    holdout = padded(ends)
    found = chosen(holdout, PADDED, count)
    assert found.padding == "mask"
    assert found.count == min(count, len(ends))
    sizes = found.inputs["mask"].sum(axis=1).tolist()
    assert sizes == sorted(sizes)
    assert sizes[0] == min(ends)
    assert count == 1 or sizes[-1] == max(ends)
    numbers = found.inputs["ids"].max(axis=1).tolist()
    assert len(set(numbers)) == found.count, "no row twice"
    assert sizes == [ends[number - 1] for number in numbers], "whole rows of the holdout"


def test_the_same_data_give_the_same_rows() -> None:
    one, two = (chosen(numbers(1000)).inputs["x"].tolist() for _ in range(2))
    assert one == two
    assert one != numbers(1000).inputs["x"][:8].tolist(), "not the first, which may be sorted"


def test_texts_count_by_their_characters() -> None:
    model = Model(source="m:m", inputs=(TensorSpec(name="t", datatype="BYTES"),), outputs=(TensorSpec(name="y"),))
    texts = np.array([length * "a" for length in (5, 1, 9, 3, 7)], object)
    assert chosen(Holdout({"t": texts}), model, 3).inputs["t"].tolist() == ["a", "aaaaa", "aaaaaaaaa"]


def test_rows_that_the_model_answers_with_numbers_come_before_all_others() -> None:
    answers = np.full((100, 2), np.nan)
    answers[[7, 50]] = 1.0
    found = chosen(numbers(100), answers={"y": np.zeros(100), "z": answers})
    assert sorted(found.inputs["x"][:, 0].tolist()) == [14.0, 100.0]
    none = chosen(numbers(100), answers={"y": np.full(100, np.inf)})
    assert none.count == 8, "such answers are allowed, and real rows are better than invented ones"


def test_an_output_that_was_kept_in_part_says_nothing_of_the_other_rows() -> None:
    answers = np.array([np.nan, 1.0])
    found = chosen(numbers(4), answers={"y": np.zeros(4), "z": answers})
    assert sorted(found.inputs["x"][:, 0].tolist()) == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("declared", [True, False])
def test_rows_that_no_request_may_hold_are_not_kept(declared: bool) -> None:
    limit: dict[str, Any] = {"min": 100, "max": 120}
    tensor = TensorSpec(name="x", shape=(-1, 2), allow_nan=True, **(limit if declared else {}))
    model = Model(source="m:m", inputs=(tensor,), outputs=NUMBERS.outputs)
    bounds = [] if declared else [Bound(input="x", **limit)]
    found = kept_rows.choose(numbers(300), {}, model, bounds, 64)
    assert found is not None
    assert sorted(found.inputs["x"][:, 0].tolist()) == [100, 102, 104, 106, 108, 110, 112, 114, 116, 118]
    nothing = [*bounds, Bound(input="x", max=-1)]
    assert kept_rows.choose(numbers(300), {}, model, nothing, 64) is None


def test_nothing_is_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    found = kept_rows.choose(numbers(20), {}, NUMBERS, [], 0)
    kept_rows.write(tmp_path, found)
    assert found is None
    assert kept_rows.files(tmp_path) == {}


def test_what_is_kept_goes_to_the_registry(tmp_path: Path) -> None:
    rows = chosen(numbers(20))
    kept_rows.write(tmp_path, rows)
    assert KeptRows.load(kept_rows.files(tmp_path)["rows"]).inputs["x"].tolist() == rows.inputs["x"].tolist()


@pytest.mark.parametrize("keep", [-1, 65])
def test_a_number_out_of_range_is_refused(tmp_path: Path, keep: int) -> None:
    (tmp_path / "tailcut.toml").write_text(
        'name = "m"\n[model]\nsource = "m:m"\ninputs = [{ name = "x" }]\noutputs = [{ name = "y" }]\n'
        f"[holdout]\nkeep = {keep}\n"
    )
    with pytest.raises(ManifestError, match=r"holdout\.keep"):
        load(tmp_path, environment={})


# -- Rows under load ---------------------------------------------------------------------------------------------------


def test_rows_are_sent_with_their_gaps(tmp_path: Path) -> None:
    """A 0 in their place is an input that no row has, and that the model may refuse."""
    x = np.array([[np.nan, 1], [np.inf, -0.0], [-np.inf, 2**24 + 1], [0.1, 5e-324]], np.float32)
    path = served._write_payloads(Holdout({"x": x}), tmp_path / "payloads", Deployment(name="m", model=NUMBERS))
    graphs.linear(tmp_path / "model.onnx", width=2)
    (tmp_path / "tailcut.toml").write_text(
        'name = "m"\n[model]\nsource = "model.onnx"\ninputs = [{ name = "x", shape = [-1, 2], allow_nan = true }]\n'
        'outputs = [{ name = "y", allow_nan = true }]\n[serve]\nvariant = "source"\n'
    )
    seen: list[bytes] = []

    async def main() -> None:
        async with running(load(tmp_path, environment={})) as client:
            run = client.app.engine.pipeline.infer

            async def infer(call: Any, inputs: Arrays, *more: Any) -> Arrays:
                seen.append(inputs["x"].tobytes())
                return await run(call, inputs, *more)

            client.app.engine.pipeline.infer = infer  # type: ignore[method-assign]
            for line in path.read_text().splitlines():
                reply = await client.post("/v2/models/m/infer", json.loads(line))
                assert reply.status == 200, reply.json

    asyncio.run(main())
    assert sorted(seen) == sorted(row.tobytes() for row in x)
