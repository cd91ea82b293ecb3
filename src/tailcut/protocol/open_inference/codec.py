"""Open Inference Protocol v2, inference request and reply <-> arrays, tensors in JSON or binary. No I/O.

Source: Open Inference Protocol, REST, "Inference" (``$inference_request``, ``$inference_response``); Triton's binary
tensor data extension (https://github.com/triton-inference-server/server, docs/protocol/extension_binary_data.md): raw
tensors follow the JSON in its order, ``binary_data_size`` says how long each is, the header
``Inference-Header-Content-Length`` where they begin, and ``binary_data`` of an output or ``binary_data_output`` of the
request asks for raw outputs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from reprlib import repr as shown
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import orjson
from msgspec import UNSET, UnsetType

from tailcut.common.json_values import INFINITY, MINUS_INFINITY, UNREADABLE
from tailcut.common.json_values import decode as decoded
from tailcut.common.tensors import DATATYPE_OF, Array, Arrays
from tailcut.common.texts import no_unicode, texts_of
from tailcut.common.validation import InputSpec, all_finite, check_names, check_rows, limits_of, not_finite
from tailcut.errors import BadRequest
from tailcut.pipeline.value_conversion import converted
from tailcut.protocol.http import Headers, unread
from tailcut.protocol.open_inference.binary import array_of, output_datatype, raw_of
from tailcut.protocol.open_inference.json_tensors import (
    AnyTensor,
    FlatTensor,
    LoneRow,
    Parameters,
    RowsTensor,
    array_of_json,
    check_datatype,
)
from tailcut.protocol.open_inference.parameters import (
    binary_size,
    flag,
    priority,
    refuse_sequences,
    timeout_ns,
    wants_raw,
)

__all__ = ["BINARY_HEADER", "UNREADABLE", "BinaryReply", "Inference", "InferenceCodec"]


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
    """

    inputs: dict[str, Any]
    rows: int
    outputs: tuple[str, ...]
    id: str | UnsetType
    timeout_ns: int
    binary: Sequence[str] = ()
    priority: int = 0


