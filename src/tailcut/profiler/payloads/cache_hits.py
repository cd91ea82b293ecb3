"""Which requests a cache would have answered: the log of payloads, played through one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.profiler.payloads.diversity import WHOLE, Diversity, key_of
from tailcut.profiler.payloads.fields import tables_of, values_of

_BODY = "body."


def entity_field(diversity: Diversity) -> str:
    """Name the field that alone tells requests apart: what they ask about. Else the whole payload."""
    varying = [stream.name for stream in diversity.streams[1:] if not stream.constant]
    # Of a load to several paths: what is asked about is in the body, and keys have the path beside it.
    within = [name for name in varying if name.startswith(_BODY)]
    if within and "path" in varying:
        varying.remove("path")
    return varying[0] if len(varying) == 1 else WHOLE


def keys_of(bodies: Sequence[bytes], field: str = WHOLE) -> list[list[int]]:
    """What each request looks up: its values of a field, or itself where it has none or is not JSON."""
    known: dict[bytes, list[int]] = {}
    return [known[body] if body in known else known.setdefault(body, _keys(body, field)) for body in bodies]


def answered_shares(
    keys: Sequence[Sequence[int]], at_s: npt.NDArray[np.float64], *, life_s: float, size: int
) -> npt.NDArray[np.float64]:
    """Share of each request's look-ups that a cache answers, shape [n].

    Args:
        keys: of each request; at least one.
        at_s: when requests come, ascending, shape [n].
        life_s, size: of the cache's entries, and how many it holds.
    """
    counts = np.array([len(one) for one in keys], dtype=np.int64)
    flat = [key for one in keys for key in one]
    hits = cache_hits(flat, np.repeat(at_s, counts), life_s=life_s, size=size)
    if not len(counts):
        return np.zeros(0)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)[:-1]])
    return np.add.reduceat(hits.astype(np.float64), starts) / counts


def cache_hits(
    keys: Sequence[int], at_s: Sequence[float] | npt.NDArray[np.float64], *, life_s: float, size: int
) -> npt.NDArray[np.bool_]:
    """Play a cache bounded in both ways: entries live ``life_s``, the least recently used of ``size`` is evicted.

    Args:
        keys: looked up one after the other, shape [n].
        at_s: when, ascending, shape [n].

    Returns:
        Whether each look-up was answered from the cache, shape [n].
    """
    born_s: OrderedDict[int, float] = OrderedDict()
    hits = np.zeros(len(keys), dtype=bool)
    for number, (key, now_s) in enumerate(zip(keys, at_s, strict=True)):
        born = born_s.get(key)
        if born is not None and now_s - born < life_s:
            hits[number] = True
        else:
            born_s[key] = float(now_s)
        born_s.move_to_end(key)
        if len(born_s) > size:
            born_s.popitem(last=False)
    return hits


def _keys(body: bytes, field: str) -> list[int]:
    if field != WHOLE:
        try:
            payload = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return [key_of(body)]
        looked_up = values_of(payload, tables_of(field))
        path = payload.get("path") if field.startswith(_BODY) and isinstance(payload, dict) else None
        found = [key_of(msgspec.json.encode((path, value))) for name, value in looked_up if name == field]
        if found:
            return found
    return [key_of(body)]
