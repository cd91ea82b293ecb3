"""Raw tensors of every datatype survive the way there and back; whatever bytes come in is read or refused."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tailcut.common.tensors import DATATYPE_OF, NUMPY_OF, Array
from tailcut.common.validation import InputSpec
from tailcut.errors import BadRequest, InferenceError, TailcutError, TooLarge
from tailcut.protocol.open_inference.binary import array_of, raw_of

shapes = arrays.array_shapes(min_dims=1, max_dims=3, max_side=4)
numbers = st.sampled_from([dtype for name, dtype in NUMPY_OF.items() if name != "BYTES"]).flatmap(
    lambda dtype: arrays.arrays(dtype, shapes)
)
texts = shapes.flatmap(
    lambda shape: arrays.arrays(np.dtype(object), shape, elements=st.text(max_size=5), fill=st.nothing())
)


def spec_of(array: Array, **options: Any) -> InputSpec:
    return InputSpec("x", DATATYPE_OF[array.dtype], [-1] * array.ndim, **options)


@given(numbers)
def test_numbers_survive(array: Array) -> None:
    back = array_of(raw_of(array), spec_of(array, allow_nan=True), array.shape, 4)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


@given(texts)
def test_texts_survive(array: Array) -> None:
    back = array_of(raw_of(array), spec_of(array), array.shape, 4)
    assert back.shape == array.shape
    assert back.ravel().tolist() == array.ravel().tolist()


@given(st.binary(min_size=1, max_size=8))
def test_bytes_are_text_or_refused(value: bytes) -> None:
    """onnxruntime would answer for "b'...'" instead."""
    raw = raw_of(np.array([value], object))
    try:
        wanted = value.decode()
    except UnicodeDecodeError:
        with pytest.raises(BadRequest, match="an element of input 'x' is no UTF-8 text"):
            array_of(raw, InputSpec("x", "BYTES", [-1]), [1], 1)
    else:
        assert array_of(raw, InputSpec("x", "BYTES", [-1]), [1], 1).tolist() == [wanted]


@given(numbers, st.integers(0, 7), st.sampled_from([bytes, bytearray, memoryview]))
def test_arrays_are_aligned_wherever_their_bytes_begin(array: Array, offset: int, kind: Any) -> None:
    raw = memoryview(kind(bytes(offset) + raw_of(array)))[offset:]
    back = array_of(raw, spec_of(array, allow_nan=True), array.shape, 4)
    assert back.flags.aligned
    assert back.dtype.isnative
    assert back.tobytes() == array.tobytes()


@given(
    st.binary(max_size=64),
    st.sampled_from(sorted(NUMPY_OF)),
    st.lists(st.integers(-2, 5) | st.integers(), max_size=3),
    st.lists(st.sampled_from([-1, 1, 2]), min_size=1, max_size=3),
)
def test_whatever_comes_is_read_or_refused(raw: bytes, datatype: str, shape: list[int], wanted: list[int]) -> None:
    spec = InputSpec("x", datatype, [-1, *wanted[1:]])
    try:
        found = array_of(raw, spec, shape, 1000)
    except (BadRequest, TooLarge) as error:
        refused: TailcutError = error
    else:
        check(found, datatype, shape)
        return
    assert refused.hint


def check(found: Array, datatype: str, shape: list[int]) -> None:
    assert found.shape == tuple(shape)
    assert found.dtype == NUMPY_OF[datatype]
    if found.dtype.kind == "f":
        assert np.isfinite(found).all()


@given(st.binary(max_size=64), st.integers(1, 20))
def test_bytes_elements_are_read_or_refused(raw: bytes, count: int) -> None:
    try:
        found = array_of(raw, InputSpec("x", "BYTES", [-1]), [count], 1000)
    except BadRequest:
        return
    assert raw_of(found) == raw


@pytest.mark.parametrize("datatype", sorted(NUMPY_OF))
def test_a_shape_that_lies_allocates_nothing(datatype: str) -> None:
    raw = b"\xff" * 64
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest):
            array_of(raw, InputSpec("x", datatype, [-1, -1, -1]), [1, 2**31 - 1, 2**31 - 1], 1)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_lengths_that_lie_are_refused() -> None:
    spec = InputSpec("x", "BYTES", [-1])
    for raw, says in (
        (b"\xff\xff\xff\xff", "element 0 of input 'x' ends at byte 4294967299 of 4"),
        (b"\x01\x00\x00\x00ab", "input 'x' has 6 bytes, its 1 elements end at byte 5"),
        (b"\x00\x00", "input 'x' has 2 bytes for 1 BYTES elements, expected at least 4"),
    ):
        with pytest.raises(BadRequest, match=says):
            array_of(raw, spec, [1], 1)


def test_wrong_lengths_and_values_are_refused() -> None:
    for raw, datatype, shape, says in (
        (bytes(7), "FP32", [1, 2], "has 7 bytes for shape [1, 2] of FP32, expected 8"),
        (bytes(9), "FP32", [1, 2], "has 9 bytes"),
        (bytes([0, 2]), "BOOL", [1, 2], "holds the byte 2, which is no BOOL"),
        (np.array([1, np.nan], "<f4").tobytes(), "FP32", [1, 2], "holds NaN (in JSON null) in row 0"),
        (bytes(8), "FP32", [0, 2], "has shape [0, 2]"),
        (bytes(8), "FP32", [1, 2, 1], "has shape [1, 2, 1]"),
    ):
        with pytest.raises(BadRequest) as caught:
            array_of(raw, InputSpec("x", datatype, [-1, 2]), shape, 9)
        assert says in caught.value.message
    with pytest.raises(TooLarge, match="2 rows, the limit is 1"):
        array_of(bytes(16), InputSpec("x", "FP32", [-1, 2]), [2, 2], 1)


def test_nan_passes_where_the_model_takes_it() -> None:
    raw = np.array([np.nan, np.inf], "<f2").tobytes()
    assert array_of(raw, InputSpec("x", "FP16", [-1], allow_nan=True), [2], 2).tobytes() == raw


def test_no_copy_where_the_bytes_are_aligned() -> None:
    raw = bytearray(np.arange(4, dtype="<f4").tobytes())
    found = array_of(raw, InputSpec("x", "FP32", [-1, 2]), [2, 2], 2)
    raw[0:4] = np.float32(9).tobytes()
    assert found[0, 0] == 9


def test_outputs_that_are_no_bytes_are_an_error_of_the_model() -> None:
    with pytest.raises(InferenceError, match="the model returned a int"):
        raw_of(np.array([1, "a"], object))


def test_any_layout_is_written_in_row_major_order() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    assert raw_of(array.T) == np.ascontiguousarray(array.T).tobytes()
    assert raw_of(array.astype(">i2")) == array.astype("<i2").tobytes()
