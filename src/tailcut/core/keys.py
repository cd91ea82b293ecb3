"""Cache keys: exact, prefix-free, and different whenever what they name differs.

A key is the MessagePack encoding of a tuple (https://github.com/msgpack/msgpack/blob/master/spec.md): every value
carries its type and its length, so ``1``, ``1.0``, ``"1"``, ``True`` and ``None`` differ and no two lists of values
run into each other. Long keys, and tensors, are hashed with BLAKE2b to 256 bits (RFC 7693). A hashed key starts with
a letter and an exact one never does, so keys of different kinds never meet either, even in one store.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from tailcut.core.tensors import Array, Arrays

Scalar = str | int | float | bool | bytes | None

LONGEST_EXACT_BYTES = 256
"""Longer keys are hashed: a store need not hold a client's kilobyte twice."""

_DIGEST_BYTES = 32
_PLAIN_KINDS = "biufcSUmM"
_SCALARS = frozenset({str, int, float, bool, bytes, type(None)})
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


def tensor_prediction_key(version: bytes, tenant: str, inputs: Arrays, outputs: tuple[str, ...] = ()) -> bytes:
    """Key of the prediction for these model inputs; the order in which ``inputs`` were put together does not matter.

    Raises:
        TypeError: an input has a structured dtype, or an element of a BYTES input is no scalar.
    """
    arrays = [(name, inputs[name]) for name in sorted(inputs)]
    header = [(name, _dtype(name, array), array.shape) for name, array in arrays]
    digest = blake2b(_encode((version, tenant, outputs, header)), digest_size=_DIGEST_BYTES)
    for name, array in arrays:
        if array.dtype.hasobject:
            elements = tuple(array.ravel().tolist())
            _check(elements, f'input "{name}"')
            digest.update(_encode(elements))
        else:
            # The header holds dtype and shape, hence the length: no separator is needed.
            digest.update(array.tobytes())
    return b"T" + digest.digest()


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
