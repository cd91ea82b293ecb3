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
import hashlib
import hmac
import math
import os
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.common.tensors import DATATYPE_OF, NUMPY_OF, Array
from tailcut.errors import StartError

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


# -- Fields that are hashed or dropped ---------------------------------------------------------------------------------


LEAST_KEY_BYTES = 16
_ENVIRONMENT = "env:"
_DIGEST_BYTES = 16
"""Of the 32: equal hashes of different values are expected after some 2**64 values only."""

DROPPED = object()
"""Stands for a value that is not written."""


class Redaction:
    """Hashes and drops fields by name; remembers nothing.

    Args:
        hashed, dropped: names; see the module.
        key: of the hashes.
    """

    def __init__(self, hashed: Sequence[str], dropped: Sequence[str], key: bytes = b"") -> None:
        self._hashed, self._dropped = tuple(hashed), tuple(dropped)
        self._key = key
        self._known: dict[str, str] = {}

    def of(self, path: str) -> str:
        """Return "hash", "drop" or "" for a field's path."""
        found = self._known.get(path)
        if found is None:
            if len(self._known) > 10_000:  # keys of rows may be data
                self._known.clear()
            drop, hashes = _named(path, self._dropped), _named(path, self._hashed)
            found = self._known[path] = "drop" if drop else "hash" if hashes else ""
        return found

    def apply(self, value: Any, path: str, found: Mapping[str, set[str]]) -> Any:
        """Return a value of rows, entities or predictions as it is written, or ``DROPPED``.

        Args:
            value: of Python's own types.
            path: of the value.
            found: "hash" and "drop" to the paths of the fields that were; added to.
        """
        if what := self.of(path):
            found[what].add(path)
            return DROPPED if what == "drop" else self.hashed(value)
        if isinstance(value, list | tuple):
            return [self.apply(each, path, found) for each in value]
        if isinstance(value, dict):
            kept = {str(key): self.apply(each, f"{path}.{key}", found) for key, each in value.items()}
            kept = {key: each for key, each in kept.items() if each is not DROPPED}
            return {"$object": kept} if len(kept) == 1 and next(iter(kept)).startswith("$") else kept
        return to_json(value)

    def hashed(self, value: Any) -> dict[str, str]:
        """Return what stands for a value that is hashed; see ``digest``."""
        return {HASHED: self.digest(value)}

    def digest(self, value: Any) -> str:
        """Return the keyed hash of a value, 32 hexadecimal digits; equal values have equal ones.

        Values are equal as JSON's are: 1 and 1.0, a text and its UTF-8 bytes; true is no 1, and the text "1" is no 1.
        """
        return hmac.new(self._key, canonical(value), hashlib.sha256).digest()[:_DIGEST_BYTES].hex()


def canonical(value: Any) -> bytes:
    """Return bytes that are equal where values are, and differ where they do."""
    found = _of_one(value)
    if found is not None:
        return found
    if isinstance(value, dict):
        parts = [canonical(str(key)) + canonical(each) for key, each in sorted(value.items(), key=_by_key)]
        return b"o%d:" % len(parts) + b"".join(parts)
    parts = [canonical(each) for each in value]
    return b"l%d:" % len(parts) + b"".join(parts)


def _of_one(value: Any) -> bytes | None:
    """Return ``canonical`` of a single value; None of an object or a list."""
    if value is None or isinstance(value, bool):
        return {None: b"n", True: b"t", False: b"f"}[value]
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    if isinstance(value, int | float):
        return f"{'i' if isinstance(value, int) else 'd'}{value!r};".encode()
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    return b"s%d:" % len(value) + value if isinstance(value, bytes) else None


def read_key(where: str, directory: Path, environment: Callable[[str], str | None] = os.environ.get) -> bytes:
    """Read the key of the hashes; see ``request_log.hash_key``.

    Raises:
        StartError: it is not there, or too short.
    """
    if where.startswith(_ENVIRONMENT):
        name = where.removeprefix(_ENVIRONMENT)
        found = environment(name)
        if found is None:
            raise StartError(
                f"request_log.hash_key: the environment variable {name} is not set",
                hint=f"export {name}=..., with at least {LEAST_KEY_BYTES} random characters",
            )
        key = found.encode()
    else:
        try:
            key = (directory / where).read_bytes().strip()
        except OSError as error:
            raise StartError(
                f"request_log.hash_key: {directory / where} cannot be read: {error.strerror}",
                hint="make one: head -c 32 /dev/urandom | base64 > FILE; or write 'env:NAME'",
            ) from error
    if len(key) < LEAST_KEY_BYTES:
        raise StartError(
            f"request_log.hash_key has {len(key)} bytes, the minimum is {LEAST_KEY_BYTES}: values could be guessed",
            hint="make one: head -c 32 /dev/urandom | base64 > FILE",
        )
    return key


def _by_key(item: tuple[Any, Any]) -> str:
    return str(item[0])


def _named(path: str, names: Sequence[str]) -> bool:
    return any(path == name or path.endswith(f".{name}") for name in names)
