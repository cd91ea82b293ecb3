"""Cache keys: different things never share a key, the same thing always has the same one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.cache.keys import (
    LONGEST_EXACT_BYTES,
    Normal,
    entity_prediction_key,
    feature_key,
    tensor_prediction_key,
    tensor_row_keys,
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=40)
    | st.sampled_from([0, 1, 0.0, -0.0, 1.0, "0", "1", True, False, b"1", "a\0b", ""])
)
KEYS = st.lists(SCALARS, max_size=4).map(tuple)
TENANTS = st.text(max_size=10)
DTYPES = ["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64", "object", ">i4", "<U3"]


def exact(value: object) -> object:
    """What makes a value itself: its type too, and the sign of zero."""
    return (type(value), repr(value)) if isinstance(value, float) else (type(value), value)


def identity(*parts: object) -> object:
    return tuple(tuple(map(exact, part)) if isinstance(part, tuple) else exact(part) for part in parts)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    size = math.prod(shape)
    if dtype.hasobject:
        values = draw(st.lists(st.binary(max_size=4) | st.text(max_size=4), min_size=size, max_size=size))
        array = np.empty(size, dtype=object)
        array[:] = values
        return array.reshape(shape)
    values = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    return np.array(values).astype(dtype).reshape(shape)


def same_inputs(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and [exact(x) for x in a.ravel().tolist()] == [exact(x) for x in b.ravel().tolist()]
        for a, b in ((one[name], other[name]) for name in one)
    )


INPUTS = st.dictionaries(st.sampled_from(["x", "y", "xy", ""]), arrays(), max_size=3)


@given(st.tuples(TENANTS, KEYS, TENANTS), st.tuples(TENANTS, KEYS, TENANTS))
def test_feature_keys_are_equal_exactly_for_equal_parts(one, other) -> None:
    assert (feature_key(*one) == feature_key(*other)) == (identity(*one) == identity(*other))


@given(KEYS, KEYS)
def test_no_key_is_the_start_of_another(one, other) -> None:
    a, b = feature_key("g", one, "t"), feature_key("g", other, "t")
    assert a == b or not (a.startswith(b) or b.startswith(a))


@given(
    st.tuples(st.binary(max_size=8), TENANTS, KEYS, st.lists(TENANTS, max_size=2).map(tuple)),
    st.tuples(st.binary(max_size=8), TENANTS, KEYS, st.lists(TENANTS, max_size=2).map(tuple)),
)
def test_entity_keys_are_equal_exactly_for_equal_parts(one, other) -> None:
    assert (entity_prediction_key(*one) == entity_prediction_key(*other)) == (identity(*one) == identity(*other))


@given(INPUTS, INPUTS, TENANTS)
def test_tensor_keys_are_equal_exactly_for_equal_inputs(one, other, tenant) -> None:
    same = tensor_prediction_key(b"v", tenant, one, ()) == tensor_prediction_key(b"v", tenant, other, ())
    assert same == same_inputs(one, other)


@given(INPUTS)
def test_the_order_and_memory_layout_of_inputs_do_not_matter(inputs) -> None:
    key = tensor_prediction_key(b"v", "", inputs, ("y",))
    assert key == tensor_prediction_key(b"v", "", dict(reversed(inputs.items())), ("y",))
    laid_out = {name: np.asfortranarray(array) for name, array in inputs.items() if array.ndim}
    laid_out |= {name: array for name, array in inputs.items() if not array.ndim}
    assert key == tensor_prediction_key(b"v", "", laid_out, ("y",))


@given(KEYS, KEYS)
def test_keys_of_different_kinds_never_meet(one, other) -> None:
    keys = {feature_key("", one, ""), entity_prediction_key(b"", "", other, ()), tensor_prediction_key(b"", "", {}, ())}
    assert len(keys) == 3


@pytest.mark.parametrize("pair", [(1, 1.0), (1, "1"), (1, True), (0, False), (None, ""), ("1", b"1"), (0.0, -0.0)])
def test_values_that_python_takes_for_equal_differ(pair) -> None:
    one, other = pair
    assert feature_key("g", (one,), "") != feature_key("g", (other,), "")
    assert entity_prediction_key(b"", "", (one,), ()) != entity_prediction_key(b"", "", (other,), ())


def test_tenant_version_and_outputs_are_part_of_prediction_keys() -> None:
    x = {"x": np.zeros((1, 2), np.float32)}
    keys = [
        tensor_prediction_key(b"1", "a", x, ("p",)),
        tensor_prediction_key(b"2", "a", x, ("p",)),
        tensor_prediction_key(b"1", "b", x, ("p",)),
        tensor_prediction_key(b"1", "a", x, ("q",)),
        tensor_prediction_key(b"1", "a", {"y": x["x"]}, ("p",)),
        tensor_prediction_key(b"1", "a", {"x": x["x"].reshape(2, 1)}, ("p",)),
        tensor_prediction_key(b"1", "a", {"x": x["x"].view(np.int32)}, ("p",)),
    ]
    assert len(set(keys)) == len(keys)


def test_long_keys_are_hashed_and_still_differ() -> None:
    one, other = (feature_key("g", ("x" * 5000 + end,), "") for end in "ab")
    assert one != other
    assert len(one) == len(other) == 33 < LONGEST_EXACT_BYTES


@pytest.mark.parametrize("value", [(1,), [1], {"a": 1}, np.float32(1), np.str_("a")])
def test_values_without_an_exact_form_are_refused(value) -> None:
    with pytest.raises(TypeError, match="holds a"):
        feature_key("g", (value,), "")


def test_structured_tensors_are_refused() -> None:
    with pytest.raises(TypeError, match='input "x" has dtype'):
        tensor_prediction_key(b"", "", {"x": np.zeros(2, dtype=[("a", "i4")])}, ())
    with pytest.raises(TypeError, match='input "x" holds a'):
        tensor_prediction_key(b"", "", {"x": np.array([object()], dtype=object)}, ())


# -- Rows and normal forms ---------------------------------------------------------------------------------------------

ZEROS = Normal(zeros=True)
FLOATS = st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 1e38, 3.4e38, 1e-45])
FLOAT_ROWS = st.lists(FLOATS, min_size=1, max_size=4)


def key_of(values: object, normal: Normal = Normal(), dtype: object = np.float32) -> bytes:  # noqa: B008
    return tensor_prediction_key(b"v", "", {"x": np.array(values, dtype)}, ("y",), normal)


@given(st.integers(1, 5), st.sampled_from([Normal(), ZEROS, Normal(digits={"x": 2})]), st.data())
def test_the_key_of_a_row_is_the_same_alone_and_on_a_board(rows: int, normal: Normal, data: st.DataObject) -> None:
    x = np.array(data.draw(st.lists(FLOATS, min_size=2 * rows, max_size=2 * rows)), np.float32).reshape(rows, 2)
    ids = np.array(data.draw(st.lists(st.text(max_size=3), min_size=rows, max_size=rows)), object)
    inputs = {"x": x, "ids": ids}
    keys = tensor_row_keys(b"v", "t", inputs, rows, ("y",), normal)
    alone = [{name: array[row : row + 1] for name, array in inputs.items()} for row in range(rows)]
    assert keys == [tensor_prediction_key(b"v", "t", one, ("y",), normal) for one in alone]


@given(FLOAT_ROWS, FLOAT_ROWS)
def test_with_zeros_values_that_compare_equal_share_a_key_and_no_others_do(
    one: list[float], other: list[float]
) -> None:
    a, b = np.array(one, np.float32), np.array(other, np.float32)
    same = a.shape == b.shape and bool(((a == b) | (np.isnan(a) & np.isnan(b))).all())
    assert (key_of(one, ZEROS) == key_of(other, ZEROS)) == same


def test_every_nan_is_the_same_only_where_the_manifest_says_so() -> None:
    payload = np.array([0x7FC00001], np.uint32).view(np.float32)
    negative = np.array([0xFFC00000], np.uint32).view(np.float32)
    assert key_of(payload, ZEROS) == key_of(negative, ZEROS) == key_of([math.nan], ZEROS)
    assert len({key_of(payload), key_of(negative), key_of([math.nan])}) == 3
    assert key_of([-0.0]) != key_of([0.0])
    assert key_of([-0.0], ZEROS) == key_of([0.0], ZEROS)


@given(st.floats(-1e6, 1e6, width=32), st.floats(-1e6, 1e6, width=32), st.integers(0, 4))
def test_rounded_keys_are_equal_exactly_for_values_that_round_alike(one: float, other: float, digits: int) -> None:
    normal = Normal(digits={"x": digits})
    scale = 10.0**digits
    same = np.rint(one * scale) == np.rint(other * scale)
    assert (key_of([one], normal) == key_of([other], normal)) == same


@given(FLOATS, FLOATS, st.integers(0, 15), st.sampled_from([np.float16, np.float32, np.float64]))
def test_rounding_never_joins_values_further_apart_than_a_step(one: float, other: float, digits: int, dtype) -> None:
    """Large values, of which rounding would make infinity, and infinity itself stay what they are."""
    with np.errstate(over="ignore"):
        a, b = dtype(one), dtype(other)
    normal = Normal(digits={"x": digits})
    if key_of([a], normal, dtype) == key_of([b], normal, dtype):
        far = 0.0 if a == b or (np.isnan(a) and np.isnan(b)) else abs(float(a) - float(b))
        assert far <= 10.0**-digits * 1.001


def test_rounding_is_for_the_named_floats_alone_and_part_of_the_key() -> None:
    normal = Normal(digits={"x": 1})
    assert key_of([1.01], normal) == key_of([0.99], normal) != key_of([1.0])
    assert key_of([1.0], normal) != key_of([1.0], Normal(digits={"x": 2}))
    assert key_of([1.01], Normal(digits={"z": 1})) == key_of([1.01])
    assert key_of([1, 2], normal, np.int64) == key_of([1, 2], dtype=np.int64)


def test_a_normal_form_changes_no_input() -> None:
    x = np.array([-0.0, math.nan, 1.26], np.float32)
    before = x.tobytes()
    tensor_prediction_key(b"v", "", {"x": x}, (), Normal(zeros=True, digits={"x": 1}))
    assert x.tobytes() == before
