"""Whatever form a tensor comes in, its values are held to the same limits, in the same words."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tailcut.common.bounds import Bound
from tailcut.common.tensors import Array
from tailcut.common.validation import InputSpec
from tailcut.errors import BadRequest
from tailcut.protocol.open_inference.binary import raw_of
from tailcut.protocol.open_inference.codec import InferenceCodec
from tailcut.transport.grpc.codec import MessageCodec
from tailcut.transport.grpc.open_inference_pb2 import ModelInferRequest

TWO = np.array([[1, 2], [3, 4]])

SPECS: dict[str, tuple[InputSpec, Array, int, Any, str]] = {
    # An input, values that it takes, and at which flat position which value is refused in which words.
    "shop": (
        InputSpec("x", "INT64", (-1, 2), bounds=[Bound(input="x", min=0, max=49, why="e has 50 rows")]),
        TWO.astype(np.int64),
        3,
        50,
        "input 'x' holds 50 in row 1, position 1, allowed are 0 to 49 (e has 50 rows)",
    ),
    "minus": (
        InputSpec("x", "INT64", (-1, 2), bounds=[Bound(input="x", columns=(0,), min=0)]),
        np.array([[1, -2], [3, -4]]),
        2,
        -1,
        "input 'x' holds -1 in row 1, position 0, allowed are values of at least 0",
    ),
    "share": (
        InputSpec("x", "FP32", (-1, 2), bounds=[Bound(input="x", max=0.1)]),
        np.full((2, 2), 0.1, np.float32),
        1,
        0.5,
        "input 'x' holds 0.5 in row 0, position 1, allowed are values of at most 0.1",
    ),
    "flag": (
        InputSpec("x", "BOOL", (-1, 2), bounds=[Bound(input="x", values=(False,))]),
        np.zeros((2, 2), np.bool_),
        0,
        True,
        "input 'x' holds True in row 0, position 0, allowed are False",
    ),
    "city": (
        InputSpec("x", "BYTES", (-1, 2), bounds=[Bound(input="x", values=("Rome", "Oslo"))]),
        np.array([["Rome", "Oslo"], ["Oslo", "Oslo"]], object),
        2,
        "Bonn",
        "input 'x' holds 'Bonn' in row 1, position 0, allowed are 'Rome', 'Oslo'",
    ),
}


def flat_json(spec: InputSpec, array: Array) -> Callable[[], Any]:
    return _json(spec, array, array.ravel().tolist())


def nested_json(spec: InputSpec, array: Array) -> Callable[[], Any]:
    return _json(spec, array, array.tolist())


def row_by_row(spec: InputSpec, array: Array) -> Callable[[], Any]:
    """One row after the other, flat: a lone row of floats has a way of its own. The error names row 0 then."""
    codec = InferenceCodec("m", "1", [spec], ("y",), max_rows=8)

    def read() -> None:
        for row in array:
            codec.decode(json.dumps(_request(spec, row[None], data=row.tolist())).encode())

    return read


def with_another(spec: InputSpec, array: Array) -> Callable[[], Any]:
    """Beside a second input, so that no input has a way of its own."""
    codec = InferenceCodec("m", "1", [spec, InputSpec("n", "FP32", (-1,))], ("y",), max_rows=8)
    request = _request(spec, array, data=array.tolist())
    request["inputs"].insert(0, {"name": "n", "shape": [2], "datatype": "FP32", "data": [1, 2]})
    return lambda: codec.decode(json.dumps(request).encode())


def raw(spec: InputSpec, array: Array) -> Callable[[], Any]:
    codec = InferenceCodec("m", "1", [spec], ("y",), max_rows=8)
    return lambda: codec.decode(*_packed(spec, array))


def raw_again(spec: InputSpec, array: Array) -> Callable[[], Any]:
    """The head of a request that was good, before other values."""
    codec = InferenceCodec("m", "1", [spec], ("y",), max_rows=8)
    good = next(each[1] for each in SPECS.values() if each[0] is spec)
    codec.decode(*_packed(spec, good))
    return lambda: codec.decode(*_packed(spec, array))


def raw_with_another(spec: InputSpec, array: Array) -> Callable[[], Any]:
    codec = InferenceCodec("m", "1", [spec, InputSpec("n", "FP32", (-1,))], ("y",), max_rows=8)
    body = raw_of(array)
    request = _request(spec, array, parameters={"binary_data_size": len(body)})
    request["inputs"].insert(0, {"name": "n", "shape": [2], "datatype": "FP32", "data": [1, 2]})
    head = json.dumps(request).encode()
    return lambda: codec.decode(head + body, str(len(head)))


def grpc_raw(spec: InputSpec, array: Array) -> Callable[[], Any]:
    tensor = {"name": "x", "datatype": spec.datatype, "shape": array.shape}
    message = ModelInferRequest(inputs=[tensor], raw_input_contents=[raw_of(array)])
    return lambda: MessageCodec("m", "1", [spec], ("y",), max_rows=8).decode(message)


def grpc_typed(spec: InputSpec, array: Array) -> Callable[[], Any]:
    field = {"INT64": "int64", "FP32": "fp32", "BOOL": "bool", "BYTES": "bytes"}[spec.datatype]
    values = [one.encode() if isinstance(one, str) else one for one in array.ravel().tolist()]
    tensor = {
        "name": "x",
        "datatype": spec.datatype,
        "shape": array.shape,
        "contents": {f"{field}_contents": values},
    }
    message = ModelInferRequest(inputs=[tensor])
    return lambda: MessageCodec("m", "1", [spec], ("y",), max_rows=8).decode(message)


WAYS = (flat_json, nested_json, row_by_row, with_another, raw, raw_again, raw_with_another, grpc_raw, grpc_typed)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", list(SPECS))
def test_every_form_is_held_to_the_limits(way: Callable[..., Callable[[], Any]], name: str) -> None:
    spec, good, at, value, said = SPECS[name]
    way(spec, good)()
    bad = good.copy()
    bad.ravel()[at] = value
    with pytest.raises(BadRequest) as caught:
        way(spec, bad)()
    assert caught.value.message == (said.replace("row 1", "row 0") if way is row_by_row else said)
    assert caught.value.hint


def test_a_length_is_held_to_in_json_and_raw() -> None:
    spec = InputSpec("x", "INT64", (-1, -1), bounds=[Bound(input="x", max_length=512, why="p has 512 rows")])
    for way in (flat_json, raw, grpc_raw, grpc_typed):
        way(spec, np.zeros((1, 512), np.int64))()
        with pytest.raises(BadRequest, match=r"dimension 1 is 513, the limit is 512 \(p has 512 rows\)"):
            way(spec, np.zeros((1, 513), np.int64))()


def test_limits_of_one_input_leave_the_others_alone() -> None:
    spec = InputSpec("n", "FP32", (-1,), bounds=[Bound(input="n", max=1)])
    codec = InferenceCodec("m", "1", [spec, InputSpec("x", "INT64", (-1, 2))], ("y",), max_rows=8)
    request = _request(InputSpec("x", "INT64", (-1, 2)), TWO, data=TWO.tolist())
    request["inputs"].append({"name": "n", "shape": [2], "datatype": "FP32", "data": [1, 1]})
    codec.decode(json.dumps(request).encode())
    request["inputs"][1]["data"] = [1, 2]
    with pytest.raises(BadRequest, match="input 'n' holds 2"):
        codec.decode(json.dumps(request).encode())


def _json(spec: InputSpec, array: Array, data: list[Any]) -> Callable[[], Any]:
    codec = InferenceCodec("m", "1", [spec], ("y",), max_rows=8)
    return lambda: codec.decode(json.dumps(_request(spec, array, data=data)).encode())


def _request(spec: InputSpec, array: Array, **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": list(array.shape), "datatype": spec.datatype, **more}]}


def _packed(spec: InputSpec, array: Array) -> tuple[bytes, str]:
    body = raw_of(array)
    head = json.dumps(_request(spec, array, parameters={"binary_data_size": len(body)})).encode()
    return head + body, str(len(head))
