"""Open Inference Protocol v2, inference request and reply in JSON <-> arrays. No I/O.

Source: Open Inference Protocol, REST, "Inference" (``$inference_request``, ``$inference_response``); tensor data may
be nested or flat, in row-major order.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Collection, Sequence
from math import isfinite, prod
from reprlib import repr as shown
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from tailcut.core.tensors import DATATYPE_OF, Array, Arrays
from tailcut.core.validation import InputSpec, all_finite, check_names, check_rows, not_finite
from tailcut.errors import BadRequest, TooLarge
from tailcut.server.http import clipped

_Parameters = dict[str, Any]

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are no JSON of the wanted form: not UTF-8 and nested too deeply included."""

_LARGEST_SIZE = 2**31 - 1
_PACKED = {"FP16": "e", "FP32": "f", "FP64": "d"}
_ORDER = "<" if sys.byteorder == "little" else ">"


class _Output(msgspec.Struct):
    name: str
    parameters: _Parameters | UnsetType = UNSET


class _Floats(msgspec.Struct):
    """The common case, decoded straight to floats: flat data of floating point inputs."""

    name: str
    shape: list[int]
    datatype: Literal["FP32", "FP64", "FP16"]
    data: list[float]
    parameters: _Parameters | UnsetType = UNSET


class _Any(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    data: list[Any] | UnsetType = UNSET
    parameters: _Parameters | UnsetType = UNSET


class _FloatRequest(msgspec.Struct):
    inputs: list[_Floats]
    id: str | UnsetType = UNSET
    parameters: _Parameters | UnsetType = UNSET
    outputs: list[_Output] | UnsetType = UNSET


class _AnyRequest(msgspec.Struct):
    inputs: list[_Any]
    id: str | UnsetType = UNSET
    parameters: _Parameters | UnsetType = UNSET
    outputs: list[_Output] | UnsetType = UNSET


class Inference(msgspec.Struct):
    """A checked request.

    Attributes:
        inputs: every input of the model by name, first dimension ``rows``.
        outputs: names wanted, in the client's order; the model's own tuple where it wants all.
        timeout_ns: the client's ``timeout`` parameter (microseconds on the wire), 0 where it sent none.
    """

    inputs: dict[str, Any]
    rows: int
    outputs: tuple[str, ...]
    id: str | UnsetType
    timeout_ns: int


class InferenceCodec:
    """Reads requests and writes replies for one model.

    Args:
        specs: what each input must be.
        outputs: the model's outputs in the manifest's order.
        max_rows: a request of more is refused before its data is looked at.
        nan_outputs: names of the outputs in which NaN and infinity are answers; both are null in JSON.
    """

    def __init__(
        self,
        model: str,
        version: str,
        specs: Sequence[InputSpec],
        outputs: tuple[str, ...],
        *,
        max_rows: int,
        nan_outputs: Collection[str] = (),
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._names = [spec.name for spec in specs]
        self._outputs = outputs
        self._max_rows = max_rows
        self._nan_outputs = frozenset(nan_outputs)
        self._only = specs[0] if len(specs) == 1 else None
        self._floats = msgspec.json.Decoder(_FloatRequest) if all(spec.is_float for spec in specs) else None
        self._any = msgspec.json.Decoder(_AnyRequest)
        self._encoder = msgspec.json.Encoder()
        self._model = model
        self._version = version

    def decode(self, body: bytes) -> Inference:
        """Read and check one request.

        Raises:
            BadRequest: malformed, or an input has the wrong name, datatype, shape or value.
            TooLarge: more than ``max_rows`` rows.
        """
        request: _FloatRequest | _AnyRequest
        if self._floats is not None:
            try:
                request = self._floats.decode(body)
            except msgspec.ValidationError:
                request = self._decode_any(body)
            except UNREADABLE as error:
                raise _malformed(error) from error
        else:
            request = self._decode_any(body)
        tensors = request.inputs
        only = self._only
        if only is not None and len(tensors) == 1 and tensors[0].name == only.name:
            array = _array(tensors[0], only, self._max_rows)
            inputs, rows = {only.name: array}, array.shape[0]
        else:
            inputs, rows = self._many(tensors)
        outputs = self._outputs
        if request.outputs is not UNSET and request.outputs:
            outputs = self._wanted([output.name for output in request.outputs])
        timeout_ns = 0
        if request.parameters is not UNSET:
            timeout_ns = _timeout_ns(request.parameters)
        return Inference(inputs, rows, outputs, request.id, timeout_ns)

    def encode(self, inference: Inference, outputs: Arrays) -> bytes:
        """Write the reply; data flat, in row-major order.

        Raises:
            InferenceError: an output holds NaN or infinity and is not one of ``nan_outputs``.
        """
        reply: dict[str, Any] = {"model_name": self._model, "model_version": self._version}
        if inference.id is not UNSET:
            reply["id"] = inference.id
        reply["outputs"] = [
            {
                "name": name,
                "datatype": DATATYPE_OF[outputs[name].dtype],
                "shape": outputs[name].shape,
                "data": self._values(name, outputs[name]),
            }
            for name in inference.outputs
        ]
        return self._encoder.encode(reply)

    def _values(self, name: str, array: Array) -> list[Any]:
        """Return the values flat, in row-major order; bytes as text, which is what JSON has."""
        values: list[Any] = array.ravel().tolist()
        if array.dtype.kind == "f":
            # NaN and infinity stay in a sum; so may the overflow of large values, and then the array tells.
            if not isfinite(sum(values)) and name not in self._nan_outputs and not all_finite(array):
                raise not_finite(name)
        elif array.dtype.hasobject:
            return [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in values]
        return values

    def _decode_any(self, body: bytes) -> _AnyRequest:
        try:
            return self._any.decode(body)
        except UNREADABLE as error:
            raise _malformed(error) from error

    def _many(self, tensors: Sequence[_Floats | _Any]) -> tuple[Arrays, int]:
        check_names([tensor.name for tensor in tensors], self._names, "input")
        inputs = {tensor.name: _array(tensor, self._specs[tensor.name], self._max_rows) for tensor in tensors}
        rows = check_rows({name: len(array) for name, array in inputs.items()})
        return {name: inputs[name] for name in self._names}, rows

    def _wanted(self, names: list[str]) -> tuple[str, ...]:
        for name in names:
            if name not in self._outputs:
                raise BadRequest(
                    f"output {shown(name)} is unknown", hint=f"this model's outputs: {', '.join(self._outputs)}"
                )
        if len(set(names)) != len(names):
            raise BadRequest(f"outputs are asked for twice: {shown(names)}", hint="name each output once")
        return self._outputs if tuple(names) == self._outputs else tuple(names)


def _array(tensor: _Floats | _Any, spec: InputSpec, max_rows: int) -> Array:
    data = tensor.data
    shape = tensor.shape
    if data is UNSET:
        raise BadRequest(f"input {tensor.name!r} has no data", hint="send data as a JSON array")
    if tensor.datatype != spec.datatype:
        raise BadRequest(
            f"input {tensor.name!r} has datatype {shown(tensor.datatype)}, expected {spec.datatype}",
            hint=f"send {spec.datatype}",
        )
    spec.check_shape(shape)
    if max(shape) > _LARGEST_SIZE:
        raise BadRequest(
            f"input {tensor.name!r} has shape {shown(shape)}, the limit per dimension is {_LARGEST_SIZE}",
            hint="send as many values as the shape holds",
        )
    if shape[0] > max_rows:
        raise TooLarge(
            f"input {tensor.name!r} has {shape[0]} rows, the limit is {max_rows}",
            hint="send fewer rows at once, or raise batching.max_queue_rows",
        )
    if isinstance(tensor, _Any):
        data = _flat(tensor.name, data, shape, spec)
    if len(data) != (shape[0] * spec.tail_size if spec.fixed else prod(shape)):
        raise BadRequest(
            f"input {tensor.name!r} has {len(data)} values for shape {shape}, expected {prod(shape)}",
            hint="send as many values as the shape holds, in row-major order",
        )
    try:
        return _pack(data, spec).reshape(shape)
    except (OverflowError, struct.error, ValueError) as error:
        raise BadRequest(
            f"input {tensor.name!r} holds a value that {spec.datatype} cannot hold: {error}",
            hint=f"values must fit {spec.datatype}",
        ) from error


def _pack(data: list[Any], spec: InputSpec) -> Array:
    """Turn flat JSON values into an array.

    Floats are packed, which refuses what the datatype cannot hold (NumPy would make it infinite) and is faster. JSON
    has no NaN and no infinity, so there is nothing left to check in the values.
    """
    if spec.is_float:
        packed = bytearray(struct.pack(f"{_ORDER}{len(data)}{_PACKED[spec.datatype]}", *data))
        return np.frombuffer(packed, spec.dtype)
    return np.array(data, dtype=spec.dtype)


def _flat(name: str, data: list[Any], shape: Sequence[int], spec: InputSpec) -> list[Any]:
    """Flatten nested data, checking that it nests as the shape says, and refuse values of another kind."""
    if data and isinstance(data[0], list):
        wanted = 1
        for size in shape[:-1]:
            wanted *= size
            if len(data) != wanted:
                raise BadRequest(f"input {name!r}: nested data does not have shape {shape}", hint="see the shape")
            if not all(isinstance(part, list) for part in data):
                raise BadRequest(
                    f"input {name!r}: data is nested unevenly", hint="nest as the shape says, or send flat"
                )
            if len({len(part) for part in data}) > 1:
                raise BadRequest(f"input {name!r}: data is ragged", hint="every row must have the same length")
            data = [value for part in data for value in part]
    kinds = set(map(type, data))
    allowed: set[type] = {bool}
    if spec.is_float:
        allowed = {int, float}
    elif spec.datatype == "BYTES":
        allowed = {str}
    elif spec.datatype != "BOOL":
        allowed = {int}
    if kinds - allowed:
        wrong = next(value for value in data if type(value) not in allowed)
        raise BadRequest(
            f"input {name!r} holds {shown(wrong)} ({type(wrong).__name__}), which is no {spec.datatype}",
            hint=f"send {' or '.join(sorted(kind.__name__ for kind in allowed))} values",
        )
    return data


def _timeout_ns(parameters: _Parameters) -> int:
    timeout = parameters.get("timeout", 0)
    if isinstance(timeout, bool) or not isinstance(timeout, int) or timeout < 0:
        raise BadRequest(
            f"parameter timeout is {shown(timeout)}, expected a whole number of microseconds, at least 0",
            hint="0 or nothing means the server's own timeout",
        )
    return timeout * 1000


def _malformed(error: Exception) -> BadRequest:
    return BadRequest(f"the body is no inference request: {clipped(error)}", hint="see /openapi.json")
