"""JSON with NaN, infinity and NumPy values, read and written alike by server and clients. No I/O.

JSON has neither NaN nor infinity. Written are null, and 1e999 or -1e999: valid JSON, beyond the range of a double, so
that JavaScript, Python and Java read infinity, and stricter readers refuse it. Read are these, and the words NaN,
Infinity and -Infinity that Python's json writes, and with it Triton's client.
"""

from __future__ import annotations

import json
import math
from typing import Any, TypeVar

import msgspec
import numpy as np

T = TypeVar("T")

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are no JSON of the wanted form: not UTF-8 and nested too deeply included."""

INFINITY, MINUS_INFINITY = b"1e999", b"-1e999"

_RAW = {math.inf: msgspec.Raw(INFINITY), -math.inf: msgspec.Raw(MINUS_INFINITY)}
_WORDS = (b"NaN", b"Infinity")
_OUT_OF_RANGE = "out of range"
"""Part of what msgspec says of a number such as 1e999."""


def decode(decoder: msgspec.json.Decoder[T], body: bytes | memoryview) -> T:
    """Decode JSON, with NaN, infinity and numbers beyond a double's range as floats.

    msgspec refuses these, so that only what it has refused is read again, by Python's json.

    Raises:
        DecodeError, UnicodeDecodeError, RecursionError: see ``UNREADABLE``.
    """
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raw = bytes(body)
        if _OUT_OF_RANGE not in str(error) and not any(word in raw for word in _WORDS):
            raise
        try:
            found = json.loads(raw.decode())
            msgspec.json.encode(found)  # refuses half a surrogate pair, as msgspec's decoder does
        except ValueError as again:
            raise msgspec.DecodeError(f"JSON is malformed: {again}") from None
    return msgspec.convert(found, decoder.type)


def is_json(text: bytes) -> bool:
    """Return True where a text is JSON as ``encode`` writes it."""
    try:
        msgspec.json.decode(text)
    except UNREADABLE as error:
        if _OUT_OF_RANGE not in str(error):
            return False
        try:
            json.loads(text, parse_constant=_refused)
        except (ValueError, RecursionError):
            return False
    return True


def encode(value: Any) -> bytes:
    """Write values as JSON, NumPy's included; NaN is null, infinity 1e999.

    Raises:
        TypeError, ValueError, OverflowError, RecursionError, NotImplementedError: JSON does not have it.
    """
    text = _encode(value)
    # msgspec writes infinity as null. Nearly no text has one, so what looks at every value runs only then.
    return _encode(plain(value)) if b"null" in text else text


def plain(value: Any) -> Any:
    """Return values as msgspec writes them rightly: infinity as 1e999, bytes as text, NumPy's as Python's.

    Raises:
        UnicodeDecodeError: bytes are no UTF-8 text.
        TypeError, NotImplementedError, RecursionError: JSON does not have it.
    """
    if isinstance(value, float | np.floating):
        return _RAW.get(float(value), float(value))
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, np.generic) and (value is None or isinstance(value, str | int | msgspec.Raw)):
        return value
    return plain(to_builtins(value))


def to_builtins(value: Any) -> Any:
    """Return a dataclass, a NumPy array or the like as values of Python's own types; bytes stay bytes.

    Raises:
        TypeError, NotImplementedError: msgspec does not write it.
    """
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return msgspec.to_builtins(value, builtin_types=(bytes,), str_keys=True, enc_hook=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise NotImplementedError(f"a {type(value).__name__}")


def _refused(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
