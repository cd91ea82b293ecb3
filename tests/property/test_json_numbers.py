"""Numbers written as JSON read back bit by bit, and alike whatever is beside them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tailcut.common.tensors import NUMPY_OF
from tailcut.protocol.open_inference.codec import NULL, way_of, with_infinity

FLOATS = {"FP16": np.uint16, "FP32": np.uint32, "FP64": np.uint64}
# Read as a double and cast, the shortest decimal of these is their neighbour.
TWICE_ROUNDED = np.array([0x15AE43FD, 0x95AE43FD], np.uint32).view(np.float32)


def written(array: np.ndarray[Any, Any]) -> bytes:
    return way_of(array.dtype, array.size)(array)


def bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


@st.composite
def floats(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    datatype = draw(st.sampled_from(sorted(FLOATS)))
    shape = draw(arrays.array_shapes(min_dims=1, max_dims=2, max_side=8))
    return draw(arrays.arrays(FLOATS[datatype], shape)).view(NUMPY_OF[datatype])


@given(floats(), st.booleans())
def test_floats_read_as_doubles_and_cast_are_the_same_bits(array: np.ndarray[Any, Any], turned: bool) -> None:
    array = array.T if turned else array
    text = written(array)
    finite = np.isfinite(array.ravel())
    assert (NULL in text) is not bool(finite.all())
    values = json.loads(text)
    assert [value is not None for value in values] == finite.tolist()
    read = np.array([value for value in values if value is not None], array.dtype)
    np.testing.assert_array_equal(bits(read), bits(array.ravel()[finite]))


@given(floats(), st.booleans())
def test_of_nulls_those_that_are_infinity_are_told(array: np.ndarray[Any, Any], turned: bool) -> None:
    array = array.T if turned else array
    values = json.loads(with_infinity(written(array), array))
    read = np.array([np.nan if value is None else value for value in values], array.dtype)
    assert [value is None for value in values] == np.isnan(array.ravel()).tolist()
    np.testing.assert_array_equal(read, array.ravel())


@given(floats())
def test_a_value_is_written_alone_as_among_many(array: np.ndarray[Any, Any]) -> None:
    together = written(array)[1:-1].split(b",")
    alone = [written(value.reshape(1))[1:-1] for value in array.ravel()]
    if array.dtype == np.float64:  # 1e16 or 1e+16: the same double
        together, alone = [json.loads(each) for each in together], [json.loads(each) for each in alone]
    assert together == alone


@given(st.data())
def test_whole_numbers_and_bools_survive(data: st.DataObject) -> None:
    datatype = data.draw(st.sampled_from(["BOOL", *(name for name in NUMPY_OF if "INT" in name)]))
    array = data.draw(arrays.arrays(NUMPY_OF[datatype], st.integers(0, 20)))
    assert json.loads(written(array)) == array.tolist()


@pytest.mark.parametrize("beside", [[], [0.5] * 100])
def test_what_would_round_twice_is_written_longer(beside: list[float]) -> None:
    array = np.concatenate([np.array(beside, np.float32), TWICE_ROUNDED])
    read = np.array(json.loads(written(array)), np.float64).astype(np.float32)
    np.testing.assert_array_equal(bits(read), bits(array))


def test_few_floats_and_many_are_written_alike_and_fp32_short() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        for count in (1, 20):
            assert json.loads(written(np.full(count, 0.5, dtype))) == [0.5] * count
    assert written(np.full(2, 0.1, np.float32)) == b"[0.1,0.1]"
    assert written(np.full(20, 0.1, np.float32)) == b"[" + b",".join([b"0.1"] * 20) + b"]"


def test_arrays_that_orjson_takes_not_are_written_all_the_same() -> None:
    array = np.arange(20, dtype=np.float32).reshape(4, 5) / 3
    wanted = written(array)
    assert written(array.astype(">f4")) == written(array.view(np.recarray)) == wanted
    assert written(np.asfortranarray(array)) == wanted
    assert written(np.repeat(array, 2, axis=1)[:, ::2]) == wanted
    unaligned = np.frombuffer(b"\0" + array.tobytes(), np.float32, offset=1)
    assert written(unaligned) == wanted
    frozen = array.copy()
    frozen.flags.writeable = False
    assert written(frozen) == wanted
