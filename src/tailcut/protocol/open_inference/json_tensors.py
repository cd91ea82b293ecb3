"""One tensor in JSON -> an array, and back. No I/O.

Source: Open Inference Protocol, REST, "Tensor Data": flat or nested, in row-major order.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Sequence
from itertools import chain
from math import prod
from reprlib import repr as shown
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from tailcut.common.tensors import Array
from tailcut.common.texts import MISSING_TEXT
from tailcut.common.validation import InputSpec
from tailcut.errors import BadRequest

Parameters = dict[str, Any]

_PACKED = {
    **{"FP16": "e", "FP32": "f", "FP64": "d", "BOOL": "?"},
    **{"INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q"},
    **{"UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q"},
}
_FEW = 48
"""Up to here NumPy reads a list of whole numbers faster than they are packed."""

_ORDER = "<" if sys.byteorder == "little" else ">"
_UNFIT = (OverflowError, struct.error, ValueError)


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
    check_datatype(tensor, spec)
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
        self._pack = struct.Struct(f"{_ORDER}{spec.tail_size}{_PACKED[spec.datatype]}").pack

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


def check_datatype(tensor: Tensor, spec: InputSpec) -> None:
    """Refuse a datatype that is not the input's."""
    if tensor.datatype != spec.datatype:
        raise BadRequest(
            f"input {tensor.name!r} has datatype {shown(tensor.datatype)}, expected {spec.datatype}",
            hint=f"send {spec.datatype}",
        )


def pack(data: list[Any], spec: InputSpec) -> Array:
    """Turn flat JSON values into an array.

    Floats are packed, which refuses what the datatype cannot hold (NumPy would make it infinite) and is faster; so are
    many whole numbers.
    """
    if spec.is_float or (len(data) > _FEW and spec.datatype in _PACKED):
        packed = bytearray(struct.pack(f"{_ORDER}{len(data)}{_PACKED[spec.datatype]}", *data))
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
