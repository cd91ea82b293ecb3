"""An array, or a field, passes its limits exactly where a plain loop over its values says so."""

from __future__ import annotations

from math import isnan
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tailcut.common.bounds import Bound, Limits
from tailcut.common.tensors import NUMPY_OF, Array
from tailcut.errors import BadRequest
from tailcut.models.value_limits import FieldRule, Kind

INTEGERS = [name for name in NUMPY_OF if "INT" in name]
FLOATS = ["FP16", "FP32", "FP64"]


def passes(limits: Limits, array: Array) -> bool:
    try:
        limits.check(array)
    except BadRequest:
        return False
    return True


def within(value: Any, bound: Bound, as_held: Any) -> bool:
    """What the documentation says of one value, which is a Python number."""
    if isinstance(value, float) and isnan(value):
        return True
    low = bound.min is None or value >= as_held(bound.min)
    high = bound.max is None or value <= as_held(bound.max)
    return low and high and (bound.values is None or value in [as_held(one) for one in bound.values])


def looked_at(array: Array, columns: tuple[int, ...]) -> list[Any]:
    rows = [row.ravel().tolist() for row in array]
    return [row[column] for row in rows for column in (columns or range(len(row)))]


shapes = st.tuples(st.integers(1, 4), st.integers(1, 20), st.integers(1, 3))


@st.composite
def integer_cases(draw: st.DrawFn) -> tuple[str, Array, Bound]:
    datatype = draw(st.sampled_from(INTEGERS))
    info: Any = np.iinfo(NUMPY_OF[datatype].str)
    shape = draw(shapes)
    near = draw(st.integers(int(info.min), int(info.max)))
    values = st.integers(max(near - 3, int(info.min)), min(near + 3, int(info.max)))
    array = draw(arrays.arrays(NUMPY_OF[datatype], shape, elements=values))
    limit = st.none() | st.integers(near - 4, near + 4)
    columns = draw(st.just(()) | st.lists(st.integers(0, shape[1] * shape[2] - 1), max_size=5, unique=True).map(tuple))
    allowed = draw(st.none() | st.lists(values, min_size=1, max_size=8).map(tuple))
    return datatype, array, Bound(input="x", min=draw(limit), max=draw(limit), values=allowed, columns=columns)


@st.composite
def float_cases(draw: st.DrawFn) -> tuple[str, Array, Bound]:
    datatype = draw(st.sampled_from(FLOATS))
    shape = draw(shapes)
    some: list[float] = [0.1, 0.3, -0.0, 1 / 3, 2.5, -7.1, float("nan"), float("inf"), float("-inf"), 65504.0]
    array = draw(arrays.arrays(NUMPY_OF[datatype], shape, elements=st.sampled_from(some).map(NUMPY_OF[datatype].type)))
    finite = st.sampled_from([one for one in some if abs(one) < 1e5])
    limit = st.none() | finite | st.floats(-10, 10)
    allowed = draw(st.none() | st.lists(finite, min_size=1, max_size=8).map(tuple))
    return datatype, array, Bound(input="x", min=draw(limit), max=draw(limit), values=allowed)


@given(integer_cases())
def test_whole_numbers(case: tuple[str, Array, Bound]) -> None:
    datatype, array, bound = case
    expected = all(within(value, bound, int) for value in looked_at(array, bound.columns))
    assert passes(Limits("x", datatype, (-1, *array.shape[1:]), [bound]), array) is expected


@given(float_cases())
def test_floats_count_limits_in_their_own_datatype(case: tuple[str, Array, Bound]) -> None:
    datatype, array, bound = case
    as_held = NUMPY_OF[datatype].type
    expected = all(within(value, bound, lambda one: float(as_held(one))) for value in looked_at(array, ()))
    assert passes(Limits("x", datatype, (-1, *array.shape[1:]), [bound], allow_nan=True), array) is expected


@given(
    st.lists(st.text(max_size=6), min_size=1, max_size=50),
    st.none() | st.lists(st.text(max_size=6), min_size=1, max_size=20),
    st.none() | st.integers(1, 6),
)
def test_texts(texts: list[str], values: list[str] | None, longest: int | None) -> None:
    if values is None and longest is None:
        return
    bound = Bound(input="x", values=None if values is None else tuple(values), max_length=longest)
    expected = all((longest is None or len(one) <= longest) and (values is None or one in values) for one in texts)
    assert passes(Limits("x", "BYTES", (-1,), [bound]), np.array(texts, object)) is expected


@given(
    st.lists(st.integers() | st.floats(), max_size=8),
    st.none() | st.integers() | st.floats(allow_nan=False),
    st.none() | st.integers() | st.floats(allow_nan=False),
)
def test_numbers_of_fields(values: list[float], low: float | None, high: float | None) -> None:
    bound = Bound(input="x", min=low, max=high)
    expected = all(within(value, bound, lambda one: one) for value in values)
    assert (FieldRule(low=low, high=high).problem(values) == "") is expected


@given(
    st.sampled_from(FLOATS),
    st.lists(st.sampled_from([0.1, 0.3, 1 / 3, -7.1, 65504.0, 65520.0, 1e39, -1e39, 2**24 + 1, 10**400]), max_size=8)
    | st.lists(st.floats(-70000, 70000) | st.integers(-(2**25), 2**25), max_size=8),
    st.none() | st.sampled_from([0.1, 1 / 3, 2**24 + 1, 65504, 1e39]) | st.floats(-70000, 70000),
    st.booleans(),
)
def test_a_field_takes_exactly_what_the_tensor_that_it_fills_takes(
    datatype: str, numbers: list[float], limit: float | None, is_list: bool
) -> None:
    """The limit is given as written by hand, and as a model holds it."""
    dtype: Any = NUMPY_OF[datatype]
    for number in numbers:
        with np.errstate(over="ignore"):
            held = dtype.type(float(number) if abs(number) < 1e308 else float("inf"))
            as_model = number if limit is None or abs(limit) > 1e300 else float(dtype.type(limit))
        for edge in (limit, as_model):
            for how in ({"values": (edge, 2.5)},) if is_list and edge is not None else ({"max": edge}, {"min": edge}):
                bound = Bound(input="x", **how)
                if bound == Bound(input="x"):
                    continue
                rule = FieldRule(low=bound.min, high=bound.max, values=bound.values, datatype=datatype)
                expected = passes(Limits("x", datatype, (-1,), [bound]), np.array([held], dtype))
                assert (rule.problem(number) == "") is expected, (number, bound)


fields_of_lists = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, -0.0, float("nan"), 2.0**53, "", "ab"]),
    lambda inner: st.lists(inner, max_size=4),
)


def flattened(value: Any) -> list[Any]:
    return [each for one in value for each in flattened(one)] if isinstance(value, list) else [value]


@given(
    st.lists(fields_of_lists, max_size=6),
    st.sampled_from(["any", "integer", "number", "text", "boolean"]),
    st.none() | st.integers(-2, 2),
    st.none() | st.lists(st.sampled_from([0, 1, True, 0.5, "ab", ""]), min_size=1, max_size=4).map(tuple),
)
def test_a_list_passes_where_each_of_its_values_does(
    value: list[Any], kind: Kind, low: int | None, values: tuple[Any, ...] | None
) -> None:
    rule = FieldRule(kind, low=low, values=values)
    expected = not any(rule.problem(each) for each in flattened(value))
    assert (rule.problem(value) == "") is expected
