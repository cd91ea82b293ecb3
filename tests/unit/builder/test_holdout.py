"""build.Holdout: what it refuses, and that it comes back from the disk as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.builder import Holdout
from tailcut.errors import BuildError
from tailcut.manifest import TensorSpec

X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([0, 1, 1, 0])


@pytest.mark.parametrize(
    ("inputs", "labels", "slices", "text"),
    [
        ({}, Y, {}, "has no inputs"),
        ({"x": X}, Y[:3], {}, "input 'x' has 4 rows, its labels have 3"),
        ({"x": X}, Y, {"carrier": np.array(["AA"])}, "slice 'carrier' has 1 rows, its labels have 4"),
        ({"x": X[:0]}, Y[:0], {}, "has no rows"),
        ({"x": X}, np.array([0, 1, np.nan, 1]), {}, "1 of 4 labels are NaN, infinite or missing, the first in row 2"),
        (
            {"x": X},
            np.array(["a", None, "b", "a"], dtype=object),
            {},
            "1 of 4 labels are .* missing, the first in row 1",
        ),
        ({"x": X}, np.array([1, 2, 3, 4], dtype="M8[D]"), {}, r"labels are datetime64\[D\], expected numbers, text or"),
        ({"x": X.tolist()}, Y, {}, "input 'x' is a list, expected an array"),
    ],
)
def test_a_holdout_that_cannot_judge_is_refused(inputs: dict, labels: np.ndarray, slices: dict, text: str) -> None:
    with pytest.raises(BuildError, match=text):
        Holdout(inputs=inputs, labels=labels, slices=slices)


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (TensorSpec(name="z", shape=(-1, 3)), r"inputs are \['x'\], the manifest's model.inputs are \['z'\]"),
        (TensorSpec(name="x", shape=(-1, 4)), r"is FP32 \[4, 3\], the manifest says FP32 \[-1, 4\]"),
        (TensorSpec(name="x", datatype="FP64", shape=(-1, 3)), r"is FP32 \[4, 3\], the manifest says FP64"),
    ],
)
def test_inputs_that_are_not_the_manifests_are_named(tensor: TensorSpec, text: str) -> None:
    with pytest.raises(BuildError, match=text):
        Holdout(inputs={"x": X}, labels=Y).check([tensor])


def test_nan_is_refused_unless_the_tensor_allows_it() -> None:
    holdout = Holdout(inputs={"x": np.where(X == 5, np.nan, X).astype(np.float32)}, labels=Y)
    with pytest.raises(BuildError, match=r"'x' holds nan in row 1 \(1 of 4 rows"):
        holdout.check([TensorSpec(name="x", shape=(-1, 3))])
    holdout.check([TensorSpec(name="x", shape=(-1, 3), allow_nan=True)])


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"min": 1}, "input 'x': 1 of the holdout's 4 rows are outside of the limits .* \\(row 0 is the first\\)"),
        ({"max": 7.5}, "2 of the holdout's 4 rows are outside .* \\(row 2 is the first\\)"),
        ({"values": tuple(range(9))}, "1 of the holdout's 4 rows are outside .* \\(row 3 is the first\\)"),
    ],
)
def test_rows_outside_of_the_manifests_limits_are_counted(limits: dict, says: str) -> None:
    """Such requests are refused: under load they would count as failures."""
    holdout = Holdout(inputs={"x": X}, labels=Y)
    with pytest.raises(BuildError, match=says):
        holdout.check([TensorSpec(name="x", shape=(-1, 3), **limits)])
    holdout.check([TensorSpec(name="x", shape=(-1, 3), min=0, max=11, values=tuple(range(12)))])


@pytest.mark.parametrize("plans", [("free", "basic", "free", "pro"), (b"free", b"basic", b"free", b"pro")])
def test_texts_outside_of_the_manifests_values_are_counted(plans: tuple) -> None:
    holdout = Holdout(inputs={"plan": np.array(plans, object).reshape(4, 1)}, labels=Y)
    tensor = TensorSpec(name="plan", datatype="BYTES", shape=(-1, 1), values=("free", "basic"))
    with pytest.raises(BuildError, match="1 of the holdout's 4 rows are outside"):
        holdout.check([tensor])


def test_nan_is_outside_of_no_limit() -> None:
    holdout = Holdout(inputs={"x": np.array([[0.0], [np.nan], [1.0], [np.nan]], np.float32)}, labels=Y)
    holdout.check([TensorSpec(name="x", shape=(-1, 1), allow_nan=True, min=0, max=1, values=(0, 1))])


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


def test_rows_without_labels_are_a_holdout_too(tmp_path: Path) -> None:
    holdout = Holdout(inputs={"x": X})
    holdout.save(tmp_path / "holdout.npz")
    assert Holdout.load(tmp_path / "holdout.npz").labels is None
    assert holdout.rows == 4
    assert holdout.digest() != Holdout(inputs={"x": X}, labels=Y).digest()


@given(
    classes=st.lists(st.integers(0, 4), min_size=10, max_size=300).filter(lambda values: len(set(values)) > 1),
    share=st.floats(0.1, 0.9),
    seed=st.integers(0, 5),
)
def test_a_split_loses_no_row_and_keeps_the_shares_of_classes(classes: list[int], share: float, seed: int) -> None:
    labels = np.array(classes)
    holdout = Holdout(inputs={"row": np.arange(len(labels))}, labels=labels)
    selection, confirmation = holdout.split(share, seed)
    taken = [*selection.inputs["row"].tolist(), *confirmation.inputs["row"].tolist()]
    assert sorted(taken) == list(range(len(labels)))
    for part in (selection, confirmation):
        np.testing.assert_array_equal(part.truth, labels[part.inputs["row"]])
        assert (np.diff(part.inputs["row"]) > 0).all()
    for value in set(classes):
        rows, chosen = (labels == value).sum(), (selection.truth == value).sum()
        assert abs(chosen - rows * share) <= 1
        if rows > 1:
            assert 0 < chosen < rows
    again = holdout.split(share, seed)[0]
    assert again.digest() == selection.digest()


def test_another_seed_or_other_data_split_otherwise() -> None:
    labels = np.arange(200) % 2
    holdout = Holdout(inputs={"row": np.arange(200)}, labels=labels)
    other = Holdout(inputs={"row": np.arange(200) + 1000}, labels=labels)
    first = holdout.split(0.3)[0].inputs["row"].tolist()
    assert holdout.split(0.3, seed=1)[0].inputs["row"].tolist() != first
    assert (other.split(0.3)[0].inputs["row"] - 1000).tolist() != first


@pytest.mark.parametrize(
    ("labels", "share", "text"),
    [
        (np.arange(9) % 2, 0.3, "the holdout has 9 rows, the minimum is 10"),
        (np.ones(20), 0.3, r"every one of the holdout's 20 labels is 1\.0"),
        (np.arange(20) % 2, 1.0, r"holdout\.selection is 1\.0, it must be between 0 and 1"),
    ],
)
def test_what_cannot_be_split_is_refused(labels: np.ndarray, share: float, text: str) -> None:
    with pytest.raises(BuildError, match=text):
        Holdout(inputs={"row": np.arange(len(labels))}, labels=labels).split(share)


def test_padding_that_all_rows_share_is_cut_off(tmp_path: Path) -> None:
    lengths = np.array([3, 17, 40, 5])
    mask = (np.arange(64) < lengths[:, None]).astype(np.int64)
    inputs = {"input_ids": mask * 7, "attention_mask": mask, "other": np.zeros((4, 3))}
    Holdout(inputs=inputs, padding="attention_mask").save(tmp_path / "holdout.npz")
    holdout = Holdout.load(tmp_path / "holdout.npz")
    widths = [holdout.take(1, row)["input_ids"].shape[1] for row in range(4)]
    assert widths == [16, 32, 48, 16]
    assert holdout.at(np.array([0, 2]))["attention_mask"].sum(axis=1).tolist() == [3, 40]
    assert holdout.take(2)["other"].shape == (2, 3)
    with pytest.raises(BuildError, match="padding is 'mask', its inputs are"):
        Holdout(inputs=inputs, padding="mask")


def test_labels_in_a_column_of_their_own_are_refused_with_the_way_out() -> None:
    with pytest.raises(BuildError, match=r"labels have shape \[100, 1\], expected one per row") as refused:
        Holdout(inputs={"x": np.zeros((100, 2), np.float32)}, labels=np.arange(100).reshape(-1, 1) % 2)
    assert "ravel()" in refused.value.hint
