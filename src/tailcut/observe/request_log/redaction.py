"""Fields that are hashed or dropped before a request is written. No I/O but reading the key.

A field is named by its path: the keys from a row down, joined by dots, or an input's or output's name, and behind it a
column's. A name of the manifest means every field whose path is the name, or ends with a dot and the name: "email" is
every field of that name, "user.email" only the one under "user". What lies under a field goes with it.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tailcut.errors import StartError
from tailcut.observe.request_log.values import HASHED, to_json

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
