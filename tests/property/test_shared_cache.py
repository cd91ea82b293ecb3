"""What is written for other servers is read back as it was, and what nobody wrote is no answer and no error."""

from __future__ import annotations

import json
import math

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailcut.common.json_values import encode
from tailcut.common.tensors import NUMPY_OF, Arrays
from tailcut.pipeline.prediction_cache import row_marks, watched
from tailcut.pipeline.shared_cache import JSON as JSON_FORM
from tailcut.pipeline.shared_cache import TENSORS, StoredAnswer

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def tensors(draw: st.DrawFn) -> np.ndarray:
    dtype = NUMPY_OF[draw(st.sampled_from(sorted(NUMPY_OF)))]
    shape = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)))
    size = math.prod(shape)
    if dtype.hasobject:
        array = np.empty(size, object)
        array[:] = draw(st.lists(st.text(max_size=3) | st.binary(max_size=3), min_size=size, max_size=size))
        return array.reshape(shape)
    raw = draw(st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize))
    return np.frombuffer(raw, np.uint8).view(dtype).reshape(shape) if size else np.empty(shape, dtype)


OUTPUTS = st.dictionaries(st.text(max_size=4), tensors(), max_size=3)


def same(one: Arrays, other: Arrays) -> bool:
    return list(one) == list(other) and all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and (a.tolist() == b.tolist() if a.dtype.hasobject else a.tobytes() == b.tobytes())
        for a, b in ((one[name], other[name]) for name in one)
    )


@given(OUTPUTS)
def test_tensors_come_back_to_the_bit_and_may_be_changed(outputs: Arrays) -> None:
    form = TENSORS
    raw = form.pack(outputs)
    assert raw is not None
    found = form.unpack(raw)
    assert found is not None
    assert same(found, outputs)
    assert all(array.flags.writeable for array in found.values())


@given(JSON)
def test_json_comes_back_as_it_was(value: object) -> None:
    raw = msgspec.Raw(encode(value))
    packed = JSON_FORM.pack(raw)
    assert packed is not None
    found = JSON_FORM.unpack(packed)
    assert found is not None
    assert json.loads(bytes(found)) == json.loads(bytes(raw))


@given(st.binary(max_size=60))
def test_any_other_bytes_are_no_answer_and_no_error(raw: bytes) -> None:
    found = TENSORS.unpack(raw)
    assert found is None or same(found, found)
    JSON_FORM.unpack(raw)
    try:
        msgspec.msgpack.decode(raw, type=StoredAnswer)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return


@given(OUTPUTS, st.data())
def test_a_cut_or_changed_entry_is_no_answer_or_one_of_the_right_form(outputs: Arrays, data: st.DataObject) -> None:
    raw = TENSORS.pack(outputs)
    assert raw is not None
    at = data.draw(st.integers(0, max(len(raw) - 1, 0)))
    for spoiled in (raw[:at], raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]):
        found = TENSORS.unpack(spoiled)
        assert found is None or all(array.dtype in NUMPY_OF.values() for array in found.values())


def test_what_has_no_exact_form_is_not_shared() -> None:
    assert TENSORS.pack({"y": np.array([1, {}], object)}) is None
    assert TENSORS.pack({"y": np.array(["\ud800"], object)}) is None
    assert JSON_FORM.unpack(b"[NaN]") is None
    assert JSON_FORM.unpack(b"[1e999,-1e999]") is not None
    assert JSON_FORM.unpack(b"[1e999,NaN]") is None
    assert JSON_FORM.unpack(b"[1e999,") is None
    assert TENSORS.pack({"y": np.zeros(1, np.complex64)}) is None


@given(st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), min_size=1, max_size=8))
def test_equal_rows_have_equal_marks(values: list[list[int]]) -> None:
    text = np.empty(len(values), object)
    text[:] = [str(row) for row in values]
    marks = row_marks({"x": np.array(values, np.float32), "text": text}, len(values))
    for one, mark in zip(values, marks, strict=True):
        for other, other_mark in zip(values, marks, strict=True):
            assert (mark == other_mark) == (one == other)


def test_about_one_in_sixteen_is_watched_and_always_the_same() -> None:
    keys = [(id_, "JFK") for id_ in range(20_000)]
    some = watched(keys)
    assert some == watched(keys)
    assert 1000 < len(some) < 1500
