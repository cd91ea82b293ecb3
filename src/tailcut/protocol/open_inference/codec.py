"""Open Inference Protocol v2, inference request and reply <-> arrays, tensors in JSON or binary. No I/O.

Source: Open Inference Protocol, REST, "Inference" (``$inference_request``, ``$inference_response``) and "Tensor Data":
flat or nested, in row-major order; Triton's binary tensor data extension
(https://github.com/triton-inference-server/server, docs/protocol/extension_binary_data.md): raw tensors follow the JSON
in its order, ``binary_data_size`` says how long each is, the header ``Inference-Header-Content-Length`` where they
begin, and ``binary_data`` of an output or ``binary_data_output`` of the request asks for raw outputs.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from math import prod
from reprlib import repr as shown
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import orjson
from msgspec import UNSET, UnsetType

from tailcut.common.json_values import INFINITY, MINUS_INFINITY, UNREADABLE
from tailcut.common.json_values import decode as decoded
from tailcut.common.tensors import Array, Arrays, datatype_of
from tailcut.common.texts import MISSING_TEXT, no_unicode, texts_of
from tailcut.common.validation import InputSpec, all_finite, check_names, check_rows, limits_of, not_finite
from tailcut.errors import BadRequest
from tailcut.pipeline.value_conversion import converted
from tailcut.protocol.http import unread
from tailcut.protocol.open_inference.binary import (
    BINARY_HEADER,
    BinaryReply,
    RawReader,
    RawRequest,
    RawWriter,
    array_of,
    output_datatype,
    raw_of,
)
from tailcut.protocol.open_inference.parameters import (
    Parameters,
    flag,
    priority,
    refuse_sequences,
    timeout_ns,
    wants_raw,
)

_LONGEST_LENGTH = 20

Value = TypeVar("Value", float, int)


class FlatTensor(msgspec.Struct, Generic[Value]):
    """The common case, decoded straight to floats, or to ints for inputs of whole numbers."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Value]
    parameters: Parameters | UnsetType = UNSET


class RowsTensor(msgspec.Struct, Generic[Value]):
    """The same, nested once: a list per row."""

    name: str
    shape: list[int]
    datatype: str
    data: list[list[Value]]
    parameters: Parameters | UnsetType = UNSET


class AnyTensor(msgspec.Struct):
    """Any other: nested deeper, of several datatypes, or without data because that is binary."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any] | UnsetType = UNSET
    parameters: Parameters | UnsetType = UNSET


Tensor = FlatTensor[Any] | RowsTensor[Any] | AnyTensor


class _Output(msgspec.Struct):
    name: str
    parameters: Parameters | UnsetType = UNSET


_Tensor = TypeVar("_Tensor")


class _Request(msgspec.Struct, Generic[_Tensor]):
    inputs: list[_Tensor]
    id: str | UnsetType = UNSET
    parameters: Parameters | UnsetType = UNSET
    outputs: list[_Output] | UnsetType = UNSET


class Inference(msgspec.Struct):
    """A checked request.

    Attributes:
        inputs: every input of the model by name, first dimension ``rows``.
        outputs: names wanted, in the client's order; the model's own tuple where it wants all.
        timeout_ns: the client's ``timeout`` parameter (microseconds on the wire), 0 where it sent none.
        binary: names of the outputs that are wanted raw.
        priority: the client's ``priority`` parameter: 1 runs first; 0 where it sent none.
        wants_final: whether a stream is to end with a response without outputs.
    """

    inputs: dict[str, Any]
    rows: int
    outputs: tuple[str, ...]
    id: str | UnsetType
    timeout_ns: int
    binary: Sequence[str] = ()
    priority: int = 0
    wants_final: bool = False


class ModelCodec:
    """What every protocol checks of requests to one model, and of its replies.

    Args:
        specs: what each input must be.
        outputs: the model's outputs in the manifest's order.
        max_rows: a request of more is refused before its data is looked at.
        nan_outputs: names of the outputs in which NaN and infinity are answers.
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
        self._model = model
        self._version = version
        self._specs = {spec.name: spec for spec in specs}
        self._names = list(self._specs)
        self._limits = limits_of(specs)
        self._outputs = outputs
        self._max_rows = max_rows
        self._nan_outputs = frozenset(nan_outputs)

    def finite(self, name: str, array: Array) -> Array:
        """Return an output.

        Raises:
            InferenceError: it holds NaN or infinity and is not one of ``nan_outputs``.
        """
        if array.dtype.kind == "f" and name not in self._nan_outputs and not all_finite(array):
            raise not_finite(name)
        return array

    def _check_names(self, names: list[str]) -> None:
        if names != self._names:
            check_names(names, self._names, "input")

    def _check_limits(self, inputs: Arrays) -> None:
        for name, limits in self._limits:
            limits.check(inputs[name])

    def _many(self, inputs: Arrays) -> tuple[Arrays, int]:
        """Return the inputs in the model's order, and their rows."""
        rows = len(next(iter(inputs.values())))
        for array in inputs.values():
            if len(array) != rows:
                check_rows({name: len(one) for name, one in inputs.items()})
        return {name: inputs[name] for name in self._names}, rows

    def _wanted(self, names: list[str]) -> tuple[str, ...]:
        for name in names:
            if name not in self._outputs:
                raise BadRequest(
                    f"output {shown(name)} is unknown", hint=f"this model's outputs: {', '.join(self._outputs)}"
                )
        if len(set(names)) != len(names):
            raise BadRequest(f"outputs are requested twice: {shown(names)}", hint="name each output once")
        return self._outputs if tuple(names) == self._outputs else tuple(names)


