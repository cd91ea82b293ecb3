"""Values as JSON that loses nothing, and back: NaN, infinities, integers of any size, bytes that are no text.

JSON has no word for these. Among the values of rows, entities and predictions each stands as an object with one key:
``{"$float": "NaN"}``, ``{"$bytes": base64}``, ``{"$hmac": hex}`` of a value that was hashed; and ``{"$object": {...}}``
around an object of the client's whose only key begins with "$". In a tensor's flat data, whose datatype is known, NaN
and infinities are the texts "NaN", "Infinity" and "-Infinity", as in the JSON mapping of protobuf
(https://protobuf.dev/programming-guides/json/). Numbers are written with the fewest digits that read back as the same
double; those of FP16 and FP32 are doubles without loss.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tailcut.common.tensors import DATATYPE_OF, NUMPY_OF, Array

NOT_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

HASHED = "$hmac"
_FLOAT, _BYTES, _OBJECT = "$float", "$bytes", "$object"


def to_json(value: Any) -> Any:
    """Return a value of Python's own types as values that JSON has; see the module."""
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT: _word(value)}
    if isinstance(value, str):
        return value if _is_unicode(value) else {_BYTES: _base64(value.encode("utf-8", "surrogatepass"))}
    if isinstance(value, bytes):
        return {_BYTES: _base64(value)}
    if isinstance(value, dict):
        found = {str(key): to_json(each) for key, each in value.items()}
        return {_OBJECT: found} if len(found) == 1 and next(iter(found)).startswith("$") else found
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    return value


def from_json(value: Any) -> Any:
    """Return what ``to_json`` was given; a hashed value stays as it is written.

    Raises:
        ValueError: an object of this module's own holds something else than it says.
    """
    if isinstance(value, list):
        return [from_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (key, only), *_ = value.items()
        if key == _FLOAT:
            return not_number(only)
        if key == _BYTES:
            return _bytes(only)
        if key == _OBJECT:
            if not isinstance(only, dict):
                raise ValueError(f"{{{_OBJECT!r}: {only!r}}} holds no object")
            return {name: from_json(each) for name, each in only.items()}
    return {name: from_json(each) for name, each in value.items()}


def data_of(array: Array) -> list[Any]:
    """Return a tensor's values, flat in row-major order, as values that JSON has."""
    flat: list[Any] = array.ravel().tolist()
    if array.dtype.hasobject:
        return [to_json(each) for each in flat]
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return [each if math.isfinite(each) else _word(each) for each in flat]
    return flat


def array_of(datatype: str, shape: Sequence[int], data: Sequence[Any]) -> Array:
    """Return the tensor that ``data_of`` was given; texts stay texts.

    Raises:
        ValueError: the data does not fit datatype or shape.
    """
    if datatype not in NUMPY_OF:
        raise ValueError(f"the datatype {datatype!r} is unknown")
    if len(data) != prod(shape):
        raise ValueError(f"{len(data)} values for the shape {list(shape)}")
    dtype = NUMPY_OF[datatype]
    if datatype == "BYTES":
        texts = np.empty(len(data), dtype=object)
        texts[:] = [from_json(each) for each in data]
        return texts.reshape(shape)
    if dtype.kind == "f":
        data = [not_number(each) if isinstance(each, str) else each for each in data]
        with np.errstate(over="ignore"):
            return np.array(data, np.float64).astype(dtype).reshape(shape)
    return np.array(data, dtype).reshape(shape)


def not_number(word: Any) -> float:
    """Return NaN or an infinity; raises ValueError for another word."""
    if not isinstance(word, str) or word not in NOT_NUMBERS:
        raise ValueError(f"{word!r} is none of {', '.join(NOT_NUMBERS)}")
    return NOT_NUMBERS[word]


def datatype_of(array: Array) -> str:
    """Return the Open Inference Protocol's name of an array's type."""
    return "BYTES" if array.dtype.kind in "OSU" else DATATYPE_OF.get(array.dtype, str(array.dtype))


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _bytes(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, TypeError):
        raise ValueError(f"{{{_BYTES!r}: {text!r}}} is no base64") from None


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
