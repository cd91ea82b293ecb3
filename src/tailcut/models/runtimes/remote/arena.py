"""Shared memory for the tensors of one batch: one side writes, the other reads, and it grows where a batch needs it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from math import prod

import msgspec
import numpy as np

from tailcut.common.tensors import DATATYPE_OF, Array, Arrays
from tailcut.models.runtimes.remote.messages import Placed
from tailcut.models.tensor_bytes import array_of

_ALIGN_BYTES = 64
"""Of a tensor's first byte: a cache line, and what vector instructions like."""

_LEAST_BYTES = 1 << 16


class Arena:
    """One memory file, mapped.

    Args:
        descriptor: of the file, to hand to the child; owned from now on.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None
        self.size_bytes = 0

    @classmethod
    def make(cls) -> Arena:
        """Make the file, with no name that anybody else could open."""
        return cls(os.memfd_create("tailcut-tensors", os.MFD_CLOEXEC))

    def put(self, parts: Sequence[Arrays], names: Sequence[str]) -> tuple[Placed, ...]:
        """Write tensors, each the concatenation of its parts along the first dimension.

        Raises:
            OSError: there is no memory for them.
        """
        encoded: dict[str, bytes] = {}
        placed: list[Placed] = []
        at = 0
        for name in names:
            first = parts[0][name]
            shape = (sum([len(part[name]) for part in parts]), *first.shape[1:])
            if first.dtype.hasobject:
                encoded[name] = msgspec.msgpack.encode([value for part in parts for value in part[name].ravel()])
                datatype, size = "BYTES", len(encoded[name])
            else:
                datatype, size = DATATYPE_OF[first.dtype], prod(shape) * first.dtype.itemsize
            placed.append(Placed(name, datatype, shape, at, size))
            at += -(-size // _ALIGN_BYTES) * _ALIGN_BYTES
        self._reserve(at)
        for place in placed:
            if place.name in encoded:
                self._view(place)[:] = encoded[place.name]
            else:
                np.concatenate([part[place.name] for part in parts], out=self._array(place))
        return tuple(placed)

    def get(self, placed: Sequence[Placed], size_bytes: int) -> Arrays:
        """Return tensors that the other side wrote, as views: valid until the next batch.

        Args:
            size_bytes: of the file, as the other side knows it.

        Raises:
            ValueError: a tensor is not where it is said to be.
        """
        if size_bytes > self.size_bytes:
            self._remap(size_bytes)
        return {place.name: self._array(place) for place in placed}

    def close(self) -> None:
        """Close the file; arrays that are still alive keep their memory."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor, self._map, self.size_bytes = -1, None, 0

    def _reserve(self, size_bytes: int) -> None:
        if size_bytes > self.size_bytes or self._map is None:
            # Half as much again, so that slowly growing batches do not map anew each time.
            wanted = max(size_bytes + size_bytes // 2, _LEAST_BYTES)
            os.posix_fallocate(self.descriptor, 0, wanted)  # a hole would kill the writer where memory is short
            self._remap(wanted)

    def _remap(self, size_bytes: int) -> None:
        # The old mapping is dropped, not closed: arrays may still look into it.
        self._map = mmap.mmap(self.descriptor, size_bytes)
        self.size_bytes = size_bytes

    def _view(self, place: Placed) -> memoryview:
        if self._map is None or place.offset < 0 or place.offset + place.size_bytes > self.size_bytes:
            raise ValueError(f"tensor {place.name!r} ends outside of the shared memory of {self.size_bytes} bytes")
        return memoryview(self._map)[place.offset : place.offset + place.size_bytes]

    def _array(self, place: Placed) -> Array:
        return array_of(place.datatype, place.shape, self._view(place))
