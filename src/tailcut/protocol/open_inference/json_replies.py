"""A reply in JSON alone. No I/O.

Source: Open Inference Protocol, REST, "Inference Response JSON Object".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import msgspec
import numpy as np
import orjson
from msgspec import UNSET, UnsetType

from tailcut.common.json_values import INFINITY, MINUS_INFINITY
from tailcut.common.tensors import Array, Arrays
from tailcut.common.texts import no_unicode, texts_of
from tailcut.common.validation import not_finite
from tailcut.protocol.open_inference.binary import output_datatype

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
