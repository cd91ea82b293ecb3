"""Messages of ModelInfer <-> arrays: every datatype, raw and typed, and what is refused."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest

from tailcut.common.tensors import NUMPY_OF
from tailcut.common.validation import InputSpec
from tailcut.errors import BadRequest, InferenceError, TailcutError, TooLarge
from tailcut.protocol.open_inference.binary import raw_of
from tailcut.protocol.open_inference.codec import Inference
from tailcut.transport.grpc.calls import error_metadata, read, value_of
from tailcut.transport.grpc.codec import MessageCodec, parameters_of
from tailcut.transport.grpc.open_inference_pb2 import ModelInferRequest

VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False, True, True],
    "UINT8": [0, 1, 2, 255],
    "UINT16": [0, 1, 2, 65535],
    "UINT32": [0, 1, 2, 2**32 - 1],
    "UINT64": [0, 1, 2, 2**64 - 1],
    "INT8": [-128, 0, 1, 127],
    "INT16": [-32768, 0, 1, 32767],
    "INT32": [-(2**31), 0, 1, 2**31 - 1],
    "INT64": [-(2**63), 0, 1, 2**63 - 1],
    "FP16": [0.0, 1.5, -2.0, 65504.0],
    "FP32": [0.0, 1.5, -2.0, float(np.float32(3.4e38))],
    "FP64": [0.0, 1.5, -2.0, 1e300],
    "BYTES": ["", "a", "ü", "a\x00b"],
}
FIELDS = {"BOOL": "bool", "BYTES": "bytes", "FP32": "fp32", "FP64": "fp64", "INT64": "int64", "UINT64": "uint64"}


def field_of(datatype: str) -> str:
    return f"{FIELDS.get(datatype, 'uint' if datatype.startswith('U') else 'int')}_contents"


def codec(datatype: str = "FP32", **settings: Any) -> MessageCodec:
    specs = [InputSpec("x", datatype, (-1, 2))]
    return MessageCodec("m", "1", specs, ("y",), **{"max_rows": 8, **settings})


def request(datatype: str = "FP32", shape: list[int] | None = None, **fields: Any) -> ModelInferRequest:
    tensor = {"name": "x", "datatype": datatype, "shape": [2, 2] if shape is None else shape}
    contents = fields.pop("contents", None)
    if contents is not None:
        tensor["contents"] = contents
    return ModelInferRequest(model_name="m", inputs=[tensor], **fields)


def array_of(datatype: str) -> Any:
    found = np.empty(4, NUMPY_OF[datatype])
    found[:] = VALUES[datatype]
    return found.reshape(2, 2)


@pytest.mark.parametrize("datatype", list(NUMPY_OF))
def test_raw_data_of_every_datatype_comes_in_and_goes_out(datatype: str) -> None:
    array = array_of(datatype)
    found = codec(datatype).decode(request(datatype, raw_input_contents=[raw_of(array)], id="7"))
    assert (found.rows, found.binary, found.outputs, found.id) == (2, ("y",), ("y",), "7")
    assert found.inputs["x"].dtype == array.dtype
    assert found.inputs["x"].tolist() == array.tolist()
    reply = codec(datatype).encode(found, {"y": array})
    assert (reply.model_name, reply.model_version, reply.id) == ("m", "1", "7")
    (output,) = reply.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("y", datatype, [2, 2])
    assert not output.HasField("contents")
    assert list(reply.raw_output_contents) == [raw_of(array)]


@pytest.mark.parametrize("datatype", [name for name in NUMPY_OF if name != "FP16"])
def test_typed_data_of_every_datatype_comes_in_and_goes_out(datatype: str) -> None:
    values = VALUES[datatype]
    sent = [value.encode() if isinstance(value, str) else value for value in values]
    found = codec(datatype).decode(request(datatype, contents={field_of(datatype): sent}))
    assert not found.binary
    assert found.inputs["x"].dtype == NUMPY_OF[datatype]
    assert found.inputs["x"].ravel().tolist() == values
    reply = codec(datatype).encode(found, {"y": array_of(datatype)})
    assert not reply.raw_output_contents
    assert list(getattr(reply.outputs[0].contents, field_of(datatype))) == sent


def test_a_half_precision_answer_to_typed_data_is_raw() -> None:
    found = codec().decode(request(contents={"fp32_contents": [1, 2, 3, 4]}))
    array = np.ones((2, 2), np.float16)
    reply = codec().encode(found, {"y": array})
    assert list(reply.raw_output_contents) == [raw_of(array)]


def test_inputs_are_handed_on_in_the_models_order() -> None:
    specs = [InputSpec("a", "FP32", (-1,)), InputSpec("b", "INT8", (-1,))]
    tensors = [{"name": "b", "datatype": "INT8", "shape": [1]}, {"name": "a", "datatype": "FP32", "shape": [1]}]
    sent = ModelInferRequest(model_name="m", inputs=tensors, raw_input_contents=[b"\x05", b"\0\0\0\0"])
    found = MessageCodec("m", "1", specs, ("y",), max_rows=8).decode(sent)
    assert {name: array.tolist() for name, array in found.inputs.items()} == {"a": [0.0], "b": [5]}
    assert list(found.inputs) == ["a", "b"]


GOOD = np.ones((2, 2), np.float32).tobytes()


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (request(), "0 values in fp32_contents for shape [2, 2], expected 4"),
        (request(contents={"fp32_contents": [1]}), "1 values in fp32_contents"),
        (request(contents={"fp64_contents": [1, 2, 3, 4]}), "FP32 data in fp64_contents"),
        (request(contents={"fp32_contents": [1, 2, 3, float("nan")]}), "NaN (in JSON null) in row 1"),
        (request(contents={"fp32_contents": [1] * 4}, raw_input_contents=[GOOD]), "has both contents and raw_input"),
        (request(raw_input_contents=[GOOD, GOOD]), "1 inputs and 2 raw_input_contents"),
        (request(raw_input_contents=[GOOD[:-1]]), "has 15 bytes for shape [2, 2]"),
        (request(raw_input_contents=[GOOD + b"\0"]), "has 17 bytes for shape [2, 2]"),
        (request(raw_input_contents=[b""]), "has 0 bytes"),
        (request(shape=[], raw_input_contents=[GOOD]), "has shape []"),
        (request(shape=[-2, 2], raw_input_contents=[GOOD]), "has shape [-2, 2]"),
        (request(shape=[0, 2], raw_input_contents=[b""]), "has shape [0, 2]"),
        (request(shape=[2**62, 2], raw_input_contents=[GOOD]), "the limit per dimension"),
        (request("FP64", raw_input_contents=[GOOD * 2]), "has datatype 'FP64', expected FP32"),
        (request("", raw_input_contents=[GOOD]), "has datatype ''"),
        (request(raw_input_contents=[GOOD], outputs=[{"name": "w"}]), "output 'w' is unknown"),
        (request(raw_input_contents=[GOOD], outputs=[{"name": "y"}] * 2), "requested twice"),
        (request(raw_input_contents=[GOOD], parameters={"sequence_id": {"int64_param": 3}}), "sequence_id"),
        (ModelInferRequest(model_name="m"), "input 'x' is missing"),
    ],
)
def test_what_is_refused(sent: ModelInferRequest, said: str) -> None:
    with pytest.raises(BadRequest) as caught:
        codec().decode(sent)
    assert said in caught.value.message
    assert caught.value.hint


def test_integers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadRequest, match="a value that INT8 cannot hold"):
        codec("INT8").decode(request("INT8", contents={"int_contents": [1, 2, 3, 128]}))
    with pytest.raises(BadRequest, match="FP16, but contents has no field"):
        codec("FP16").decode(request("FP16", contents={"fp32_contents": [1, 2, 3, 4]}))


def test_too_many_rows_are_too_large() -> None:
    with pytest.raises(TooLarge, match="9 rows, the limit is 8"):
        codec().decode(request(shape=[9, 2], raw_input_contents=[b""]))


def test_bytes_that_are_no_message() -> None:
    with pytest.raises(BadRequest, match="not a ModelInferRequest"):
        read(ModelInferRequest, b"\xff\xff\xff")


def test_parameters_are_plain_values() -> None:
    sent = {
        "a": {"bool_param": True},
        "b": {"int64_param": -1},
        "c": {"string_param": "t"},
        "d": {"double_param": 0.5},
        "e": {"uint64_param": 2**64 - 1},
        "f": {},
    }
    found = parameters_of(ModelInferRequest(parameters=sent).parameters)
    assert found == {"a": True, "b": -1, "c": "t", "d": 0.5, "e": 2**64 - 1, "f": None}


@pytest.mark.parametrize("raw", [True, False])
def test_an_answer_that_is_no_number_is_an_error_unless_it_is_allowed(raw: bool) -> None:
    asked = Inference({}, 1, ("y",), "", 0, ("y",) if raw else ())
    answer = {"y": np.array([1, np.nan], np.float32)}
    with pytest.raises(InferenceError, match="NaN or infinity in output 'y'"):
        codec().encode(asked, answer)
    assert codec(nan_outputs=["y"]).encode(asked, answer).outputs[0].name == "y"


# -- Errors on the wire ----------------------------------------------------------------------------------------------


def kinds(root: type[TailcutError]) -> list[type[TailcutError]]:
    return [root, *[found for kind in root.__subclasses__() for found in kinds(kind)]]


@pytest.mark.parametrize("kind", kinds(TailcutError), ids=lambda kind: kind.__name__)
def test_every_error_has_a_status_of_grpc(kind: type[TailcutError]) -> None:
    assert kind.grpc_status in {status.name for status in grpc.StatusCode}


def test_metadata_is_printable_ascii_of_a_bounded_length() -> None:
    assert value_of(" a\nb\tü€\x7f ") == "a b \\xfc\\u20ac"
    assert len(value_of("x" * 10_000)) == 600
    assert error_metadata(BadRequest("m", hint="h\r\n"), "ab") == (
        ("x-tailcut-code", "bad_request"),
        ("x-tailcut-hint", "h"),
        ("x-tailcut-incident", "ab"),
    )


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize(("value", "says"), [("\ud800", "no Unicode"), (1, "a int in an output of BYTES")])
def test_an_answer_that_is_no_text_is_an_error(raw: bool, value: object, says: str) -> None:
    contents: dict[str, Any] = {"contents": {"fp32_contents": [1, 2, 3, 4]}}
    sent = {"raw_input_contents": [raw_of(array_of("FP32"))]} if raw else contents
    found = codec().decode(request(**sent))
    with pytest.raises(InferenceError, match=says):
        codec().encode(found, {"y": np.array([value, "a"], object)})