_Known = tuple[object, bytes, "Way", bool, bool]
"""An output's datatype and shape, its JSON as far as its values, what writes those, whether it is a float, and whether
all of its values must be finite."""


class InferenceCodec(ModelCodec):
    """Reads requests and writes replies over HTTP for one model; arguments as ``ModelCodec``.

    All but the values of an output in JSON is the same for the same shape, so the last is remembered.
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
        super().__init__(model, version, specs, outputs, max_rows=max_rows, nan_outputs=nan_outputs)
        self._only = specs[0] if len(specs) == 1 else None
        self._typed = _typed(specs)
        lone = self._only is not None and self._only.is_float and self._only.fixed
        self._lone = LoneRow(specs[0]) if lone else None
        self._raw_reader = RawReader(specs[0], max_rows) if len(specs) == 1 else None
        self._raw_writer = RawWriter(model, version)
        self._length: tuple[str | None, int] = None, 0
        self._known_raw: tuple[RawRequest, tuple[str, ...], Sequence[str]] | None = None
        self._any = msgspec.json.Decoder(_Request[AnyTensor])
        self._start = _encode({"model_name": model, "model_version": version}).removesuffix(b"}")
        self._known: dict[str, _Known] = {}

    def decode(self, body: bytes, header: str | None = None) -> Inference:
        """Read and check one request.

        Args:
            header: ``Inference-Header-Content-Length``, the bytes of JSON before raw tensors; None where all is JSON.

        Raises:
            BadRequest: malformed, or an input has the wrong name, datatype, shape or value.
            TooLarge: more than ``max_rows`` rows.
        """
        request: _Request[Any]
        if header is not None:
            at = self._json_bytes(header, len(body))
            if self._raw_reader is not None and (found := self._raw_reader.read(body, at)) is not None:
                return self._read_raw(*found)
            request, inputs, rows = self._decode_binary(body, at)
            return self._checked(request, inputs, rows)
        for decoder in self._typed:
            try:
                request = decoder.decode(body)
                break
            except msgspec.ValidationError:
                continue
            except UNREADABLE:
                request = self._decode_any(body)
                break
        else:
            request = self._decode_any(body)
        tensors = request.inputs
        only = self._only
        if only is not None and len(tensors) == 1 and tensors[0].name == only.name:
            array = self._lone.read(tensors[0]) if self._lone is not None else None
            if array is None:
                array = array_of_json(tensors[0], only, self._max_rows)
            inputs, rows = {only.name: array}, array.shape[0]
        else:
            self._check_names([tensor.name for tensor in tensors])
            specs, max_rows = self._specs, self._max_rows
            inputs, rows = self._many(
                {tensor.name: array_of_json(tensor, specs[tensor.name], max_rows) for tensor in tensors}
            )
        return self._checked(request, inputs, rows)

    def encode(self, inference: Inference, outputs: Arrays) -> bytes | BinaryReply:
        """Write the reply; data flat, in row-major order, or raw where the client wants it so.

        Raises:
            InferenceError: an output holds NaN or infinity and must not, or bytes that are no text, or has a datatype
                that the protocol has not.
        """
        binary = inference.binary
        if not binary:
            start = self._start
            if inference.id is not UNSET:
                start = b"".join((start, b',"id":', _encode(inference.id)))
            names = inference.outputs
            if len(names) == 1:
                return b"".join((start, b',"outputs":[', *self._tensor(names[0], outputs[names[0]]), b"}]}"))
            parts = [start, b',"outputs":[']
            for name in names:
                parts += self._tensor(name, outputs[name])
                parts.append(b"},")
            parts[-1] = b"}]}"
            return b"".join(parts)
        if binary is inference.outputs and inference.id is UNSET:
            return self._raw_writer.write(
                binary, outputs, [raw_of(self.finite(name, outputs[name])) for name in binary]
            )
        reply: dict[str, Any] = {"model_name": self._model, "model_version": self._version}
        if inference.id is not UNSET:
            reply["id"] = inference.id
        raw: list[bytes] = []
        described = []
        for name in inference.outputs:
            array = outputs[name]
            tensor: dict[str, Any] = {"name": name, "datatype": output_datatype(array), "shape": array.shape}
            if name in binary:
                raw.append(raw_of(self.finite(name, array)))
                tensor["parameters"] = {"binary_data_size": len(raw[-1])}
            else:
                tensor["data"] = msgspec.Raw(self.values(name, array))
            described.append(tensor)
        reply["outputs"] = described
        return BinaryReply(_encode(reply), raw)

    def check(self, arrays: Mapping[str, Array], outputs: Sequence[str] | None = None) -> Inference:
        """Check the arrays of a caller in this process; raises as ``decode``.

        Args:
            outputs: names wanted; None for all.
        """
        self._check_names(list(arrays))
        inputs, rows = self._many(
            {name: checked_array(arrays[name], spec, self._max_rows) for name, spec in self._specs.items()}
        )
        self._check_limits(inputs)
        return Inference(inputs, rows, self._outputs if outputs is None else self._wanted(list(outputs)), UNSET, 0)

    def values(self, name: str, array: Array) -> bytes:
        """Write an output's values flat, in row-major order; NaN as null, infinity as 1e999, bytes as text.

        Raises:
            InferenceError: see ``encode``.
        """
        return self._tensor(name, array)[1]

    # -- Inside ------------------------------------------------------------------------------------------------------

    def _tensor(self, name: str, array: Array) -> tuple[bytes, bytes]:
        """Return an output's JSON as far as its values, and those."""
        what = array.dtype, array.shape
        known = self._known.get(name)
        if known is None or known[0] != what:
            tensor = {"name": name, "datatype": output_datatype(array), "shape": array.shape}
            described = _encode(tensor).removesuffix(b"}") + b',"data":'
            way, is_finite = way_of(array.dtype, array.size), name not in self._nan_outputs
            known = self._known[name] = what, described, way, array.dtype.kind == "f", is_finite
        _, described, way, is_float, is_finite = known
        values = way(array)
        if is_float and NULL in values:
            if is_finite:
                raise not_finite(name)
            values = with_infinity(values, array)
        return described, values

    def _checked(self, request: _Request[Any], inputs: Arrays, rows: int) -> Inference:
        """Put a request together whose inputs are read."""
        if self._limits:
            self._check_limits(inputs)
        outputs = self._outputs
        parameters = request.parameters
        asked = request.outputs
        if asked is not UNSET and asked:
            outputs = self._wanted([output.name for output in asked])
        if parameters is UNSET:
            if asked is UNSET or not asked:
                return Inference(inputs, rows, outputs, request.id, 0)
            parameters = {}
        asked_ns = timeout_ns(parameters)
        refuse_sequences(parameters)
        first = priority(parameters)
        raw = flag(parameters, "binary_data_output", default=False)
        if asked is UNSET or not asked:
            return Inference(inputs, rows, outputs, request.id, asked_ns, outputs if raw else (), first)
        binary = [output.name for output in asked if wants_raw(output.name, output.parameters, default=raw)]
        return Inference(inputs, rows, outputs, request.id, asked_ns, binary, first)

    def _read_raw(self, request: RawRequest, array: Array) -> Inference:
        """Put the common binary request together."""
        assert self._only is not None
        if self._only.limits is not None:
            self._only.limits.check(array)
        if self._known_raw is None or self._known_raw[0] is not request:
            outputs = self._wanted([output.name for output in request.outputs]) if request.outputs else self._outputs
            binary: Sequence[str] = request.raw_names
            if not request.outputs:
                binary = outputs if request.parameters.binary_data_output else ()
            self._known_raw = request, outputs, outputs if len(binary) == len(outputs) else binary
        _, outputs, binary = self._known_raw
        timeout_ns = request.parameters.timeout * 1000
        return Inference({self._only.name: array}, array.shape[0], outputs, request.id, timeout_ns, binary)

    def _json_bytes(self, header: str, size: int) -> int:
        """Return where raw tensors begin in a body of ``size`` bytes; what the last client said, most say again."""
        text, length = self._length
        if header != text:
            is_number = header.isascii() and header.isdecimal() and len(header) <= _LONGEST_LENGTH
            length = int(header) if is_number else size + 1
        if length > size:
            raise BadRequest(
                f"header {BINARY_HEADER} is {shown(header)}, the body has {size} bytes",
                hint="send the number of JSON bytes at the beginning of the body",
            )
        self._length = header, length
        return length

    def _decode_binary(self, body: bytes, at: int) -> tuple[_Request[AnyTensor], Arrays, int]:
        request = self._decode_any(memoryview(body)[:at])
        self._check_names([tensor.name for tensor in request.inputs])
        inputs = {}
        for tensor in request.inputs:
            spec = self._specs[tensor.name]
            size = _binary_size(tensor)
            if size < 0:
                inputs[tensor.name] = array_of_json(tensor, spec, self._max_rows)
                continue
            if size > len(body) - at:
                raise BadRequest(
                    f"input {tensor.name!r} has binary_data_size {size}, but {len(body) - at} bytes of the body remain",
                    hint="send raw tensors after the JSON, in the order of the inputs",
                )
            check_datatype(tensor.name, tensor.datatype, spec)
            inputs[tensor.name] = array_of(memoryview(body)[at : at + size], spec, tensor.shape, self._max_rows)
            at += size
        if at != len(body):
            raise BadRequest(
                f"the body has {len(body)} bytes, its raw tensors end at byte {at}",
                hint=f"{BINARY_HEADER} and all binary_data_size must add up to the length of the body",
            )
        return request, *self._many(inputs)

    def _decode_any(self, body: bytes | memoryview) -> _Request[AnyTensor]:
        try:
            return decoded(self._any, body)
        except UNREADABLE as error:
            said = f"the body is not an inference request: {unread(error, body)}"
            raise BadRequest(said, hint="see /openapi.json") from error


