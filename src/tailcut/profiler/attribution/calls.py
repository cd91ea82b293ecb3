"""What requests call: queries, addresses, cache commands and models, those that differ in a value only as one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import urlsplit

import msgspec
import numpy as np

from tailcut.common.statistics import percentile
from tailcut.profiler.attribution.span_table import Flat, Floats, Ints, Name
from tailcut.profiler.attribution.stages import Attribution
from tailcut.profiler.records import FETCHING, Stage

# Fingerprints of statements and addresses: values are left out, so that those that differ only in a value count as one.
#
# What may be a name or a value is treated as a value, because people pass profiles on to others.

_LONGEST = 2000
_TOKENS = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))
    |(?P<name>"[A-Za-z_][\w$]*"|`[A-Za-z_][\w$ -]*`|\[[A-Za-z_][\w$ ]*\])
    |(?P<text>[eEnNxXbB]?'(?:[^'\\]|''|\\[^'])*+'|"(?:[^"\\]|""|\\[^"])*+"|`[^`]*`
        |\$(?P<tag>(?:[A-Za-z_]\w*)?)\$.*?\$(?P=tag)\$)
    |(?P<open>[eEnNxXbB]?'.*|".*|`.*|\$(?:[A-Za-z_]\w*)?\$.*)
    |(?P<mark>\$\d+|%\(\w+\)s|%s|(?<![:\w]):[A-Za-z_]\w*|\?\d*)
    |(?P<number>\b0[xX][0-9a-fA-F]+|(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?\b)
    |(?P<space>\s+)""",
    re.VERBOSE | re.DOTALL,
)
"""A text that is not closed (it was cut off), or holds a quote after a backslash (which ends it in some databases and
not in others), is a value up to the end."""
_LISTS = re.compile(r"\(\s*\?(?:\s*,\s*\?)+\s*\)")
_ROWS = re.compile(r"\(\?…?\)(?:\s*,\s*\(\?…?\))+")
_NAME_AFTER = re.compile(
    r"(?:\.|\b(?:SELECT|DISTINCT|FROM|JOIN|INTO|UPDATE|TABLE|AS|BY|SET|WHERE|ON|ONLY|USING|RETURNING|HAVING))\s*\Z",
    re.I,
)
_NAME_BEFORE = re.compile(r"\s*(?:\.|[=<>!]|\b(?:AS|IS|IN|LIKE|NOT|BETWEEN|ASC|DESC)\b)", re.I)
_PLAIN_SEGMENT = re.compile(r"[A-Za-z_-]{1,40}(?:\.[a-z]{1,5})?|v\d{1,3}", re.ASCII)
_HEX = re.compile(r"[0-9a-fA-F-]{8,}", re.ASCII)
_PIPELINE = re.compile(r"pipeline of \d+ \((.*)\)", re.DOTALL)


@lru_cache(maxsize=4096)
def normalise_query(text: str) -> str:
    """Put '?' for every value and parameter of an SQL text, one for a list of them; drop comments and line breaks."""
    cut = text[:_LONGEST]

    def plain(found: re.Match[str]) -> str:
        kind = found.lastgroup
        if kind in ("comment", "space"):
            return " "
        if kind == "name" and (found.group()[0] != '"' or _is_name(cut, found.start(), found.end())):
            return found.group()
        return "?…" if kind == "open" else "?"

    shown = _TOKENS.sub(plain, cut)
    shown = _ROWS.sub("(?…), …", _LISTS.sub("(?…)", shown))
    return " ".join(shown.split()).rstrip("; ")


@lru_cache(maxsize=4096)
def normalise_address(text: str) -> str:
    """Drop user, password and what follows '?', and put '{}' for the parts of a path that are no plain words."""
    method, _, rest = text.rpartition(" ")
    if method == "gRPC":
        return text
    parts = urlsplit(rest)
    path = "/".join(_segment(segment) for segment in parts.path.split("/"))
    # Not ``hostname`` and ``port``: those raise where the text is no address.
    host = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else ""
    return f"{method} {host}{path}".strip()


@lru_cache(maxsize=4096)
def normalise_command(text: str) -> str:
    """Keep a cache command's name, of a pipeline those of its commands; drop how many, and keys and values."""
    pipeline = _PIPELINE.fullmatch(text)
    if pipeline is None:
        return text.partition(" ")[0]
    return f"pipeline ({', '.join(one.partition(' ')[0] for one in pipeline[1].split(', '))})"


def _is_name(text: str, start: int, end: int) -> bool:
    """Whether double quotes are around a name, as in the standard, and not a text, as MySQL and SQLite take it."""
    before, after = text[:start], text[end:]
    if _NAME_AFTER.search(before) or _NAME_BEFORE.match(after):
        return True
    # In a list of columns; what stands in brackets may be a list of values.
    return before.rstrip().endswith(",") and before.count("(") <= before.count(")")


def _segment(segment: str) -> str:
    kept = not segment or (_PLAIN_SEGMENT.fullmatch(segment) and not _HEX.fullmatch(segment))
    return segment if kept else "{}"


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
    took_ns, groups = grouped_calls(flat, lambda name: name.stage in _CALLED)
    calls = []
    for name, spans in groups.items():
        took_ms = took_ns[spans] / 1e6
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


def grouped_calls(flat: Flat, chosen: Callable[[Name], bool]) -> tuple[Floats, dict[Name, Ints]]:
    """Group calls by names without what differs from call to call.

    Args:
        chosen: tells which names' calls are grouped.

    Returns:
        how long each span's call took, with all that is more of it, shape [spans]; the first spans of each group's
        calls.
    """
    heads = heads_of(flat)
    took_ns = np.bincount(heads, weights=flat.end_ns - flat.start_ns, minlength=len(heads))
    first = np.flatnonzero(heads == np.arange(len(heads)))
    first = first[np.argsort(flat.name[first], kind="stable")]
    edges = np.searchsorted(flat.name[first], np.arange(len(flat.names) + 1))
    groups: defaultdict[Name, list[Ints]] = defaultdict(list)
    for number, name in enumerate(flat.names):
        if chosen(name) and edges[number] < edges[number + 1]:
            shown = Name(name.stage, shown_label(name.stage, name.label), name.place)
            groups[shown].append(first[edges[number] : edges[number + 1]])
    return took_ns.astype(np.float64), {name: np.concatenate(spans) for name, spans in groups.items()}


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
    more = np.fromiter((span.more for one in flat.requests for span in one.spans), bool, len(flat.name))
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
