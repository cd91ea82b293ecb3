"""build.Holdout: what it refuses, and that it comes back from the disk as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tailcut.build import Holdout
from tailcut.errors import BuildError
from tailcut.manifest import Tensor

X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([0, 1, 1, 0])


@pytest.mark.parametrize(
    ("inputs", "labels", "slices", "text"),
    [
        ({}, Y, {}, "has no inputs"),
        ({"x": X}, Y[:3], {}, "input 'x' has 4 rows, its labels have 3"),
        ({"x": X}, Y, {"carrier": np.array(["AA"])}, "slice 'carrier' has 1 rows, its labels have 4"),
        ({"x": X[:0]}, Y[:0], {}, "has no rows"),
        ({"x": X}, np.array([0, 1, np.nan, 1]), {}, "1 of 4 labels are NaN or infinite, the first in row 2"),
        ({"x": X}, np.array(["late", "in time", "late", "late"]), {}, "labels are <U7, expected numbers"),
        ({"x": X.tolist()}, Y, {}, "input 'x' is a list, expected an array"),
    ],
)
def test_a_holdout_that_cannot_judge_is_refused(inputs: dict, labels: np.ndarray, slices: dict, text: str) -> None:
    with pytest.raises(BuildError, match=text):
        Holdout(inputs=inputs, labels=labels, slices=slices)


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (Tensor(name="z", shape=(-1, 3)), r"inputs are \['x'\], the manifest's model.inputs are \['z'\]"),
        (Tensor(name="x", shape=(-1, 4)), r"is FP32 \[4, 3\], the manifest says FP32 \[-1, 4\]"),
        (Tensor(name="x", datatype="FP64", shape=(-1, 3)), r"is FP32 \[4, 3\], the manifest says FP64"),
    ],
)
def test_inputs_that_are_not_the_manifests_are_named(tensor: Tensor, text: str) -> None:
    with pytest.raises(BuildError, match=text):
        Holdout(inputs={"x": X}, labels=Y).check([tensor])


def test_nan_is_refused_unless_the_tensor_allows_it() -> None:
    holdout = Holdout(inputs={"x": np.where(X == 5, np.nan, X).astype(np.float32)}, labels=Y)
    with pytest.raises(BuildError, match="'x' holds NaN or infinity"):
        holdout.check([Tensor(name="x", shape=(-1, 3))])
    holdout.check([Tensor(name="x", shape=(-1, 3), allow_nan=True)])


def test_save_and_load_keep_everything(tmp_path: Path) -> None:
    carriers = np.array(["AA", "B6", "UA", "AA"], dtype=object)
    holdout = Holdout(inputs={"x": X, "labels": X[:, 0]}, labels=Y, slices={"carrier": carriers})
    holdout.save(tmp_path / "holdout.npz")
    again = Holdout.load(tmp_path / "holdout.npz")
    assert set(again.inputs) == {"x", "labels"}
    np.testing.assert_array_equal(again.inputs["x"], X)
    np.testing.assert_array_equal(again.labels, Y)
    assert again.slices["carrier"].tolist() == ["AA", "B6", "UA", "AA"]


def test_the_digest_sees_values_types_and_names() -> None:
    base = Holdout(inputs={"x": X}, labels=Y)
    others = [
        Holdout(inputs={"x": X + 1}, labels=Y),
        Holdout(inputs={"x": X.astype(np.float64)}, labels=Y),
        Holdout(inputs={"z": X}, labels=Y),
        Holdout(inputs={"x": X}, labels=1 - Y),
        Holdout(inputs={"x": X}, labels=Y, slices={"s": Y}),
    ]
    assert base.digest() == Holdout(inputs={"x": X.copy()}, labels=Y.copy()).digest()
    assert len({base.digest(), *(other.digest() for other in others)}) == 6


def test_take_goes_round_where_rows_are_few() -> None:
    assert Holdout(inputs={"x": X[:, 0]}, labels=Y).take(6, start=3)["x"].tolist() == [9, 0, 3, 6, 9, 0]
