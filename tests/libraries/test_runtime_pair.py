"""runtimes.pair: which part a batch goes to, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models import tokens

from tailcut.errors import ArtifactError, InferenceError
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes import open_runtime
from tailcut.registry import Variant, digest

INPUTS = tuple(TensorSpec(name=name, datatype="INT64", shape=(-1, -1)) for name in ("ids", "mask"))
OUTPUTS = (TensorSpec(name="y", shape=(-1,)),)


def write(folder: Path, parts: Mapping[str, Path], **more: Any) -> Variant:
    names = list(parts)
    content = {
        "input": "ids",
        "dimension": 1,
        "at": 16,
        **{
            place: {"variant": name, "runtime": "onnxruntime", "sha256": digest(parts[name])}
            for place, name in zip(("short", "long"), names, strict=True)
        },
        **more,
    }
    path = folder / "pair.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return Variant("m", "pair", "pair", path, "", INPUTS, OUTPUTS, "v1", parts=parts)


@pytest.fixture
def parts(tmp_path: Path) -> dict[str, Path]:
    """The second one's answers are 1000 higher, so that it shows which one gave them."""
    return {
        "onnx": tokens.counting(tmp_path / "a.onnx"),
        "int8": tokens.counting(tmp_path / "b.onnx", shift=1000.0),
    }


def batch(rows: int, length: int) -> dict[str, np.ndarray]:
    return {"ids": np.ones((rows, length), np.int64), "mask": np.ones((rows, length), np.int64)}


def test_each_batch_goes_to_one_part_by_its_length_padding_included(tmp_path: Path, parts: dict[str, Path]) -> None:
    runtime = open_runtime(write(tmp_path, parts), threads=2)
    seen = {length: bool((runtime.run(batch(3, length), ["y"])["y"] > 500).all()) for length in (1, 8, 16, 17, 64)}
    assert seen == {1: False, 8: False, 16: False, 17: True, 64: True}
    padded = batch(3, 64)
    padded["mask"][:, 4:] = 0
    assert (runtime.run(padded, ["y"])["y"] > 500).all()
    runtime.close()
    runtime.close()


def test_a_batch_that_a_part_refuses_is_an_inference_error(tmp_path: Path, parts: dict[str, Path]) -> None:
    runtime = open_runtime(write(tmp_path, parts), threads=1)
    with pytest.raises(InferenceError, match=r"variant 'pair \(int8\)' failed"):
        runtime.run({"ids": np.full((1, 32), tokens.WORDS), "mask": np.ones((1, 32), np.int64)}, ["y"])
    assert runtime.run(batch(1, 8), ["y"])["y"].shape == (1,)


def test_a_part_that_is_missing_or_another_is_refused(tmp_path: Path, parts: dict[str, Path]) -> None:
    pair = write(tmp_path, parts)
    with pytest.raises(ArtifactError, match=r"is a pair and needs the artifact of 'int8'"):
        open_runtime(replace(pair, parts={"onnx": parts["onnx"]}), threads=1)
    with pytest.raises(ArtifactError, match=r"the part 'int8' .* has SHA-256 \w+; the pair was judged with"):
        open_runtime(replace(pair, parts={**parts, "int8": parts["onnx"]}), threads=1)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"input": "other"}, r"switches by dimension 1 of input 'other'"),
        ({"dimension": 2}, r"dimension 2 of input 'ids', but the manifest gives it the shape \[-1, -1\]"),
        ({"schema": 2}, r"schema 2"),
        ({"at": "far"}, r"cannot read the pair .*Expected `int`"),
        ({"code": "import os"}, r"unknown field `code`"),
    ],
)
def test_a_file_that_is_no_pair_of_this_model_is_refused(
    tmp_path: Path, parts: dict[str, Path], more: dict[str, Any], text: str
) -> None:
    with pytest.raises(ArtifactError, match=text):
        open_runtime(write(tmp_path, parts, **more), threads=1)
