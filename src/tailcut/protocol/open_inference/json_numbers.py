"""An array's values as JSON. No I/O.

A number is written as the shortest decimal that reads back as itself in its own datatype (FP16 as FP32), so that FP32
0.1 is 0.1 and not the 0.10000000149011612 which is its neighbour among doubles: half the bytes, and the same text for
one row as for many. Clients that read doubles and cast them get the same bits. NaN and infinity are those of
``json_values``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
import orjson

from tailcut.common.json_values import INFINITY, MINUS_INFINITY
from tailcut.common.tensors import Array
from tailcut.common.texts import no_unicode, texts_of

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