def _typed(specs: Sequence[InputSpec]) -> tuple[msgspec.json.Decoder[Any], ...]:
    """Return what decodes the common requests straight to the values' type, where all inputs have the same."""
    if all(spec.is_float for spec in specs):
        return msgspec.json.Decoder(_Request[FlatTensor[float]]), msgspec.json.Decoder(_Request[RowsTensor[float]])
    if all("INT" in spec.datatype for spec in specs):
        return msgspec.json.Decoder(_Request[FlatTensor[int]]), msgspec.json.Decoder(_Request[RowsTensor[int]])
    return ()


def checked_array(array: Array, spec: InputSpec, max_rows: int) -> Array:
    """Return an array as the model takes it: contiguous and in this machine's byte order, else the caller's own.

    Raises:
        BadRequest: it is no array, or its datatype, shape or a value is wrong.
        TooLarge: more than ``max_rows`` rows.
    """
    if not isinstance(array, np.ndarray):
        raise BadRequest(
            f"input {spec.name!r} is a {type(array).__name__}, expected an array",
            hint="pass an array, for example np.asarray(rows, dtype=np.float32)",
        )
    shape = list(array.shape)
    check_datatype(spec.name, datatype_of(array) or str(array.dtype), spec)
    spec.check_shape(shape)
    spec.check_size(shape, max_rows)
    if spec.datatype == "BYTES":
        return converted(array, spec)
    found: Array = np.ascontiguousarray(array, spec.dtype)
    spec.check_values(found)
    return found


