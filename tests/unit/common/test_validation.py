from __future__ import annotations

from time import perf_counter

import numpy as np
import pytest

from tailcut.common.tensors import NUMPY_OF
from tailcut.common.validation import InputSpec, check_names, check_rows
from tailcut.errors import BadRequest


@pytest.mark.parametrize("datatype", sorted(NUMPY_OF))
def test_an_array_of_the_right_form_passes(datatype: str) -> None:
    spec = InputSpec("x", datatype, (-1, 2))
    spec.check_shape((3, 2))
    spec.check_values(np.zeros((3, 2), NUMPY_OF[datatype]))


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        ((-1, 2), (3,)),
        ((-1, 2), (3, 2, 1)),
        ((-1, 2), (3, 3)),
        ((-1, 2), (0, 2)),
        ((-1, -1), (1, 0)),
        ((-1, 2), ()),
        ((-1, -1, 4), (2, 3, 5)),
        ((-1,), (0,)),
        ((-1, 2), (-1, 2)),
    ],
)
def test_a_wrong_shape_is_refused_with_the_wanted_one(wanted: tuple[int, ...], given: tuple[int, ...]) -> None:
    with pytest.raises(BadRequest, match="input 'x' has shape") as caught:
        InputSpec("x", "FP32", wanted).check_shape(given)
    assert str(list(wanted)) in caught.value.message
    assert "1" in caught.value.hint


@pytest.mark.parametrize(("wanted", "given"), [((-1, -1), (1, 9)), ((-1, -1, 4), (2, 3, 4)), ((-1,), (7,))])
def test_free_dimensions_take_every_size_from_one(wanted: tuple[int, ...], given: tuple[int, ...]) -> None:
    InputSpec("x", "FP32", wanted).check_shape(given)


def test_a_shape_that_was_right_says_nothing_of_the_next() -> None:
    spec, shape = InputSpec("x", "INT64", (-1, -1)), [1, 9]
    spec.check_shape(shape)
    spec.check_shape([1, 9])
    shape[1] = 0
    for wrong in (shape, [], [1], [1, 9, 1], [0, 9]):
        with pytest.raises(BadRequest, match="input 'x' has shape"):
            spec.check_shape(wrong)


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused_with_their_row(datatype: str, value: float) -> None:
    array = np.zeros((3, 2), NUMPY_OF[datatype])
    array[2, 1] = value
    with pytest.raises(BadRequest, match=r"input 'x' holds (NaN \(in JSON null\)|infinity) in row 2") as caught:
        InputSpec("x", datatype, (-1, 2)).check_values(array)
    assert "allow_nan" in caught.value.hint
    InputSpec("x", datatype, (-1, 2), allow_nan=True).check_values(array)


def test_infinities_that_cancel_out_are_seen() -> None:
    with pytest.raises(BadRequest, match="row 0"):
        InputSpec("x", "FP32", (-1, 2)).check_values(np.array([[np.inf, -np.inf]], np.float32))


@pytest.mark.parametrize(("datatype", "value"), [("FP16", 6e4), ("FP32", 3e38), ("FP64", 1e308)])
def test_large_finite_values_pass_without_a_warning(datatype: str, value: float) -> None:
    InputSpec("x", datatype, (-1, 2)).check_values(np.full((4, 2), value, NUMPY_OF[datatype]))


def test_values_that_do_not_lie_in_a_row_are_checked_too() -> None:
    array = np.zeros((4, 4), np.float32)
    array[1, 2] = np.nan
    with pytest.raises(BadRequest, match="row 2"):
        InputSpec("x", "FP32", (-1, 4)).check_values(array.T)


def test_inputs_must_agree_about_rows() -> None:
    assert check_rows({"a": 2, "b": 2}) == 2
    with pytest.raises(BadRequest, match="a: 2, b: 3"):
        check_rows({"a": 2, "b": 3})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["a"], "input 'b' is missing"),
        (["a", "b", "c"], "input 'c' is unknown"),
        (["a", "c"], "input 'b' is missing; input 'c' is unknown"),
        (["a", "b", "a"], "input 'a' is given twice"),
        ([], "input 'a' is missing"),
    ],
)
def test_names_are_compared(given: list[str], says: str) -> None:
    with pytest.raises(BadRequest, match=says) as caught:
        check_names(given, ["a", "b"], "input")
    assert caught.value.hint


def test_a_hundred_thousand_names_are_compared_at_once() -> None:
    """A body of many tiny inputs must not hold the event loop for hours (it did, in quadratic time)."""
    names = [f"x{n}" for n in range(100_000)] + ["x99999"]
    began_s = perf_counter()
    with pytest.raises(BadRequest, match="'x99999' is given twice"):
        check_names(names, ["x"], "input")
    assert perf_counter() - began_s < 5


def test_a_free_dimension_stands_for_sizes_and_is_none() -> None:
    with pytest.raises(BadRequest, match=r"-1 stands for any size of at least 1, not for -1\)"):
        InputSpec("x", "FP32", (-1, 2)).check_shape((-1, 2))
