"""build.limits: what the source answers at the edges of the inputs is kept between the steps of a build."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tailcut.builder import limits
from tailcut.builder.bounds import FoundBounds
from tailcut.builder.holdouts.holdout import Holdout
from tailcut.common.tensors import Arrays
from tailcut.manifest import Model, TensorSpec

SHOP = TensorSpec(name="shop", datatype="INT64", shape=(-1,))
RISK = TensorSpec(name="a/risk", datatype="FP32", shape=(-1,))
MODEL = Model(source="model:build", inputs=(SHOP,), outputs=(RISK,))
HOLDOUT = Holdout(inputs={"shop": np.arange(8)}, labels=np.zeros(8))


class Source:
    """Answers shops below 50."""

    def __init__(self, limit: int = 50) -> None:
        self.calls = 0
        self._limit = limit

    def __call__(self, inputs: Arrays) -> Arrays:
        self.calls += 1
        if (inputs["shop"] >= self._limit).any() or (inputs["shop"] < 0).any():
            raise IndexError("no such shop")
        return {"a/risk": (inputs["shop"] / 100).astype(np.float32)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    limits.write(tmp_path, FoundBounds(sizes=[50]))
    return tmp_path


def test_a_variant_is_compared_without_running_the_source_again(folder: Path) -> None:
    source = Source()
    live = limits.edges(folder, "int8", source, Source(60), HOLDOUT, MODEL)
    limits.answer_edges(folder, source, HOLDOUT, MODEL)
    before = source.calls
    kept = limits.edges(folder, "int8", source, Source(60), HOLDOUT, MODEL)
    assert source.calls == before
    assert kept == live
    assert [each.kind for each in kept] == ["answers", "answers"]
    assert all(f" = {value} (" in each.text for value, each in zip((50, 51), kept, strict=True))
    assert "no such shop" in kept[0].text


def test_a_number_that_differs_is_asked_of_the_source_again(folder: Path) -> None:
    def off(inputs: Arrays) -> Arrays:
        return {"a/risk": source(inputs)["a/risk"] + np.float32(0.1)}

    source = Source()
    limits.answer_edges(folder, source, HOLDOUT, MODEL)
    found = limits.edges(folder, "portable", source, off, HOLDOUT, MODEL)
    assert {each.kind for each in found} == {"differs"}