# -- JSON requests -----------------------------------------------------------------------------------------------------


def _binary_size(tensor: AnyTensor) -> int:
    """Return the bytes of a tensor that is sent raw; -1 where it is in JSON."""
    size = tensor.parameters.get("binary_data_size") if tensor.parameters is not UNSET else None
    if size is None:
        return -1
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise BadRequest(
            f"parameter binary_data_size of input {tensor.name!r} is {shown(size)}, expected a number of bytes",
            hint="send the tensor's length in bytes",
        )
    if tensor.data is not UNSET:
        raise BadRequest(f"input {tensor.name!r} has both data and binary_data_size", hint="send one of the two")
    return size


_PACKED = {
    **{"FP16": "e", "FP32": "f", "FP64": "d", "BOOL": "?"},
    **{"INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q"},
    **{"UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q"},
}
_FEW_WHOLE = 48
"""Up to here NumPy reads a list of whole numbers faster than they are packed."""

_UNFIT = (OverflowError, struct.error, ValueError)


def array_of_json(tensor: Tensor, spec: InputSpec, max_rows: int) -> Array:
    """Read and check one input.

    Raises:
        BadRequest: it has no data, or its datatype, shape or a value is wrong.
        TooLarge: more than ``max_rows`` rows.
    """
    data: list[Any] | UnsetType = tensor.data
    shape = tensor.shape
    if data is UNSET:
        raise BadRequest(
            f"input {tensor.name!r} has no data",
            hint="send data as a JSON array, or raw with binary_data_size and Inference-Header-Content-Length",
        )
    check_datatype(tensor.name, tensor.datatype, spec)
    spec.check_shape(shape)
    spec.check_size(shape, max_rows)
    kind = type(tensor)
    if kind is not FlatTensor:
        is_typed = kind is RowsTensor and len(shape) == 2  # then it holds numbers only
        data = _unnested(tensor.name, data, shape) if is_typed else flat(tensor.name, data, shape, spec)
    if len(data) != (shape[0] * spec.tail_size if spec.fixed else prod(shape)):
        raise BadRequest(
            f"input {tensor.name!r} has {len(data)} values for shape {shape}, expected {prod(shape)}",
            hint="make data and shape agree, in row-major order",
        )
    try:
        array = pack(data, spec).reshape(shape)
    except _UNFIT as error:
        raise BadRequest(
            f"input {tensor.name!r} holds a value that {spec.datatype} cannot hold: {_unfit(data, spec)}",
            hint=f"values must fit {spec.datatype}",
        ) from error
    if kind is AnyTensor:
        spec.check_values(array)
    return array


