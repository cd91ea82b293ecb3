"""Whatever bytes a client sends as ModelInferRequest: an answer, or an error that says it is the client's."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailcut.common.tensors import NUMPY_OF
from tailcut.common.validation import InputSpec
from tailcut.errors import BadRequest, TailcutError, TooLarge
from tailcut.protocol.open_inference.binary import raw_of
from tailcut.transport.grpc.calls import read as message_of
from tailcut.transport.grpc.codec import MessageCodec
from tailcut.transport.grpc.open_inference_pb2 import ModelInferRequest

SPECS = [InputSpec("x", "FP32", (-1, 2)), InputSpec("t", "BYTES", (-1,)), InputSpec("n", "INT8", (-1, -1))]
CODEC = MessageCodec("m", "1", SPECS, ("y", "z"), max_rows=64)
WHOLE = ModelInferRequest(
    model_name="m",
    id="1",
    inputs=[
        {"name": "x", "datatype": "FP32", "shape": [2, 2]},
        {"name": "t", "datatype": "BYTES", "shape": [2]},
        {"name": "n", "datatype": "INT8", "shape": [2, 3]},
    ],
    raw_input_contents=[b"\0" * 16, b"\x01\0\0\0a\0\0\0\0", b"\x05" * 6],
    parameters={"timeout": {"int64_param": 5}},
)

names = st.sampled_from(["x", "t", "n", "y", ""]) | st.text(max_size=3)
dimensions = st.integers(-3, 5) | st.sampled_from([0, 2**31, 2**62, 2**63 - 1, -(2**63)])
numbers = st.floats(width=32)
contents = st.one_of(
    st.none(),
    st.fixed_dictionaries({"fp32_contents": st.lists(numbers, max_size=6)}),
    st.fixed_dictionaries({"bytes_contents": st.lists(st.binary(max_size=4), max_size=4)}),
    st.fixed_dictionaries({"int_contents": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=8)}),
    st.fixed_dictionaries({"bool_contents": st.lists(st.booleans(), max_size=3)}),
)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, Any]:
    tensor: dict[str, Any] = {
        "name": draw(names),
        "datatype": draw(st.sampled_from([*NUMPY_OF, "", "FP8"])),
        "shape": draw(st.lists(dimensions, max_size=4)),
    }
    data = draw(contents)
    return tensor if data is None else {**tensor, "contents": data}


requests = st.builds(
    lambda inputs, raw, outputs: ModelInferRequest(
        model_name="m", inputs=inputs, raw_input_contents=raw, outputs=[{"name": name} for name in outputs]
    ),
    st.lists(tensors(), max_size=4),
    st.lists(st.binary(max_size=40), max_size=4),
    st.lists(names, max_size=3),
)


def read(message: bytes) -> None:
    """Read it as the server does; an error is the client's, says why and is short."""
    refused: TailcutError | None = None
    try:
        found = CODEC.decode(message_of(ModelInferRequest, message))
    except (BadRequest, TooLarge) as error:
        refused = error
    if refused is not None:
        assert refused.hint
        assert len(refused.message) < 1000
        assert refused.grpc_status in {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}
        return
    assert list(found.inputs) == ["x", "t", "n"]
    for spec in SPECS:
        assert found.inputs[spec.name].dtype == spec.dtype
        assert len(found.inputs[spec.name]) == found.rows


@given(st.binary(max_size=300))
def test_any_bytes(message: bytes) -> None:
    read(message)


@given(requests)
def test_any_message(request: ModelInferRequest) -> None:
    read(request.SerializeToString())


@given(st.data())
def test_a_right_message_with_bytes_changed_cut_or_added(data: st.DataObject) -> None:
    message = bytearray(WHOLE.SerializeToString())
    read(bytes(message))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(message) - 1))
        message[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        if not message:
            break
    read(bytes(message))


@given(st.lists(st.lists(numbers.filter(np.isfinite), min_size=2, max_size=2), min_size=1, max_size=8))
def test_raw_and_typed_data_are_the_same_arrays(rows: list[list[float]]) -> None:
    array = np.array(rows, np.float32)
    tensor = {"name": "x", "datatype": "FP32", "shape": array.shape}
    codec = MessageCodec("m", "1", SPECS[:1], ("y",), max_rows=64)
    raw = codec.decode(ModelInferRequest(inputs=[tensor], raw_input_contents=[raw_of(array)]))
    typed = {**tensor, "contents": {"fp32_contents": array.ravel().tolist()}}
    found = codec.decode(ModelInferRequest(inputs=[typed]))
    np.testing.assert_array_equal(raw.inputs["x"], array)
    np.testing.assert_array_equal(found.inputs["x"], array)
