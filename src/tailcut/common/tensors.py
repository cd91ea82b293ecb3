"""Datatypes of the Open Inference Protocol v2, their NumPy counterparts, and the bytes of a raw tensor.

Raw tensors are little-endian and row-major, without padding; an element of a BYTES tensor is a 4-byte unsigned length
and that many bytes.

Source: Open Inference Protocol, "Tensor Data Types"
(https://github.com/open-inference/open-inference-protocol, specification/protocol/inference_rest.md); Triton's binary
tensor data extension (https://github.com/triton-inference-server/server, docs/protocol/extension_binary_data.md).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Arrays = dict[str, Array]
Bools = npt.NDArray[np.bool_]
Doubles = npt.NDArray[np.float64]
Keys = npt.NDArray[np.int64]
Raw = bytes | bytearray | memoryview

_LENGTH_BYTES = 4

NUMPY_OF: dict[str, np.dtype[np.generic]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}
DATATYPE_OF: dict[np.dtype[np.generic], str] = {dtype: name for name, dtype in NUMPY_OF.items()}


def datatype_of(array: Array) -> str | None:
    """Return the protocol's name of an array's datatype, in any byte order; None where it has none."""
    return "BYTES" if array.dtype.kind in "OSU" else DATATYPE_OF.get(array.dtype.newbyteorder("="))


def number_bytes(array: Array) -> bytes:
    """Return the raw tensor of an array of numbers or booleans."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def element_bytes(values: Iterable[bytes]) -> bytes:
    """Return the raw tensor of BYTES elements; raises OverflowError for one of 4 GiB or more."""
    return b"".join([part for value in values for part in (len(value).to_bytes(_LENGTH_BYTES, "little"), value)])


def elements_of(raw: Raw, count: int, what: str) -> list[bytes]:
    """Return the elements of a raw BYTES tensor; the memory taken is in proportion to ``raw``, whatever it says.

    Args:
        what: names the tensor in an error.

    Raises:
        ValueError: there are not ``count`` elements, or the last one does not end where ``raw`` does.
    """
    size = len(raw)
    if count * _LENGTH_BYTES > size:
        raise ValueError(f"{what} has {size} bytes for {count} BYTES elements, expected at least {count * 4}")
    found = []
    at = 0
    for index in range(count):
        begin = at + _LENGTH_BYTES
        at = begin + int.from_bytes(raw[begin - _LENGTH_BYTES : begin], "little")
        if begin > size or at > size:
            raise ValueError(f"element {index} of {what} ends at byte {max(begin, at)} of {size}")
        found.append(bytes(raw[begin:at]))
    if at != size:
        raise ValueError(f"{what} has {size} bytes, its {count} elements end at byte {at}")
    return found
