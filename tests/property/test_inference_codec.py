"""Whatever bytes come in, a request is read or refused as the client's fault; arrays of every datatype survive."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tailcut.common.tensors import DATATYPE_OF, NUMPY_OF
from tailcut.common.validation import InputSpec
from tailcut.errors import BadRequest
from tailcut.protocol.open_inference.codec import InferenceCodec

CODECS = [
    InferenceCodec("m", "1", [InputSpec("x", "FP32", (-1, 2))], ("y", "z"), max_rows=1024),
    InferenceCodec("m", "1", [InputSpec("x", "FP16", (-1, -1))], ("y", "z"), max_rows=1024),
    InferenceCodec(
        "m", "1", [InputSpec("x", "INT8", (-1, 2)), InputSpec("t", "BYTES", (-1,))], ("y", "z"), max_rows=1024
    ),
    InferenceCodec(
        "m", "1", [InputSpec("x", "UINT64", (-1, 2)), InputSpec("b", "BOOL", (-1, -1, 1))], ("y", "z"), max_rows=1024
    ),
]

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
names = st.sampled_from(["x", "t", "b", "y", "z", ""])
tensors = st.fixed_dictionaries(
    {},
    optional={
        "name": names | anything,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | anything,
        "datatype": st.sampled_from(sorted(NUMPY_OF)) | anything,
        "data": st.lists(scalars, max_size=4) | st.lists(st.lists(scalars, max_size=2), max_size=2) | anything,
        "parameters": anything,
    },
)
requests = st.fixed_dictionaries(
    {"inputs": st.lists(tensors, max_size=3) | anything},
    optional={
        "id": anything,
        "parameters": st.fixed_dictionaries({"timeout": anything}) | anything,
        "outputs": st.lists(st.fixed_dictionaries({"name": names}), max_size=3) | anything,
    },
)


def read(raw: bytes) -> None:
    for codec in CODECS:
        with suppress(BadRequest):
            parsed = codec.decode(raw)
            assert all(len(array) == parsed.rows for array in parsed.inputs.values())
            assert set(parsed.outputs) <= {"y", "z"}


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    read(raw)


@given(requests)
def test_any_json_is_read_or_refused(request: Any) -> None:
    read(json.dumps(request).encode())


@given(requests, st.data())
def test_any_damaged_json_is_read_or_refused(request: Any, data: st.DataObject) -> None:
    raw = bytearray(json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    read(bytes(raw))


@st.composite
def typed_arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    datatype = draw(st.sampled_from(sorted(NUMPY_OF)))
    shape = draw(arrays.array_shapes(min_dims=1, max_dims=3, max_side=3))
    if datatype == "BYTES":
        texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
        return draw(arrays.arrays(object, shape, elements=texts))
    options = {"allow_nan": False, "allow_infinity": False} if datatype.startswith("FP") else {}
    elements = arrays.from_dtype(NUMPY_OF[datatype], **options)
    return draw(arrays.arrays(NUMPY_OF[datatype], shape, elements=elements))


@given(typed_arrays(), st.booleans())
def test_arrays_of_every_datatype_survive_the_way_in_and_out(array: np.ndarray[Any, Any], nested: bool) -> None:
    datatype = DATATYPE_OF[array.dtype]
    codec = InferenceCodec("m", "1", [InputSpec("x", datatype, (-1,) * array.ndim)], ("x",), max_rows=1024)
    data = array.tolist() if nested else array.ravel().tolist()
    sent = {"name": "x", "shape": array.shape, "datatype": datatype, "data": data}
    parsed = codec.decode(json.dumps({"inputs": [sent]}).encode())
    read_back = parsed.inputs["x"]
    assert read_back.dtype == array.dtype
    assert parsed.rows == len(array)
    np.testing.assert_array_equal(read_back, array)
    reply = json.loads(codec.encode(parsed, {"x": read_back}))["outputs"][0]
    assert (reply["shape"], reply["datatype"]) == (list(array.shape), datatype)
    np.testing.assert_array_equal(np.array(reply["data"], array.dtype).reshape(array.shape), array)
