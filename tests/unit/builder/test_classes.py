"""build.labels: which label stands for which class, and what is refused."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.builder import Holdout
from tailcut.builder.holdouts import labels
from tailcut.builder.holdouts.labels import Coding, coding_of, numbered
from tailcut.errors import BuildError
from tailcut.manifest import HoldoutSettings as Section
from tailcut.registry.evidence import LabelCoding


@pytest.mark.parametrize(
    ("classes", "given_labels", "expected"),
    [
        ([1, 2, 3], np.array([3, 1, 2]), [2, 0, 1]),
        ([-1, 1], np.array([1.0, -1.0]), [1, 0]),
        (["no", "yes"], np.array(["yes", "no"]), [1, 0]),
        (["no", "yes"], np.array(["yes", "no"], dtype=object), [1, 0]),
        (["no", "yes"], np.array([b"yes", b"no"]), [1, 0]),
        ([False, True], np.array([True, False]), [1, 0]),
        ([False, True], np.array([1, 0]), [1, 0]),
        ([0.5, 2.5], np.array([2.5, 0.5]), [1, 0]),
        ([10, 20, 30], np.array([30], dtype=np.uint8), [2]),
        (["no", "yes"], np.array([b"yes", b"no"], dtype=object), [1, 0]),
        (["n\u00e9", "yes"], np.array(["n\u00e9".encode(), b"yes"], dtype=object), [0, 1]),
        (["a\0", "a"], np.array(["a", "a\0"], dtype=object), [1, 0]),
        ([1, "1"], np.array(["1", 1], dtype=object), [1, 0]),
        ([False, True], np.array([True, 0, 1.0], dtype=object), [1, 0, 1]),
    ],
)
def test_labels_are_numbered_by_the_models_classes(classes: list, given_labels: np.ndarray, expected: list) -> None:
    coding = coding_of(classes, Section())
    assert numbered(given_labels, coding).tolist() == expected
    assert coding is not None
    assert coding.origin == "the model's classes_"


def test_the_manifest_says_it_where_the_model_does_not() -> None:
    coding = coding_of(None, Section(classes=("bad", "good")))
    assert numbered(np.array(["good", "bad"]), coding).tolist() == [1, 0]
    one = coding_of(None, Section(positive="fraud"))
    assert numbered(np.array(["fraud", "ok", "unknown"]), one).tolist() == [1, 0, 0]
    assert coding_of(None, Section()) is None


def test_without_classes_labels_are_numbers_already() -> None:
    assert numbered(np.array([True, False]), None).tolist() == [1, 0]
    np.testing.assert_array_equal(numbered(np.array([2.5, 3.5]), None), [2.5, 3.5])
    assert numbered(np.array([2.0, 1.0]), None).dtype == np.int64
    for kept in ([2.5, 3.0], [1.0, 2.0**53], [1.0, 1e300]):
        assert numbered(np.array(kept), None).tolist() == kept
        assert numbered(np.array(kept), None).dtype == np.float64
    with pytest.raises(BuildError, match=r"labels are text \('no', 'yes'\), but the model does not name") as refused:
        numbered(np.array(["yes", "no"]), None)
    assert 'classes = ["no", "yes"]' in refused.value.hint


@pytest.mark.parametrize(
    "given_labels", [np.array(["1", 1, 0, 0], dtype=object), np.array([1, "1", 0, 0], dtype=object)]
)
def test_text_that_looks_like_a_number_is_no_number(given_labels: np.ndarray) -> None:
    with pytest.raises(BuildError, match=r"labels '1' \(1 rows\) are none of the classes 0, 1"):
        numbered(given_labels, Coding(classes=(0, 1), origin="holdout.classes"))


def test_strata_tell_label_objects_apart_by_value_and_order_them_by_text() -> None:
    assert labels.strata(np.array(["b", "a\0", "a", b"b"], dtype=object)).tolist() == [2, 1, 0, 2]
    with pytest.raises(BuildError, match=r"2 labels is b, so quality"):
        labels.strata(np.array(["b", b"b"], dtype=object))


@pytest.mark.parametrize(
    ("model", "section", "given_labels", "text"),
    [
        (["a", "b"], Section(), ["a", "c", "c"], r"labels 'c' \(2 rows\) are none of the classes 'a', 'b'"),
        ([1, 2], Section(), ["1", "2"], r"labels '1', '2' \(2 rows\) are none of the classes 1, 2"),
        (
            None,
            Section(classes=(1, 2)),
            [1, 3],
            r"labels 3 \(1 rows\) are none of the classes 1, 2 \(holdout.classes\)",
        ),
        (None, Section(positive="x"), ["a", "b"], r"holdout\.positive is 'x', but no label is"),
        (["a", "b"], Section(classes=("b", "a")), ["a"], r"classes are 'b', 'a', the model's classes_ are 'a', 'b'"),
        (["a", "b"], Section(positive="a"), ["a"], r"holdout\.positive is 'a'; the classes are 'a', 'b'"),
        ([1, 2, 3], Section(positive=3), [1], r"probability of the second of two"),
    ],
)
def test_a_label_that_no_output_stands_for_is_refused(
    model: list | None, section: Section, given_labels: list, text: str
) -> None:
    with pytest.raises(BuildError, match=text) as refused:
        numbered(np.array(given_labels), coding_of(model, section))
    assert refused.value.hint


def objects(*values: object) -> np.ndarray:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


@pytest.mark.parametrize(
    ("classes", "given_labels", "expected"),
    [
        ((1, 2), objects(2, 1, np.int32(2)), [1, 0, 1]),
        ((1, 2), objects(2.0, 1, 2), [1, 0, 1]),
        ((False, True), objects(True, False, np.True_), [1, 0, 1]),
        (("no", "yes"), objects("yes", b"no", "yes"), [1, 0, 1]),
        ((), objects(1, 0, 1), [1, 0, 1]),
        ((), objects(True, False, True), [1, 0, 1]),
        ((), objects(1.5, 0.25, 3), [1.5, 0.25, 3.0]),
    ],
)
def test_label_objects_survive_the_disk(
    classes: tuple, given_labels: np.ndarray, expected: list, tmp_path: Path
) -> None:
    Holdout(inputs={"x": np.zeros(3)}, labels=given_labels).save(tmp_path / "part.npz")
    coding = Coding(classes=classes, origin="holdout.classes") if classes else None
    assert Holdout.load(tmp_path / "part.npz").coded(coding).truth.tolist() == expected


@pytest.mark.parametrize(
    ("given_labels", "text"),
    [
        (objects("1", 1, 0), "3 labels are of several types: text in 1, such as '1'; number in 2, such as 1"),
        (objects(True, 1, 0), "several types: boolean in 1, such as True; number in 2, such as 1"),
        (objects(Decimal(1), Decimal(0)), "labels are of type Decimal, expected numbers, text or booleans"),
        (objects(1, 1 << 70), f"integers from 1 to {1 << 70}, more than 64 bits hold"),
        (objects(-1, (1 << 63) + 1), "more than 64 bits hold"),
        (objects(1.5, np.inf), "1 of 2 labels are NaN, infinite or missing, the first in row 1"),
        (objects(b"\xff", b"a"), r"labels hold b'\\xff', which is not UTF-8"),
    ],
)
def test_label_objects_without_a_common_datatype_are_refused(given_labels: np.ndarray, text: str) -> None:
    with pytest.raises(BuildError, match=text) as refused:
        Holdout(inputs={"x": np.zeros(len(given_labels))}, labels=given_labels)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("coding", "scores", "text"),
    [
        (Coding(classes=("a", "b", "c")), np.zeros(4), r"3 classes \('a', 'b', 'c'\), output 'y' has 1 column"),
        (Coding(classes=("a", "b")), np.zeros((4, 3)), r"2 classes \('a', 'b'\), output 'y' has 3 columns"),
        (Coding(positive="x"), np.zeros((4, 3)), r"2 classes \('x'\), output 'y' has 3 columns"),
    ],
)
def test_classes_and_columns_must_be_as_many(coding: Coding, scores: np.ndarray, text: str) -> None:
    with pytest.raises(BuildError, match=text):
        labels.check_scores(coding, scores, "y")
    labels.check_scores(Coding(classes=("a", "b")), np.zeros(4), "y")
    labels.check_scores(Coding(classes=("a", "b")), np.zeros((4, 2)), "y")
    labels.check_scores(None, scores, "y")


def test_the_coding_and_the_labels_as_given_stay_with_the_build(tmp_path: Path) -> None:
    assert not labels.known(tmp_path)
    coding = Coding(classes=("no", True, 3), origin="holdout.classes")
    labels.write(tmp_path, coding)
    assert labels.read(tmp_path) == coding
    holdout = Holdout(inputs={"x": np.zeros(3)}, labels=np.array(["no", "yes", "no"]))
    coded = holdout.coded(Coding(classes=("no", "yes")))
    assert (coded.truth.tolist(), coded.given.tolist()) == ([0, 1, 0], ["no", "yes", "no"])  # type: ignore[union-attr]
    coded.save(tmp_path / "part.npz")
    assert Holdout.load(tmp_path / "part.npz").subset(np.array([1])).truth.tolist() == [1]


def test_the_evidence_names_classes_and_counts_labels() -> None:
    parts = [np.array(["a", "b", "a"]), np.array(["b"])]
    found = labels.describe(parts, Coding(classes=("a", "b"), origin="holdout.classes"))
    assert found == LabelCoding(origin="holdout.classes", rows={"a": 2, "b": 2}, classes=["a", "b"])
    assert labels.describe(parts, None) is None


@given(
    st.lists(st.one_of(st.integers(-5, 5), st.text(max_size=3), st.floats(-2, 2)), min_size=2, max_size=6, unique=True),
    st.data(),
)
def test_numbers_lead_back_to_the_labels(classes: list, data: st.DataObject) -> None:
    """Whatever the classes are, the class of a label's number is that label."""
    known = list(dict.fromkeys(labels.scalar_of(each) for each in classes))
    chosen = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=20))
    array = np.empty(len(chosen), dtype=object)
    array[:] = chosen
    assert [known[number] for number in numbered(array, Coding(classes=tuple(known)))] == chosen
