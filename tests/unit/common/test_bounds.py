"""Limits of inputs and fields: what passes, what is refused, and in which words."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tailcut.common.bounds import Bound, Limits, membership
from tailcut.common.tensors import NUMPY_OF
from tailcut.common.validation import InputSpec
from tailcut.errors import BadRequest
from tailcut.models.value_limits import FieldRule, Kind
from tailcut.pipeline.value_conversion import converted

EMBEDDING = "embedding e.weight has 50 rows"


def refused(limits: Limits, array: Any) -> str:
    with pytest.raises(BadRequest) as caught:
        limits.check(array)
    assert caught.value.hint
    return caught.value.message


def cpu_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def of(datatype: str, shape: tuple[int, ...] = (-1,), allow_nan: bool = False, **limits: Any) -> Limits:
    return Limits("x", datatype, shape, [Bound(input="x", **limits)], allow_nan=allow_nan)


@pytest.mark.parametrize("rows", [4, 200])
def test_the_error_names_input_row_value_and_range(rows: int) -> None:
    array = np.zeros(rows, np.int64)
    limits = Limits("shop", "INT64", (-1,), [Bound(input="shop", min=0, max=49, why=EMBEDDING)])
    limits.check(array)
    array[3] = 50
    assert refused(limits, array) == f"input 'shop' holds 50 in row 3, allowed are 0 to 49 ({EMBEDDING})"
    array[3] = -1
    assert refused(limits, array).startswith("input 'shop' holds -1 in row 3, allowed are 0 to 49")


def test_a_value_of_several_is_named_by_its_position() -> None:
    array = np.array([[0, 0, 0], [0, 9, 0]], np.int32)
    assert "holds 9 in row 1, position 1, allowed are values of at most 8" in refused(
        of("INT32", (-1, 3), max=8), array
    )


@pytest.mark.parametrize("columns", [(1,), (1, 2), (0, 2), (2, 0), (0, 2, 3)])
def test_columns_are_positions_of_the_flattened_row(columns: tuple[int, ...]) -> None:
    limits = of("FP32", (-1, 2, 2), columns=columns, min=0)
    for position in range(4):
        array = np.zeros((2, 2, 2), np.float32)
        array.reshape(2, 4)[1, position] = -1
        if position in columns:
            assert f"holds -1.0 in row 1, position {position}, allowed" in refused(limits, array)
        else:
            limits.check(array)


def test_columns_that_a_free_dimension_leaves_out_hold_nothing() -> None:
    for columns in ((0, 2, 5), (5, 2, 0), (5,), (0, 2)):
        limits = of("INT64", (-1, -1), columns=columns, max=3)
        limits.check(np.zeros((2, 1), np.int64))
        wide = np.zeros((2, 6), np.int64)
        wide[1, columns[-1]] = 4
        assert f"holds 4 in row 1, position {columns[-1]}" in refused(limits, wide)
        if 2 in columns:
            narrow = np.zeros((2, 3), np.int64)
            narrow[1, 2] = 4
            assert "holds 4 in row 1, position 2" in refused(limits, narrow)


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
@pytest.mark.parametrize("datatype", ["INT64", "FP32", "BYTES"])
def test_an_empty_tensor_holds_nothing_beyond_a_limit(shape: tuple[int, ...], datatype: str) -> None:
    limits: dict[str, Any] = {"max_length": 3} if datatype == "BYTES" else {"min": 1, "columns": (0,)}
    of(datatype, (-1, *shape[1:]), **limits).check(np.empty(shape, NUMPY_OF[datatype]))


def test_whole_numbers_beyond_2_to_the_53_are_compared_exactly() -> None:
    limit = 2**53 + 1
    limits = of("INT64", max=limit)
    limits.check(np.array([limit]))
    assert f"holds {limit + 1}" in refused(limits, np.array([limit + 1]))
    limits.check(np.full(500, limit))
    assert f"holds {limit + 1}" in refused(limits, np.full(500, limit + 1))
    for size in (1, 500):
        assert f"holds {limit} in row 0" in refused(of("INT64", max=2**53), np.full(size, limit))
    largest = of("UINT64", min=2**64 - 1)
    largest.check(np.array([2**64 - 1], np.uint64))
    assert "holds 18446744073709551614" in refused(largest, np.array([2**64 - 2], np.uint64))


@pytest.mark.parametrize("size", [1, 300])
def test_a_limit_counts_as_the_input_holds_it(size: int) -> None:
    """FP32 0.1 is above 0.1 in double precision, and still the value that the limit names."""
    of("FP32", max=0.1).check(np.full(size, 0.1, np.float32))
    of("FP16", values=(0.1, 0.3)).check(np.full(size, 0.3, np.float16))
    of("FP64", values=(0, 1)).check(np.full(size, -0.0))
    above = np.nextafter(np.float32(0.1), np.float32(1))
    message = refused(of("FP32", max=0.1), np.full(size, above, np.float32))
    assert message == "input 'x' holds 0.10000001 in row 0, allowed are values of at most 0.1"


@pytest.mark.parametrize("size", [3, 300])
def test_nan_is_left_to_allow_nan_and_infinity_is_beyond_every_maximum(size: int) -> None:
    limits = of("FP64", allow_nan=True, min=0, max=1)
    array = np.full(size, np.nan)
    limits.check(array)
    array[1] = -5
    assert "holds -5.0 in row 1" in refused(limits, array)
    array[1] = np.inf
    assert "holds inf in row 1" in refused(limits, array)
    huge = of("FP32", allow_nan=True, max=1e300)
    huge.check(np.full(size, 3e38, np.float32))
    assert "holds inf" in refused(huge, np.full(size, np.inf, np.float32))
    of("FP32", allow_nan=True, values=(1, 2)).check(np.array([np.nan, 1, 2], np.float32))
    assert "holds 3.0 in row 1" in refused(of("FP32", allow_nan=True, values=(1, 2)), np.array([np.nan, 3], np.float32))


def test_allowed_values_are_listed_shortened() -> None:
    limits = of("INT8", values=tuple(range(1, 9)))
    limits.check(np.array([1, 8], np.int8))
    assert refused(limits, np.array([0], np.int8)).endswith("allowed are 1, 2, 3, 4, 5 and 3 more")
    assert "holds True in row 0" in refused(of("BOOL", values=(False,)), np.array([True]))


@pytest.mark.parametrize("datatype", ["UINT8", "INT64", "FP32"])
def test_a_refusal_costs_little_more_than_a_pass(datatype: str) -> None:
    """The last of many values is beyond the limit. Of this size the refusal took 300 times as long as a pass."""
    array = np.zeros((1, 2**21), NUMPY_OF[datatype])
    limits = of(datatype, (-1, -1), max=49)
    spent = [cpu_seconds(lambda: limits.check(array)) for _ in range(5)]
    array[0, -1] = 50
    refusing = [cpu_seconds(lambda: refused(limits, array)) for _ in range(5)]
    assert min(refusing) < 0.05 + 10 * min(spent)


def test_zero_of_either_sign_and_nan_are_listed_at_once() -> None:
    """What is not found at once costs a search of the whole array."""
    for datatype in ("FP16", "FP32", "FP64"):
        only = membership(frozenset([0.0, 1.0]), datatype, may_be_nan=True)
        assert only(np.array([0.0, -0.0, 1.0, np.nan], NUMPY_OF[datatype]))
        strict = membership(frozenset([0.0, 1.0]), datatype, may_be_nan=False)
        assert strict(np.array([0.0, -0.0], NUMPY_OF[datatype]))
        assert not strict(np.array([0.5], NUMPY_OF[datatype]))


def test_limits_that_the_datatype_cannot_hold_are_compared_exactly() -> None:
    of("UINT8", min=-1, max=300.5, values=(1, 1.5, 300, -4)).check(np.array([1], np.uint8))
    limits = of("UINT8", min=-1, max=300.5, values=(1, 1.5, 300, -4))
    assert "holds 44 in row 1" in refused(limits, np.array([1, 44], np.uint8))
    assert "holds 255 in row 0" in refused(of("UINT8", min=256), np.array([255], np.uint8))
    assert "holds 2 in row 1" in refused(of("INT64", max=1.5), np.array([1, 2]))
    assert "holds True in row 0" in refused(of("BOOL", values=(0, 2)), np.array([True]))
    assert "holds 3 in row 0" in refused(of("INT64", min=10**400), np.array([3]))
    near = 2**62 + 1
    assert f"holds {near} in row 1" in refused(of("INT64", max=float(2**62)), np.array([2**62, near]))


def test_texts_have_values_and_a_length() -> None:
    limits = of("BYTES", values=("Rome", "Oslo"))
    limits.check(np.array(["Oslo", b"Rome"], object))
    assert "holds 'Bonn' in row 1, allowed are 'Rome', 'Oslo'" in refused(limits, np.array(["Oslo", "Bonn"], object))
    length = of("BYTES", max_length=3)
    length.check(np.array(["äöü", ""], object))
    assert refused(length, np.array(["a", "abcd"], object)) == (
        "input 'x' has a text of 4 characters in row 1, the limit is 3"
    )


def test_a_free_dimension_has_a_largest_size() -> None:
    limits = of("INT64", (-1, -1, 2), max_length=512, why="position table p.weight has 512 rows")
    limits.check(np.zeros((600, 512, 2), np.int64))
    message = refused(limits, np.zeros((1, 513, 2), np.int64))
    assert "dimension 1 is 513, the limit is 512 (position table p.weight has 512 rows)" in message


GOOD_FIELDS: list[tuple[dict[str, Any], list[Any]]] = [
    ({"kind": "integer"}, [3, 3.0, -0.0, 2**63, 2.0**53 - 1, [2.0**53 - 1], None, float("nan"), [1, 2]]),
    ({"kind": "number", "low": 0, "high": 1}, [0, 1, 0.5, None, [0.1, 1]]),
    ({"kind": "text", "max_length": 3}, ["abc", "", None]),
    ({"kind": "boolean"}, [True, False]),
    ({"values": ("a", 2)}, ["a", 2, 2.0, b"a", [b"a", "a"]]),
    ({"max_length": 2}, ["ab", [1, 2], 1000]),
]
BAD_FIELDS: list[tuple[dict[str, Any], Any, str]] = [
    ({"kind": "integer"}, True, "is True, which is no integer"),
    ({"kind": "integer"}, "3", "is '3', which is no integer"),
    ({"kind": "integer"}, 3.5, "is 3.5, which is no integer"),
    ({"kind": "integer"}, 2.0**53, "is 9007199254740992.0, which is no integer"),
    ({"kind": "integer"}, [-(2.0**53)], "is -9007199254740992.0, which is no integer"),
    ({"kind": "number"}, False, "is False, which is no number"),
    ({"kind": "text"}, 1, "is 1, which is no text"),
    ({"kind": "boolean"}, 1, "is 1, which is no boolean"),
    ({"low": 0}, "1", "is '1', which is no number"),
    ({"low": 0, "high": 49, "why": EMBEDDING}, 50, f"is 50, allowed are 0 to 49 ({EMBEDDING})"),
    ({"low": 0}, -0.5, "is -0.5, allowed are values of at least 0"),
    ({"high": 2**53}, 2**53 + 1, "is 9007199254740993, allowed are values of at most 9007199254740992"),
    ({"high": 1}, float("inf"), "is inf, allowed are values of at most 1"),
    ({"values": ("a", "b")}, b"c", "is 'c', allowed are 'a', 'b'"),
    ({"values": ("a", "b")}, "c", "is 'c', allowed are 'a', 'b'"),
    ({"values": ("a", "b")}, {"a": 1}, "is of type dict, which is neither number, text nor boolean"),
    ({"max_length": 2}, "abc", "has 3 characters, the limit is 2"),
    ({"max_length": 2}, [1, 2, 3], "is a list of 3 elements, the limit is 2"),
    ({"max_length": 2}, [[1, 2, 3]], "has a list of 3 elements, the limit is 2"),
    ({"max_length": 2, "values": ("abc",)}, ["abc"], "has an element that has 3 characters, the limit is 2"),
    ({"max_length": 2}, [{}], "has an element that is of type dict"),
    ({"high": 3}, [[0] * 2**17, [0] * 2**17, [4]], "is a list of 262148 elements, the limit is 262144"),
    ({"high": 3, "takes_lists": False}, [1], "is a list, but the input takes one value"),
    ({"high": 3}, [1, [2, 4]], "has an element that is 4, allowed are values of at most 3"),
]


@pytest.mark.parametrize(("rule", "values"), GOOD_FIELDS)
def test_fields_within_their_limits(rule: dict[str, Any], values: list[Any]) -> None:
    for value in values:
        assert FieldRule(**rule).problem(value) == "", value


@pytest.mark.parametrize(("rule", "value", "said"), BAD_FIELDS)
def test_fields_beyond_their_limits(rule: dict[str, Any], value: Any, said: str) -> None:
    assert said in FieldRule(**rule).problem(value)


@pytest.mark.parametrize("value", [2.0**53 - 1, 2.0**53, -(2.0**53), 0.5, 2**53, 2**62])
def test_an_integer_is_what_an_integer_input_takes(value: float) -> None:
    spec = InputSpec("x", "INT64", (-1,))
    try:
        converted([value], spec)
    except BadRequest:
        assert "which is no integer" in FieldRule("integer").problem(value)
    else:
        assert FieldRule("integer").problem(value) == ""


def test_a_list_may_be_nested_deeper_than_python_calls() -> None:
    deep: Any = 4
    for _ in range(100_000):
        deep = [deep]
    assert FieldRule(high=4).problem(deep) == ""
    assert FieldRule(high=3).problem(deep) == "has an element that is 4, allowed are values of at most 3"


def test_a_longer_list_is_taken_where_max_length_allows_it() -> None:
    assert FieldRule(high=3, max_length=2**19).problem([0] * 2**19) == ""


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"low": 0, "high": 9}, "allowed are 0 to 9"),
        ({"max_length": 7}, "its length is at most 7"),
        ({"kind": "integer"}, "it is no integer"),
    ],
)
def test_a_rule_says_what_is_allowed_without_a_value(rule: dict[str, Any], said: str) -> None:
    assert FieldRule(**rule).limits() == said


def test_every_kind_refuses_what_is_no_plain_value() -> None:
    kinds: tuple[Kind, ...] = ("any", "integer", "number", "text", "boolean")
    for kind in kinds:
        assert "is of type object" in FieldRule(kind).problem(object())
