"""Cache keys: exact, prefix-free, and different whenever what they name differs.

A key is the MessagePack encoding of a tuple (https://github.com/msgpack/msgpack/blob/master/spec.md): every value
carries its type and its length, so ``1``, ``1.0``, ``"1"``, ``True`` and ``None`` differ and no two lists of values
run into each other. Long keys, and tensors, are hashed with BLAKE2b to 256 bits (RFC 7693). A hashed key starts with
a letter and an exact one never does, so keys of different kinds never meet either, even in one store.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np

from tailcut.common.tensors import NUMPY_OF, Array, Arrays

Scalar = str | int | float | bool | bytes | None

LONGEST_EXACT_BYTES = 256
"""Longer keys are hashed: a store need not hold a client's kilobyte twice."""

_DIGEST_BYTES = 32
_PLAIN_KINDS = "biufcSUmM"
_SCALARS = frozenset({str, int, float, bool, bytes, type(None)})
_FORMS = {dtype: dtype.str for dtype in NUMPY_OF.values()}
_encode = msgspec.msgpack.Encoder().encode


def feature_key(group: str | bytes, values: tuple[Scalar, ...], tenant: str) -> bytes:
    """Key of one entity's values in a feature group.

    Args:
        group: what tells this group from every other, its definition included.
        values: the key columns, in order.
        tenant: whose values; empty where all tenants share them.

    Raises:
        TypeError: a value is not a str, int, float, bool, bytes or None, so two different ones could look alike.
        OverflowError: an integer needs more than 64 bits.
    """
    _check(values)
    return _sealed(b"F", _encode((group, tenant, values)))


def entity_prediction_key(
    version: bytes, tenant: str, entity: tuple[Scalar, ...], outputs: tuple[str, ...] = ()
) -> bytes:
    """Key of the prediction for one entity by one deployment version.

    Raises:
        TypeError: see ``feature_key``.
    """
    _check(entity)
    return _sealed(b"E", _encode((version, tenant, entity, outputs)))


class Normal:
    """Which float inputs look alike to a key: what this makes equal shares one key, and so one answer.

    Args:
        zeros: -0.0 counts as 0.0 and every NaN as the same, whatever its payload.
        digits: input name -> digits after the point to which its values are rounded, ``zeros`` included. Only the key
            is rounded: the answer is the model's for the first request of those that look alike.
    """

    def __init__(self, zeros: bool = False, digits: Mapping[str, int] | None = None) -> None:
        self._zeros = zeros
        self._digits = dict(digits or {})

    def __call__(self, name: str, array: Array) -> tuple[Array, int | None]:
        """Return what stands for an input in a key, and to how many digits it is rounded (None: it is not)."""
        if array.dtype.kind != "f":
            return array, None
        digits = self._digits.get(name)
        if digits is None:
            return (_plain(array) if self._zeros else array), None
        return _plain(_rounded(array.astype(np.float64), digits)), digits


EXACT = Normal()
"""Equal bits, or different keys."""


def tensor_prediction_key(
    version: bytes, tenant: str, inputs: Arrays, outputs: tuple[str, ...] = (), normal: Normal = EXACT
) -> bytes:
    """Key of the prediction for these model inputs; the order in which ``inputs`` were put together does not matter.

    Raises:
        TypeError: an input has a structured dtype, or an element of a BYTES input is no scalar.
    """
    # A list of its own for the form that is used most: the general way costs a lone row twice as much.
    arrays: list[tuple[str, Array, int | None]]
    if normal is EXACT:
        arrays = [(name, inputs[name], None) for name in sorted(inputs)]
        header = [(name, _FORMS.get(array.dtype) or _dtype(name, array), array.shape) for name, array, _ in arrays]
    else:
        arrays = [(name, *normal(name, inputs[name])) for name in sorted(inputs)]
        header = _header(arrays, inputs, None)
    digest: Any = blake2b(_encode((version, tenant, outputs, header)), digest_size=_DIGEST_BYTES)
    for name, array, _ in arrays:
        digest.update(_content(name, array) if array.dtype.hasobject else array.tobytes())
    return b"T" + bytes(digest.digest())


def tensor_row_keys(
    version: bytes, tenant: str, inputs: Arrays, rows: int, outputs: tuple[str, ...] = (), normal: Normal = EXACT
) -> list[bytes]:
    """Return the key of each row by itself, as ``tensor_prediction_key`` has it, at less cost.

    Args:
        inputs: at least one, each with first dimension ``rows``.
    """
    if rows == 1:
        return [tensor_prediction_key(version, tenant, inputs, outputs, normal)]
    arrays = [(name, *normal(name, inputs[name])) for name in sorted(inputs)]
    header = _header(arrays, inputs, 1)
    begun: Any = blake2b(_encode((version, tenant, outputs, header)), digest_size=_DIGEST_BYTES)
    keys = []
    for row in range(rows):
        digest = begun.copy()
        for name, array, _ in arrays:
            digest.update(_content(name, array[row : row + 1]))
        keys.append(b"T" + digest.digest())
    return keys


def _header(arrays: list[tuple[str, Array, int | None]], inputs: Arrays, rows: int | None) -> list[tuple[Any, ...]]:
    """Name, dtype and shape of each input, and the digits of the rounded ones.

    Args:
        rows: stands for the inputs' own first dimension where it is given.
    """
    header: list[tuple[Any, ...]] = []
    for name, _, digits in arrays:
        array = inputs[name]
        shape = array.shape if rows is None else (rows, *array.shape[1:])
        form = (name, _dtype(name, array), shape)
        header.append(form if digits is None else (*form, digits))
    return header


def _content(name: str, array: Array) -> bytes:
    if array.dtype.hasobject:
        elements = tuple(array.ravel().tolist())
        _check(elements, f'input "{name}"')
        return bytes(_encode(elements))
    # The header holds dtype and shape, hence the length: no separator is needed.
    return array.tobytes()


def _plain(array: Any) -> Array:
    plain = array + array.dtype.type(0)  # -0.0 + 0.0 is 0.0 (IEEE 754, 6.3)
    nan = np.isnan(plain)
    if nan.any():
        plain[nan] = np.nan
    return np.asarray(plain)


def _rounded(values: Any, digits: int) -> Any:
    """Round to digits after the point; what has none that a float could hold stays as it is, infinity too."""
    scale = 10.0**digits
    fine = np.abs(values) < 2.0**52 / scale  # also keeps the product finite; False for NaN
    return np.where(fine, np.rint(np.where(fine, values, 0.0) * scale) / scale, values)


def _check(values: tuple[object, ...], what: str = "a key") -> None:
    for value in values:
        if type(value) not in _SCALARS:
            raise TypeError(f"{what} holds a {type(value).__name__}; it can hold str, int, float, bool, bytes and None")


def _sealed(kind: bytes, exact: bytes) -> bytes:
    if len(exact) <= LONGEST_EXACT_BYTES:
        return exact
    return kind + blake2b(exact, digest_size=_DIGEST_BYTES).digest()


def _dtype(name: str, array: Array) -> str:
    dtype = array.dtype
    if dtype.kind not in _PLAIN_KINDS and dtype.kind != "O":
        raise TypeError(f'input "{name}" has dtype {dtype}; a key needs a plain numeric, string or BYTES tensor')
    return dtype.str