class LoneRow:
    """Reads the most common tensor at once: one row of floats of a fixed shape, flat, with nothing else said.

    Args:
        spec: of the input; a float of fixed shape.
    """

    def __init__(self, spec: InputSpec) -> None:
        self._spec = spec
        self._shape = [1, *spec.tail]
        self._pack = struct.Struct(f"<{spec.tail_size}{_PACKED[spec.datatype]}").pack

    def read(self, tensor: Tensor) -> Array | None:
        """Return its array; None where it is another kind, or wrong, which ``array_of_json`` tells."""
        spec = self._spec
        if tensor.shape != self._shape or tensor.datatype != spec.datatype or not isinstance(tensor, FlatTensor):
            return None
        try:
            packed = self._pack(*tensor.data)
        except _UNFIT:
            return None
        array: Array = np.ndarray(self._shape, spec.dtype, bytearray(packed))
        return array


def check_datatype(name: str, datatype: str, spec: InputSpec) -> None:
    """Refuse a datatype that is not the input's."""
    if datatype != spec.datatype:
        raise BadRequest(
            f"input {name!r} has datatype {shown(datatype)}, expected {spec.datatype}", hint=f"send {spec.datatype}"
        )


def pack(data: list[Any], spec: InputSpec) -> Array:
    """Turn flat JSON values into an array.

    Floats are packed, which refuses what the datatype cannot hold (NumPy would make it infinite) and is faster; so are
    many whole numbers.
    """
    if spec.is_float or (len(data) > _FEW_WHOLE and spec.datatype in _PACKED):
        packed = bytearray(struct.pack(f"<{len(data)}{_PACKED[spec.datatype]}", *data))
        return np.frombuffer(packed, spec.dtype)
    return np.array(data, dtype=spec.dtype)


