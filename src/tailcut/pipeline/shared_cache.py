"""Answers in a store that several servers share: written as typed bytes, with the end of their life by the wall clock.

A value is never unpickled: an answer by entity is its JSON, tensors are their names, dtypes, shapes and raw bytes.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from tailcut.cache import BypassedStore
from tailcut.common.json_values import is_json
from tailcut.common.tensors import DATATYPE_OF, Arrays
from tailcut.models.tensor_bytes import array_of

V = TypeVar("V")

_MOST_WRITES = 64
"""Writes under way; more are let go: they are worth less than what they would hold up."""


class StoredAnswer(msgspec.Struct, array_like=True, frozen=True):
    """One entry. Ages are told by wall clocks, the only ones that servers share."""

    until_wall_s: float
    ttl_s: float
    value: bytes


class Form(NamedTuple, Generic[V]):
    """How values are written.

    Attributes:
        pack: writes a value; None where it has no exact form.
        unpack: reads a value; None where it is none.
    """

    pack: Callable[[V], bytes | None]
    unpack: Callable[[bytes], V | None]


def _unpack_json(raw: bytes) -> msgspec.Raw | None:
    """Take the text if it is JSON: it becomes a part of replies as it is."""
    return msgspec.Raw(raw) if is_json(raw) else None


class _StoredTensor(msgspec.Struct, array_like=True, frozen=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


_decode = msgspec.msgpack.Decoder(list[_StoredTensor]).decode


def _pack_tensors(value: Arrays) -> bytes | None:
    """Write all arrays; None where one has a dtype or an element that no protocol has."""
    tensors = []
    for name, array in value.items():
        datatype = DATATYPE_OF.get(array.dtype)
        elements = array.ravel().tolist() if array.dtype.hasobject else []
        if datatype is None or not all([type(element) in (str, bytes) for element in elements]):
            return None
        try:
            data = msgspec.msgpack.encode(elements) if datatype == "BYTES" else array.tobytes()
        except UnicodeEncodeError:  # half a surrogate pair
            return None
        tensors.append(_StoredTensor(name, datatype, array.shape, data))
    return msgspec.msgpack.encode(tensors)


def _unpack_tensors(raw: bytes) -> Arrays | None:
    """Read what ``_pack_tensors`` has written."""
    try:
        tensors = _decode(raw)
        # Copies, because what is made of bytes cannot be written to, and a hook may change its outputs in place.
        return {tensor.name: array_of(tensor.datatype, tensor.shape, tensor.data).copy() for tensor in tensors}
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, ValueError, TypeError):
        return None


JSON: Form[msgspec.Raw] = Form(bytes, _unpack_json)
"""Answers by entity, as they are on the wire."""

TENSORS: Form[Arrays] = Form(_pack_tensors, _unpack_tensors)
"""Output arrays by name."""


class SharedCache(Generic[V]):
    """The level behind this process's memory. It never fails, and no request waits longer for it than its time-out.

    Args:
        store: owned by this object; two caches may have the same.
        scope: part of every key: what an answer depends on beside the deployment version.
        ttl_s: longest life of an entry, whatever another server thought.
    """

    def __init__(
        self,
        store: BypassedStore[StoredAnswer],
        form: Form[V],
        *,
        scope: bytes,
        ttl_s: float,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.hits = 0
        self.dropped = 0
        """Writes that were let go because too many were under way."""
        self._form = form
        self._prefix = b"P" + scope
        self._ttl_s = ttl_s
        self._wall_s = wall_s
        self._writes: set[asyncio.Task[None]] = set()

    @property
    def timeout_s(self) -> float:
        """Longest wait for a look-up."""
        return self.store.timeout_s

    async def get_many(self, keys: Sequence[bytes]) -> list[tuple[V, float] | None]:
        """Look all keys up in one round trip: each value with the seconds that it has left."""
        stored = await self.store.get_many([self._prefix + key for key in keys])
        found = [self._read(each) for each in stored]
        self.hits += len(found) - found.count(None)
        return found

    def put_later(self, items: Sequence[tuple[bytes, V, float]]) -> None:
        """Write (key, value, seconds to live) of each item, beside the requests."""
        if not items:
            return
        if len(self._writes) >= _MOST_WRITES:
            self.dropped += len(items)
            return
        wall_s = self._wall_s()
        packed = [(key, self._form.pack(value), life_s) for key, value, life_s in items]
        task = asyncio.get_running_loop().create_task(
            self.store.put_many(
                [
                    (self._prefix + key, StoredAnswer(wall_s + life_s, life_s, raw), life_s)
                    for key, raw, life_s in packed
                    if raw is not None
                ]
            )
        )
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def close(self) -> None:
        """Let writes end, within the store's time-out, and close the store."""
        if self._writes:
            await asyncio.wait(self._writes, timeout=self.timeout_s)
        await self.store.close()

    def _read(self, stored: StoredAnswer | None) -> tuple[V, float] | None:
        if stored is None or not (math.isfinite(stored.until_wall_s) and math.isfinite(stored.ttl_s)):
            return None
        # A writer's clock that is ahead never makes an entry live longer than its TTL from now.
        left_s = min(stored.until_wall_s - self._wall_s(), stored.ttl_s, self._ttl_s)
        if left_s <= 0:
            return None
        value = self._form.unpack(stored.value)
        return None if value is None else (value, left_s)
