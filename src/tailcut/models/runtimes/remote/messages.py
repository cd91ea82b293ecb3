"""What parent and child tell each other, as MessagePack: typed, checked when it is read, and never pickled."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tailcut.errors import ArtifactError, InferenceError, MissingExtra, TailcutError
from tailcut.models.runtimes.base import OpenSpec

_LENGTH = struct.Struct("<I")
_LARGEST_BYTES = 64 * 1024 * 1024


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """Where a tensor lies in shared memory. A BYTES tensor is a MessagePack list of its elements there."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


class OpenVariant(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Parent to child, once: the variant to open. ``deployment`` and ``directory`` are the manifest's.

    ``code`` is what the child may run of the user's: SHA-256 by path from the manifest's folder.
    """

    variant: OpenSpec
    threads: int
    deployment: dict[str, Any]
    directory: Path
    code: dict[str, str] = {}


class RunBatch(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Parent to child: one batch. ``size_bytes`` is how large the parent's shared memory is now."""

    tensors: tuple[Placed, ...]
    outputs: tuple[str, ...]
    size_bytes: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Child to parent: the variant is open."""


class Ran(msgspec.Struct, frozen=True, tag=True):
    """Child to parent: what a batch gave, when it began and ended (CLOCK_MONOTONIC, one clock for all processes)."""

    tensors: tuple[Placed, ...]
    size_bytes: int
    started_ns: int
    finished_ns: int


class BatchFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Child to parent: the variant cannot be opened, or a batch failed.

    ``cause`` names the class of what the model or its library raised; empty where tailcut itself refused.
    """

    code: str
    message: str
    hint: str
    detail: str = ""
    cause: str = ""
    started_ns: int = 0
    finished_ns: int = 0

    @property
    def error(self) -> TailcutError:
        """The error as the child raised it."""
        found = _ERRORS.get(self.code, InferenceError)(self.message, hint=self.hint, detail=self.detail)
        if self.cause:
            # Whoever answers clients names the class only: what the model said may hold anything.
            found.__cause__ = type(self.cause, (Exception,), {})(self.message)
        return found


_ERRORS: dict[str, type[TailcutError]] = {kind.code: kind for kind in (ArtifactError, MissingExtra, InferenceError)}

Reply = Ready | Ran | BatchFailed

_encoder = msgspec.msgpack.Encoder(enc_hook=os.fspath)


def opening_of(body: bytes) -> OpenVariant:
    """Read the message of a variant to open."""
    return msgspec.msgpack.decode(body, type=OpenVariant, dec_hook=lambda _, path: Path(path))


def frame(message: msgspec.Struct) -> bytes:
    """Return a message with its length before it."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes in; yield the messages that are whole now.

        Raises:
            ValueError: a length that no message of ours has: the stream is not one of ours.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer)
            if size > _LARGEST_BYTES:
                raise ValueError(f"a message of {size} bytes, the limit is {_LARGEST_BYTES}")
            end = _LENGTH.size + size
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield body
