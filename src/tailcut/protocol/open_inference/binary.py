"""Raw tensor bytes <-> arrays: the binary tensor extension over HTTP, and ``raw_input_contents`` over gRPC. No I/O.

Little-endian, row-major, no padding. BOOL is one byte, 0 or 1; a BYTES element is a 4-byte unsigned length and that
many bytes.

Source: Triton's binary tensor data extension (https://github.com/triton-inference-server/server,
docs/protocol/extension_binary_data.md); Open Inference Protocol, gRPC, "raw_input_contents".
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from reprlib import repr as shown
from typing import Any

import numpy as np

from tailcut.common.tensors import DATATYPE_OF, Array
from tailcut.common.texts import bytes_of, text_of
from tailcut.common.validation import InputSpec
from tailcut.errors import BadRequest, InferenceError

Raw = bytes | bytearray | memoryview

_LENGTH_BYTES = 4
_SWAPS = sys.byteorder != "little"


def array_of(raw: Raw, spec: InputSpec, shape: Sequence[int], max_rows: int) -> Array:
    """Read one input tensor from its bytes.

    Nothing is allocated before ``raw`` is known to hold what the shape says.

    Args:
        raw: exactly the tensor's bytes.
        spec: what the input must be; its datatype is the one that the client named.
        shape: that the client named.
        max_rows: most rows.

    Returns:
        the array, aligned and in this machine's byte order. It shares the memory of ``raw`` where that is aligned, and
        is then read-only where ``raw`` is. A BYTES element is text, as from JSON.

    Raises:
        BadRequest: the shape is wrong, ``raw`` is longer or shorter than the shape says, or a value is not allowed.
        TooLarge: more than ``max_rows`` rows.
    """
    spec.check_shape(shape)
    spec.check_size(shape, max_rows)
    count = prod(shape)
    if spec.datatype == "BYTES":
        return _elements(memoryview(raw), spec.name, count).reshape(shape)
    size = len(raw)
    if size != count * spec.dtype.itemsize:
        raise BadRequest(
            f"input {spec.name!r} has {size} bytes for shape {shown(list(shape))} of {spec.datatype}, expected "
            f"{count * spec.dtype.itemsize}",
            hint="send every value little-endian, in row-major order, without padding",
        )
    if spec.datatype == "BOOL":
        return _bools(raw, spec.name).reshape(shape)
    array: Array = np.frombuffer(raw, spec.dtype)
    if _SWAPS:
        array = array.byteswap()
    elif not array.flags.aligned:
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
    if array.dtype.hasobject:
        return b"".join([part for value in array.ravel().tolist() for part in _element(value)])
    if _SWAPS or not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return array.tobytes()


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


def _bools(raw: Raw, name: str) -> Array:
    octets: Any = np.frombuffer(raw, np.uint8)
    if octets.max() > 1:
        raise BadRequest(
            f"input {name!r} holds the byte {octets.max()}, which is no BOOL", hint="send one byte per value: 0 or 1"
        )
    found: Array = octets.view(np.bool_)
    return found


def _elements(raw: memoryview, name: str, count: int) -> Array:
    """Read ``count`` BYTES elements; the memory taken is in proportion to ``raw``, whatever the lengths in it say."""
    size = len(raw)
    if count * _LENGTH_BYTES > size:
        raise BadRequest(
            f"input {name!r} has {size} bytes for {count} BYTES elements, expected at least {count * _LENGTH_BYTES}",
            hint="send every element as a 4-byte little-endian length and its bytes",
        )
    found: Array = np.empty(count, object)
    at = 0
    for index in range(count):
        begin = at + _LENGTH_BYTES
        at = begin + int.from_bytes(raw[begin - _LENGTH_BYTES : begin], "little")
        if begin > size or at > size:
            raise BadRequest(
                f"element {index} of input {name!r} ends at byte {max(begin, at)} of {size}",
                hint="send every element as a 4-byte little-endian length and its bytes",
            )
        found[index] = text_of(bytes(raw[begin:at]), name)
    if at != size:
        raise BadRequest(
            f"input {name!r} has {size} bytes, its {count} elements end at byte {at}",
            hint="make data and shape agree",
        )
    return found


def _element(element: object) -> tuple[bytes, bytes]:
    value = bytes_of(element)
    if len(value) >= 1 << 32:
        raise InferenceError(
            f"the model returned an element of {len(value)} bytes, the limit is {(1 << 32) - 1}",
            hint="make the model return shorter elements",
        )
    return len(value).to_bytes(_LENGTH_BYTES, "little"), value