class InferenceCodec:
    """Reads requests and writes replies for one model.

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
        self._specs = {spec.name: spec for spec in specs}
        self._all = tuple(specs)
        self._names = [spec.name for spec in specs]
        self._limits = limits_of(specs)
        self._outputs = outputs
        self._max_rows = max_rows
        self._nan_outputs = frozenset(nan_outputs)
        self._only = specs[0] if len(specs) == 1 else None
        self._typed = _typed(specs)
        lone = self._only is not None and self._only.is_float and self._only.fixed
        self._lone = LoneRow(specs[0]) if lone else None
        self._json_writer = JsonWriter(model, version, self._nan_outputs)
        self._raw_reader = RawReader(specs[0], max_rows) if len(specs) == 1 else None
        self._raw_writer = RawWriter(model, version)
        self._json_length = JsonLength()
        self._known: tuple[RawRequest, tuple[str, ...], Sequence[str]] | None = None
        self._any = msgspec.json.Decoder(_Request[AnyTensor])
        self._encode = msgspec.json.Encoder().encode
        self._model = model
        self._version = version

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
            at = self._json_length.read(header, len(body))
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
            names = [tensor.name for tensor in tensors]
            if names != self._names:
                check_names(names, self._names, "input")
            specs, max_rows = self._specs, self._max_rows
            inputs, rows = self._many(
                {tensor.name: array_of_json(tensor, specs[tensor.name], max_rows) for tensor in tensors}
            )
        return self._checked(request, inputs, rows)

    def encode(self, inference: Inference, outputs: Arrays) -> bytes | BinaryReply:
        """Write the reply; data flat, in row-major order, or raw where the client wants it so.

        Raises:
            InferenceError: an output holds NaN or infinity and is not one of ``nan_outputs``.
        """
        binary = inference.binary
        if binary is inference.outputs and inference.id is UNSET:
            return self._raw_writer.write(
                binary, outputs, [raw_of(self.finite(name, outputs[name])) for name in binary]
            )
        if not binary:
            return self._json_writer.write(inference.outputs, outputs, inference.id)
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
                tensor["data"] = msgspec.Raw(self._json_writer.values(name, array))
            described.append(tensor)
        reply["outputs"] = described
        return BinaryReply(self._encode(reply), raw)

    def check(self, arrays: Mapping[str, Array], outputs: Sequence[str] | None = None) -> Inference:
        """Check the arrays of a caller in this process; raises as ``decode``.

        Args:
            outputs: names wanted; None for all.
        """
        names = list(arrays)
        if names != self._names:
            check_names(names, self._names, "input")
        max_rows = self._max_rows
        inputs, rows = self._many({spec.name: checked_array(arrays[spec.name], spec, max_rows) for spec in self._all})
        for name, limits in self._limits:
            limits.check(inputs[name])
        return Inference(inputs, rows, self._outputs if outputs is None else self._wanted(list(outputs)), UNSET, 0)

    def finite(self, name: str, array: Array) -> Array:
        """Return an output; raises as ``encode`` where it holds NaN or infinity."""
        if array.dtype.kind == "f" and not all_finite(array) and name not in self._nan_outputs:
            raise not_finite(name)
        return array

    def values(self, name: str, array: Array) -> bytes:
        """Write an output's values alone; see ``encode``."""
        return self._json_writer.values(name, array)

    # -- Inside ------------------------------------------------------------------------------------------------------

    def _checked(self, request: _Request[Any], inputs: Arrays, rows: int) -> Inference:
        """Put a request together whose inputs are read."""
        for name, limits in self._limits:
            limits.check(inputs[name])
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
        if self._known is None or self._known[0] is not request:
            outputs = self._wanted(request.names) if request.outputs else self._outputs
            binary: Sequence[str] = request.raw_names
            if not request.outputs:
                binary = outputs if request.parameters.binary_data_output else ()
            self._known = request, outputs, outputs if len(binary) == len(outputs) else binary
        _, outputs, binary = self._known
        timeout_ns = request.parameters.timeout * 1000
        return Inference({self._only.name: array}, array.shape[0], outputs, request.id, timeout_ns, binary)

    def _decode_binary(self, body: bytes, at: int) -> tuple[_Request[AnyTensor], Arrays, int]:
        request = self._decode_any(memoryview(body)[:at])
        check_names([tensor.name for tensor in request.inputs], self._names, "input")
        inputs = {}
        for tensor in request.inputs:
            spec = self._specs[tensor.name]
            size = binary_size(tensor)
            if size < 0:
                inputs[tensor.name] = array_of_json(tensor, spec, self._max_rows)
                continue
            if size > len(body) - at:
                raise BadRequest(
                    f"input {tensor.name!r} has binary_data_size {size}, but {len(body) - at} bytes of the body remain",
                    hint="send raw tensors after the JSON, in the order of the inputs",
                )
            check_datatype(tensor, spec)
            inputs[tensor.name] = array_of(memoryview(body)[at : at + size], spec, tensor.shape, self._max_rows)
            at += size
        if at != len(body):
            raise BadRequest(
                f"the body has {len(body)} bytes, its raw tensors end at byte {at}",
                hint=f"{BINARY_HEADER} and all binary_data_size must add up to the length of the body",
            )
        return request, *self._many(inputs)

    def _many(self, inputs: Arrays) -> tuple[Arrays, int]:
        """Return the inputs in the model's order, and their rows."""
        rows = len(next(iter(inputs.values())))
        for array in inputs.values():
            if len(array) != rows:
                check_rows({name: len(one) for name, one in inputs.items()})
        return {name: inputs[name] for name in self._names}, rows

    def _decode_any(self, body: bytes | memoryview) -> _Request[AnyTensor]:
        try:
            return decoded(self._any, body)
        except UNREADABLE as error:
            raise _malformed(error, body) from error

    def _wanted(self, names: list[str]) -> tuple[str, ...]:
        for name in names:
            if name not in self._outputs:
                raise BadRequest(
                    f"output {shown(name)} is unknown", hint=f"this model's outputs: {', '.join(self._outputs)}"
                )
        if len(set(names)) != len(names):
            raise BadRequest(f"outputs are requested twice: {shown(names)}", hint="name each output once")
        return self._outputs if tuple(names) == self._outputs else tuple(names)


def _malformed(error: Exception, body: bytes | memoryview) -> BadRequest:
    return BadRequest(f"the body is not an inference request: {unread(error, body)}", hint="see /openapi.json")


def _typed(specs: Sequence[InputSpec]) -> tuple[msgspec.json.Decoder[Any], ...]:
    """Return what decodes the common requests straight to the values' type, where all inputs have the same."""
    if all(spec.is_float for spec in specs):
        return msgspec.json.Decoder(_Request[FlatTensor[float]]), msgspec.json.Decoder(_Request[RowsTensor[float]])
    if all("INT" in spec.datatype for spec in specs):
        return msgspec.json.Decoder(_Request[FlatTensor[int]]), msgspec.json.Decoder(_Request[RowsTensor[int]])
    return ()


# -- Arrays ------------------------------------------------------------------------------------------------------------


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
    kind = "BYTES" if array.dtype.kind in "OSU" else DATATYPE_OF.get(array.dtype.newbyteorder("="), str(array.dtype))
    check_datatype(AnyTensor(spec.name, shape, kind), spec)
    spec.check_shape(shape)
    spec.check_size(shape, max_rows)
    if spec.datatype == "BYTES":
        return converted(array, spec)
    found: Array = np.ascontiguousarray(array, spec.dtype)
    spec.check_values(found)
    return found