def _unfit(data: list[Any], spec: InputSpec) -> str:
    """Return the first of some values that the datatype cannot hold, shortened."""
    while len(data) > 1:
        half = data[: len(data) // 2]
        try:
            pack(half, spec)
        except _UNFIT:
            data = half
        else:
            data = data[len(half) :]
    return shown(data[0])


def flat(name: str, data: list[Any], shape: Sequence[int], spec: InputSpec) -> list[Any]:
    """Flatten nested data, checking that it nests as the shape says, and refuse values of another kind."""
    data = _unnested(name, data, shape)
    kinds = set(map(type, data))
    allowed: set[type] = {bool}
    if spec.is_float:
        allowed = {int, float, type(None)}
    elif spec.datatype == "BYTES":
        allowed = {str, type(None)} if spec.allow_nan else {str}
    elif spec.datatype != "BOOL":
        allowed = {int}
    if kinds - allowed:
        wrong = next(value for value in data if type(value) not in allowed)
        raise BadRequest(
            f"input {name!r} holds {_said(wrong)}, which is no {spec.datatype}",
            hint=f"send {' or '.join(sorted(kind.__name__ for kind in allowed - {type(None)}))} values",
        )
    if type(None) not in kinds:
        return data
    missing = MISSING_TEXT if spec.datatype == "BYTES" else math.nan
    return [missing if value is None else value for value in data]


def _said(value: Any) -> str:
    """Return a value of JSON for an error."""
    if value is None:
        return "null"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinity"
    return f"{shown(value)} ({type(value).__name__})"


def _unnested(name: str, data: list[Any], shape: Sequence[int]) -> list[Any]:
    """Flatten nested data; flat data is returned as it is."""
    if not data or not isinstance(data[0], list):
        return data
    wanted = 1
    for size in shape[:-1]:
        wanted *= size
        if len(data) != wanted:
            raise BadRequest(f"input {name!r}: nested data does not have shape {shape}", hint="see the shape")
        if not all(isinstance(part, list) for part in data):
            raise BadRequest(
                f"input {name!r}: data is nested unevenly", hint="nest data like the shape, or send it flat"
            )
        if len({len(part) for part in data}) > 1:
            raise BadRequest(f"input {name!r}: data is ragged", hint="every row must have the same length")
        data = list(chain.from_iterable(data))
    return data


# -- JSON replies ------------------------------------------------------------------------------------------------------


# A number is written as the shortest decimal that reads back as itself in its own datatype (FP16 as FP32), so that
# FP32 0.1 is 0.1 and not the 0.10000000149011612 which is its neighbour among doubles: half the bytes, and the same
# text for one row as for many. Clients that read doubles and cast them get the same bits. NaN and infinity are those
# of ``json_values``.

Way = Callable[[Array], bytes]
"""Writes an array of any shape, contiguous or not, as a flat list in row-major order; NaN and infinity are null."""

NULL = ord("n")
"""In the JSON of floats only where one is null: nothing else has this letter."""

_FEW = 12
"""Up to here a list is written faster than orjson has looked at an array."""

_TWICE_ROUNDED = b"7.038531e-26"
_ONCE_ROUNDED = b"7.038530691851209e-26"
"""The one FP32 magnitude whose shortest decimal, read as a double and cast, is its neighbour: all were tried."""

_WORDS = {math.inf: INFINITY, -math.inf: MINUS_INFINITY}
_E = ord("e")
_NUMPY = orjson.OPT_SERIALIZE_NUMPY
_encode = msgspec.json.Encoder().encode
_dumps = orjson.dumps


def way_of(dtype: np.dtype[np.generic], size: int) -> Way:
    """Return what writes arrays of this datatype and size fastest.

    Args:
        dtype: of a number, a bool, or of text and bytes, which is written as text.
    """
    if dtype.hasobject:
        return _texts
    if dtype.char == "f":
        return _singles
    # A list's floats are doubles, of which FP16 would be written longer.
    return _listed if size <= _FEW and dtype.char != "e" else _numbers


def with_infinity(values: bytes, array: Array) -> bytes:
    """Return the JSON of floats with infinity in place of those nulls that stand for it.

    Args:
        values: what a ``Way`` wrote of ``array``.
    """
    missing = array.ravel()[~np.isfinite(array.ravel())]
    if np.isnan(missing).all():
        return values
    parts = values.split(b"null")
    words = [_WORDS.get(value, b"null") for value in missing.tolist()]
    return b"".join([part for pair in zip(parts, words, strict=False) for part in pair]) + parts[-1]


def _texts(array: Array) -> bytes:
    try:
        return _encode(texts_of(array))
    except UnicodeEncodeError as error:
        raise no_unicode(error) from error


def _listed(array: Array) -> bytes:
    return _encode(array.ravel().tolist())


def _numbers(array: Array) -> bytes:
    try:
        return _dumps(array.ravel(), None, _NUMPY)
    except TypeError:  # of another byte order, or of a subclass
        return _dumps(np.ascontiguousarray(array, array.dtype.newbyteorder("=")).ravel(), None, _NUMPY)


def _singles(array: Array) -> bytes:
    text = _numbers(array)
    # Looked for only beside an exponent, which few texts have: looking for one byte is much faster.
    return text.replace(_TWICE_ROUNDED, _ONCE_ROUNDED) if _E in text else text
