"""The common binary request, decoded straight: one input, raw. Everything else is left to the general way. No I/O."""

from __future__ import annotations

import sys
from reprlib import repr as shown

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from tailcut.common.tensors import Array
from tailcut.common.validation import InputSpec
from tailcut.errors import BadRequest
from tailcut.protocol.open_inference.binary import array_of
from tailcut.protocol.open_inference.raw_replies import BINARY_HEADER

_LONGEST_KNOWN = 4096
_LONGEST_LENGTH = 20


class _Size(msgspec.Struct, gc=False):
    binary_data_size: int


class _Tensor(msgspec.Struct):
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


class _Output(msgspec.Struct):
    name: str
    parameters: _OutputParameters | UnsetType = UNSET

    def is_raw(self, usual: bool) -> bool:
        if self.parameters is UNSET or self.parameters.binary_data is UNSET:
            return usual
        return self.parameters.binary_data


class RawRequest(msgspec.Struct):
    """A request whose one input is raw."""

    inputs: list[_Tensor]
    id: str | UnsetType = UNSET
    parameters: _RequestParameters = _RequestParameters()
    outputs: list[_Output] = []

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
