"""Raw tensor bytes <-> arrays: the binary tensor extension over HTTP, and ``raw_input_contents`` over gRPC. No I/O.

The bytes are little-endian, as this machine is. BOOL is one byte, 0 or 1. Over HTTP raw tensors follow the JSON;
requests with one input and replies that are all raw are the common ones, and have a reader and a writer of their own.

Source: Triton's binary tensor data extension (https://github.com/triton-inference-server/server,
docs/protocol/extension_binary_data.md); Open Inference Protocol, gRPC, "raw_input_contents".
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from reprlib import repr as shown

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from tailcut.common.json_values import UNREADABLE
from tailcut.common.tensors import DATATYPE_OF, Array, Arrays, Raw, element_bytes, elements_of, number_bytes
from tailcut.common.texts import bytes_of, text_of
from tailcut.common.validation import InputSpec
from tailcut.errors import BadRequest, InferenceError
from tailcut.protocol.http import Headers

BINARY_HEADER = "inference-header-content-length"
_BINARY = ("content-type", "application/octet-stream")


def array_of(raw: Raw, spec: InputSpec, shape: Sequence[int], max_rows: int) -> Array:
    """Read one input tensor from its bytes.

    Nothing is allocated before ``raw`` is known to hold what the shape says.

    Args:
        raw: exactly the tensor's bytes.
        spec: what the input must be; its datatype is the one that the client named.
        shape: that the client named.
        max_rows: most rows.

    Returns:
        the array, aligned. It shares the memory of ``raw`` where that is aligned, and is then read-only where ``raw``
        is. A BYTES element is text, as from JSON.

    Raises:
        BadRequest: the shape is wrong, ``raw`` is longer or shorter than the shape says, or a value is not allowed.
        TooLarge: more than ``max_rows`` rows.
    """
    spec.check_shape(shape)
    spec.check_size(shape, max_rows)
    count = prod(shape)
    if spec.datatype == "BYTES":
        try:
            elements = elements_of(raw, count, f"input {spec.name!r}")
        except ValueError as error:
            raise BadRequest(
                str(error),
                hint="send every element as a 4-byte little-endian length and its bytes, as many as the shape says",
            ) from error
        texts: Array = np.empty(count, object)
        texts[:] = [text_of(element, spec.name) for element in elements]
        return texts.reshape(shape)
    size = len(raw)
    if size != count * spec.dtype.itemsize:
        raise BadRequest(
            f"input {spec.name!r} has {size} bytes for shape {shown(list(shape))} of {spec.datatype}, expected "
            f"{count * spec.dtype.itemsize}",
            hint="send every value little-endian, in row-major order, without padding",
        )
    array: Array = np.frombuffer(raw, spec.dtype)
    if spec.datatype == "BOOL" and (largest := array.view(np.uint8).max()) > 1:
        raise BadRequest(
            f"input {spec.name!r} holds the byte {largest}, which is no BOOL", hint="send one byte per value: 0 or 1"
        )
    if not array.flags.aligned:
        array = array.copy()
    array = array.reshape(shape)
    spec.check_values(array)
    return array


def raw_of(array: Array) -> bytes:
    """Return the bytes of an output tensor.

    Raises:
        InferenceError: an element of a BYTES tensor is neither text nor bytes, is text that is no Unicode, or is longer
            than its length can say.
    """
    if not array.dtype.hasobject:
        return array.tobytes() if array.dtype.isnative else number_bytes(array)
    try:
        return element_bytes(map(bytes_of, array.ravel().tolist()))
    except OverflowError as error:
        raise InferenceError(
            "the model returned an element of 4 GiB or more", hint="make the model return shorter elements"
        ) from error


def output_datatype(array: Array) -> str:
    """Return the protocol's name of an output's datatype.

    Raises:
        InferenceError: the protocol has none for it.
    """
    found = DATATYPE_OF.get(array.dtype)
    if found is None:
        raise InferenceError(
            f"the model returned an array of {array.dtype}, for which the protocol has no datatype",
            hint="make the model return a datatype listed in docs/reference/manifest.md",
        )
    return found


# -- Binary requests ---------------------------------------------------------------------------------------------------


_LONGEST_KNOWN = 4096


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


class _OutputParameters(msgspec.Struct, frozen=True, gc=False):
    binary_data: bool | UnsetType = UNSET
    classification: UnsetType = UNSET


class _RawOutput(msgspec.Struct):
    name: str
    parameters: _OutputParameters = _OutputParameters()


class RawRequest(msgspec.Struct):
    """A request whose one input is raw."""

    inputs: list[_RawTensor]
    id: str | UnsetType = UNSET
    parameters: _RequestParameters = _RequestParameters()
    outputs: list[_RawOutput] = []

    @property
    def raw_names(self) -> list[str]:
        """Those of the outputs asked for that are wanted raw."""
        usual = self.parameters.binary_data_output
        return [
            output.name
            for output in self.outputs
            if (usual if output.parameters.binary_data is UNSET else output.parameters.binary_data)
        ]


class RawReader:
    """Reads the common binary request: one input, raw. Everything else is left to the codec.

    Clients send the same JSON before other numbers again and again, so the last one is remembered with what was found
    to be right in it: comparing it costs a tenth of reading it.

    Args:
        spec: of the model's only input.
    """

    def __init__(self, spec: InputSpec, max_rows: int) -> None:
        self._spec = spec
        self._max_rows = max_rows
        self._decoder = msgspec.json.Decoder(RawRequest)
        self._numbers = spec.datatype not in {"BYTES", "BOOL"}
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
        if request is None or at + request.inputs[0].parameters.binary_data_size != len(body):
            return None
        shape = request.inputs[0].shape
        array = array_of(memoryview(body)[at:], self._spec, shape, self._max_rows)
        if self._numbers and at <= _LONGEST_KNOWN:
            self._known = head, request, shape, len(body)
        return request, array

    def _decoded(self, head: bytes) -> RawRequest | None:
        try:
            request = self._decoder.decode(head)
        except UNREADABLE:
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


# -- Binary replies ----------------------------------------------------------------------------------------------------


class BinaryReply:
    """A body of JSON and raw tensors, with the headers that say so."""

    __slots__ = ("body", "headers")

    def __init__(self, header: bytes, raw: Sequence[bytes], headers: Headers | None = None) -> None:
        self.body = b"".join((header, *raw))
        self.headers = headers or [_BINARY, (BINARY_HEADER, str(len(header)))]


class RawWriter:
    """Writes replies whose outputs are all raw, without an id.

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
