"""What requests call: queries, addresses, cache commands and models, those that differ in a value only as one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.common.statistics import percentile
from tailcut.profiler.attribution.span_table import Flat, Ints, Name
from tailcut.profiler.attribution.stages import Attribution
from tailcut.profiler.payloads.query_text import normalise_address, normalise_command, normalise_query
from tailcut.profiler.records import FETCHING, Stage

_CALLED = frozenset({Stage.SQL, Stage.CACHE, Stage.HTTP, Stage.PREPROCESS, Stage.MODEL})
_SHOWN: dict[Stage, Callable[[str], str]] = {
    Stage.SQL: normalise_query,
    Stage.HTTP: normalise_address,
    Stage.CACHE: normalise_command,
}
_AROUND = ("connect (", "begin", "commit", "rollback", "savepoint", "release", "prepare ")
"""How statements begin that fetch nothing, but stand around one that does."""
_WRITES = frozenset({
    "insert", "update", "delete", "merge", "replace", "upsert", "truncate", "create", "drop", "alter", "call", "exec",
    "execute", "do",
})  # fmt: skip
_WRITES_INSIDE = re.compile(
    r"\b(?:insert into|delete from|merge into|update \S+(?: (?:as )?\w+)? set|copy .* from)\b|\bnextval ?\("
)
_COMMANDS = frozenset({
    "copy", "set", "reset", "unlisten", "listen", "notify", "close", "vacuum", "analyze", "lock", "pragma",
})  # fmt: skip
_PINGS = frozenset({"select 1", "select ?"})
_RESETS = ("select pg_advisory_unlock_all",)
"""Queries of pools, which see whether a connection is alive and put it back as it was."""
_STORES = frozenset({
    "set", "setex", "psetex", "setnx", "mset", "getset", "set_many", "add", "append", "replace", "cas", "del", "delete",
    "unlink", "incr", "incrby", "decr", "expire", "pexpire", "hset", "hmset", "hdel", "lpush", "rpush", "lpop", "rpop",
    "hincrby", "hsetnx", "getdel", "lrem", "eval", "evalsha", "sadd", "srem", "zadd", "zrem", "xadd", "publish", "ping",
    "select", "auth", "hello", "client",
})  # fmt: skip
"""Commands of caches that ask for nothing that could be kept."""


class CallTotals(msgspec.Struct, frozen=True, kw_only=True):
    """One query, address, cache command or model: how often and how long, all requests together.

    Rows that are read of a query are part of it, also where that is another call of the driver's.
    """

    stage: Stage
    text: str
    place: str
    calls: int
    per_request: float
    total_ms: float
    mean_ms: float
    p95_ms: float


def shown_label(stage: Stage, label: str) -> str:
    """A label without what differs from call to call."""
    shown = _SHOWN.get(stage)
    return shown(label) if shown else label


def calls_of(found: Attribution) -> tuple[CallTotals, ...]:
    """Count and time them, all requests together; by total time."""
    flat = found.flat
    heads = heads_of(flat)
    took_ns = np.bincount(heads, weights=flat.end_ns - flat.start_ns, minlength=len(heads))
    groups: defaultdict[Name, list[int]] = defaultdict(list)
    for number, name in enumerate(flat.names):
        if name.stage in _CALLED:
            groups[Name(name.stage, shown_label(name.stage, name.label), name.place)].append(number)
    first = np.flatnonzero(heads == np.arange(len(heads)))
    order = first[np.argsort(flat.name[first], kind="stable")]
    edges = np.searchsorted(flat.name[order], np.arange(len(flat.names) + 1))
    calls = []
    for name, numbers in groups.items():
        took_ms = np.concatenate([took_ns[order[edges[one] : edges[one + 1]]] for one in numbers]) / 1e6
        if not len(took_ms):
            continue
        calls.append(
            CallTotals(
                stage=name.stage,
                text=name.label,
                place=name.place,
                calls=len(took_ms),
                per_request=len(took_ms) / len(flat.requests),
                total_ms=float(took_ms.sum()),
                mean_ms=float(took_ms.mean()),
                p95_ms=percentile(took_ms, 0.95),
            )
        )
    return tuple(sorted(calls, key=lambda call: -call.total_ms))


def most_fetches(found: Attribution) -> int:
    """Say how often one request fetches something, at most; writes, and what stands around others, fetch nothing."""
    flat = found.flat
    asks = flat.which(is_fetch)
    heads = heads_of(flat) == np.arange(len(flat.name))
    return int(np.bincount(flat.request[asks & heads], minlength=1).max())


def is_around(name: Name) -> bool:
    """Tell a statement that fetches nothing but stands around one that does, such as COMMIT."""
    return name.stage == Stage.SQL and name.label.lstrip().lower().startswith(_AROUND)


def is_fetch(name: Name) -> bool:
    """Tell a call whose answer could be kept from writes, pings and what stands around others."""
    if name.stage not in FETCHING or is_around(name) or is_write(name):
        return False
    text = _plain(name)
    first = text.partition(" ")[0]
    if name.stage == Stage.CACHE:
        return first not in _STORES
    return name.stage == Stage.HTTP or not (first in _COMMANDS or text.startswith(_RESETS) or text in _PINGS)


def is_write(name: Name) -> bool:
    """Tell a statement that changes a database; what is put into a cache is none, as it is there to be lost."""
    if name.stage != Stage.SQL:
        return False
    text = _plain(name)
    return text.partition(" ")[0] in _WRITES or _WRITES_INSIDE.search(text) is not None


def _plain(name: Name) -> str:
    """What is called in small letters, from its first word on, without comments and values."""
    return shown_label(name.stage, name.label).strip(" ;(").lower()


def heads_of(flat: Flat) -> Ints:
    """Find the span of the call that each span is part of: itself, or where it is more of one, that one; shape [spans].

    Which one, its name says: the last of the same request before it that asks for the same.
    """
    itself = np.arange(len(flat.name), dtype=np.int64)
    more = _more(flat)
    if not more.any():
        return itself
    asked: dict[tuple[Stage, str], int] = {}
    by_name = [asked.setdefault((one.stage, shown_label(one.stage, one.label)), len(asked)) for one in flat.names]
    what = np.array(by_name, dtype=np.int64)[flat.name]
    order = np.lexsort((flat.start_ns, what, flat.request))
    same = np.zeros(len(order), dtype=bool)
    same[1:] = (flat.request[order][1:] == flat.request[order][:-1]) & (what[order][1:] == what[order][:-1])
    begins = ~(more[order] & same)
    heads = itself.copy()
    heads[order] = order[np.maximum.accumulate(np.where(begins, itself, 0))]
    return heads


def _more(flat: Flat) -> npt.NDArray[np.bool_]:
    spans = (span.more for one in flat.requests for span in one.spans)
    return np.fromiter(spans, bool, len(flat.name))