# -- JSON replies ------------------------------------------------------------------------------------------------------


# A reply in JSON alone. No I/O.
# Source: Open Inference Protocol, REST, "Inference Response JSON Object".

# An array's values as JSON. No I/O.
#
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


_Known = tuple[object, bytes, Way, bool, bool]
"""An output's datatype and shape, its JSON as far as its values, what writes those, whether it is a float, and whether
all of its values must be finite."""


class JsonWriter:
    """Writes replies.

    All but the values of an output is the same for the same shape, so the last is remembered.

    Args:
        nan_outputs: see ``InferenceCodec``.
    """

    def __init__(self, model: str, version: str, nan_outputs: Collection[str]) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._start = self._encode({"model_name": model, "model_version": version}).removesuffix(b"}")
        self._nan_outputs = nan_outputs
        self._known: dict[str, _Known] = {}

    def write(self, names: Sequence[str], outputs: Arrays, id: str | UnsetType) -> bytes:
        """Write one.

        Raises:
            InferenceError: an output holds NaN or infinity and must not, or bytes that are no text, or has a datatype
                that the protocol has not.
        """
        start = self._start if id is UNSET else b"".join((self._start, b',"id":', self._encode(id)))
        if len(names) == 1:
            return b"".join((start, b',"outputs":[', *self._tensor(names[0], outputs[names[0]]), b"}]}"))
        parts = [start, b',"outputs":[']
        for name in names:
            parts += self._tensor(name, outputs[name])
            parts.append(b"},")
        parts[-1] = b"}]}"
        return b"".join(parts)

    def values(self, name: str, array: Array) -> bytes:
        """Write an output's values flat, in row-major order; NaN as null, infinity as 1e999, bytes as text.

        Raises:
            InferenceError: see ``write``.
        """
        return self._tensor(name, array)[1]

    def _tensor(self, name: str, array: Array) -> tuple[bytes, bytes]:
        """Return an output as far as its values, and those."""
        what = array.dtype, array.shape
        known = self._known.get(name)
        if known is None or known[0] != what:
            known = self._known[name] = what, self._described(name, array), *self._way(name, array)
        _, described, way, is_float, is_finite = known
        values = way(array)
        if is_float and NULL in values:
            if is_finite:
                raise not_finite(name)
            values = with_infinity(values, array)
        return described, values

    def _described(self, name: str, array: Array) -> bytes:
        tensor = {"name": name, "datatype": output_datatype(array), "shape": array.shape}
        return self._encode(tensor).removesuffix(b"}") + b',"data":'

    def _way(self, name: str, array: Array) -> tuple[Way, bool, bool]:
        return way_of(array.dtype, array.size), array.dtype.kind == "f", name not in self._nan_outputs


# -- Binary requests ---------------------------------------------------------------------------------------------------


# The common binary request, decoded straight: one input, raw. Everything else is left to the general way. No I/O.

_LONGEST_KNOWN = 4096
_LONGEST_LENGTH = 20


class _Size(msgspec.Struct, gc=False):
    binary_data_size: int


class _RawTensor(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: _Size
    data: UnsetType = UNSET


class _RequestParameters(msgspec.Struct, frozen=True, gc=False):
    binary_data_output: bool = False
    timeout: int = 0
    sequence_id: UnsetType = UNSET
    priority: UnsetType = UNSET


class _OutputParameters(msgspec.Struct, gc=False):
    binary_data: bool | UnsetType = UNSET
    classification: UnsetType = UNSET


class _RawOutput(msgspec.Struct):
    name: str
    parameters: _OutputParameters | UnsetType = UNSET

    def is_raw(self, usual: bool) -> bool:
        if self.parameters is UNSET or self.parameters.binary_data is UNSET:
            return usual
        return self.parameters.binary_data


class RawRequest(msgspec.Struct):
    """A request whose one input is raw."""

    inputs: list[_RawTensor]
    id: str | UnsetType = UNSET
    parameters: _RequestParameters = _RequestParameters()
    outputs: list[_RawOutput] = []

    @property
    def size(self) -> int:
        """Bytes of the input."""
        return self.inputs[0].parameters.binary_data_size

    @property
    def names(self) -> list[str]:
        """Outputs that are asked for."""
        return [output.name for output in self.outputs]

    @property
    def raw_names(self) -> list[str]:
        """Those of them that are wanted raw."""
        usual = self.parameters.binary_data_output
        return [output.name for output in self.outputs if output.is_raw(usual)]


class JsonLength:
    """Reads ``Inference-Header-Content-Length``; what the last client said, most say again."""

    def __init__(self) -> None:
        self._known: tuple[str | None, int] = None, 0

    def read(self, header: str, size: int) -> int:
        """Return where raw tensors begin in a body of ``size`` bytes.

        Raises:
            BadRequest: the header is no number, or lies beyond the body.
        """
        text, length = self._known
        if header != text:
            if not (header.isascii() and header.isdecimal() and len(header) <= _LONGEST_LENGTH):
                raise _no_length(header, size)
            length = int(header)
        if length > size:
            raise _no_length(header, size)
        self._known = header, length
        return length


def _no_length(header: str, size: int) -> BadRequest:
    return BadRequest(
        f"header {BINARY_HEADER} is {shown(header)}, the body has {size} bytes",
        hint="send the number of JSON bytes at the beginning of the body",
    )


class RawReader:
    """Reads such requests.

    Clients send the same JSON before other numbers again and again, so the last one is remembered with what was found
    to be right in it: comparing it costs a tenth of reading it.

    Args:
        spec: of the model's only input.
    """

    def __init__(self, spec: InputSpec, max_rows: int) -> None:
        self._spec = spec
        self._max_rows = max_rows
        self._decoder = msgspec.json.Decoder(RawRequest)
        self._numbers = spec.datatype not in {"BYTES", "BOOL"} and sys.byteorder == "little"
        self._known: tuple[bytes, RawRequest, list[int], int] | None = None

    def read(self, body: bytes, at: int) -> tuple[RawRequest, Array] | None:
        """Return a request with its input; None where it is another kind, or wrong in its JSON.

        The same JSON again gives the same request.

        Args:
            at: where the raw tensor begins.

        Raises:
            BadRequest, TooLarge: what is wrong with the tensor itself.
        """
        known = self._known
        if known is not None and len(known[0]) == at and body.startswith(known[0]) and len(body) == known[3]:
            return known[1], self._numbers_of(body, at, known[2])
        head = body[:at]
        request = self._decoded(head)
        if request is None or at + request.size != len(body):
            return None
        shape = request.inputs[0].shape
        array = array_of(memoryview(body)[at:], self._spec, shape, self._max_rows)
        if self._numbers and at <= _LONGEST_KNOWN:
            self._known = head, request, shape, len(body)
        return request, array

    def _decoded(self, head: bytes) -> RawRequest | None:
        try:
            request = self._decoder.decode(head)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if len(request.inputs) != 1 or request.parameters.timeout < 0:
            return None
        tensor, spec = request.inputs[0], self._spec
        return request if tensor.name == spec.name and tensor.datatype == spec.datatype else None

    def _numbers_of(self, body: bytes, at: int, shape: list[int]) -> Array:
        """Read numbers whose shape and size are known to be right."""
        # A slice begins where numbers may; looking into the body itself would mean to copy what does not.
        array: Array = np.ndarray(shape, self._spec.dtype, body[at:])
        if not array.flags.aligned:
            array = array.copy()
        self._spec.check_values(array)
        return array


# -- Replies without a codec -------------------------------------------------------------------------------------------


# A reply whose outputs are all raw. No I/O.
# Source: Triton's binary tensor data extension (https://github.com/triton-inference-server/server,
# docs/protocol/extension_binary_data.md).

BINARY_HEADER = "inference-header-content-length"
_BINARY = ("content-type", "application/octet-stream")


class BinaryReply:
    """A body of JSON and raw tensors, with the headers that say so."""

    __slots__ = ("body", "headers")

    def __init__(self, header: bytes, raw: Sequence[bytes], headers: Headers | None = None) -> None:
        self.body = b"".join((header, *raw))
        self.headers = headers or [_BINARY, (BINARY_HEADER, str(len(header)))]


class RawWriter:
    """Writes replies without an id.

    Its JSON is the same for the same shapes, so the last one is remembered.
    """

    def __init__(self, model: str, version: str) -> None:
        self._start = {"model_name": model, "model_version": version}
        self._known: tuple[object, bytes, Headers] = None, b"", []

    def write(self, names: Sequence[str], outputs: Arrays, raw: Sequence[bytes]) -> BinaryReply:
        """Write one.

        Args:
            raw: the bytes of each output, in the order of ``names``.
        """
        if len(names) == 1:
            array = outputs[names[0]]
            key: object = (names[0], array.dtype, array.shape, len(raw[0]))
        else:
            key = [
                (name, outputs[name].dtype, outputs[name].shape, len(each))
                for name, each in zip(names, raw, strict=True)
            ]
        known = self._known
        if known[0] != key:
            described = [
                {
                    "name": name,
                    "datatype": output_datatype(outputs[name]),
                    "shape": outputs[name].shape,
                    "parameters": {"binary_data_size": len(each)},
                }
                for name, each in zip(names, raw, strict=True)
            ]
            header = msgspec.json.encode({**self._start, "outputs": described})
            known = self._known = key, header, [_BINARY, (BINARY_HEADER, str(len(header)))]
        return BinaryReply(known[1], raw, known[2])
