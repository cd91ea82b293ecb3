"""What is kept per (group, key, tenant): in memory, and in a form for a store outside this process."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import msgspec

_CLOCKS_APART_SHARE = 0.1
"""By this share of its TTL a value may live longer because of clocks that differ."""

Row = dict[str, Any]
"""Feature columns of one group. Shared between requests: never change one."""


class Entry:
    """A group's row for one key, or the knowledge that there is none (``row`` is None)."""

    __slots__ = ("fresh_until_s", "row", "ttl_s")

    is_stale = False
    """Whether the source itself gave the row as one past its TTL."""

    def __init__(self, row: Row | None, fresh_until_s: float, ttl_s: float) -> None:
        self.row = row
        self.fresh_until_s = fresh_until_s
        self.ttl_s = ttl_s

    @property
    def size_bytes(self) -> int:
        """Memory that the row takes, about."""
        if self.row is None:
            return 64
        return 64 + sys.getsizeof(self.row) + sum(map(_size_bytes, self.row.values()))


class StaleEntry(Entry):
    """A row that was past its TTL when the source gave it."""

    __slots__ = ()
    is_stale = True


@dataclass(frozen=True, slots=True)
class FetchFailure:
    """Why there is no entry. A value, not an exception: many waiters share it and each raises its own."""

    message: str
    kind: str = ""
    """The exception's class, where what it said is part of ``message``."""
    timed_out: bool = False
    key_type: bool = False
    """Whether the key's type was wrong, which is the client's fault where the key is the entity."""
    unreachable: bool = False
    """Whether it is the database that all groups share."""
    retry_s: float | None = None
    """When there may be room, where the source has none now."""
    hint: str = ""
    """The way out, where there is one of its own."""
    misfit: bool = False
    """Whether the group asks for what its model does not take or give."""
    cause: BaseException | None = None
    """What the user's own function raised, for the log."""


Outcome = Entry | FetchFailure


class StoredEntry(msgspec.Struct, array_like=True):
    """An entry outside this process. Ages are told by wall clocks, the only ones that processes share."""

    written_wall_s: float
    ttl_s: float
    values: list[Any] | None


def to_stored(entry: Entry, now_s: float, wall_s: float) -> StoredEntry:
    """Write an entry down."""
    written_wall_s = wall_s - (now_s - (entry.fresh_until_s - entry.ttl_s))
    return StoredEntry(written_wall_s, entry.ttl_s, None if entry.row is None else list(entry.row.values()))


def from_stored(
    stored: StoredEntry, columns: tuple[str, ...], longest_life_s: float, now_s: float, wall_s: float
) -> Entry | None:
    """Read an entry back; None when it cannot have been written by this group.

    A value whose writer's clock is ahead by more than a small part of its TTL is past its TTL: how old it is cannot be
    told, and with a full TTL at every look-up it would never expire.

    Args:
        longest_life_s: more than any TTL of the group can be; infinity where it is not known.
    """
    if not (math.isfinite(stored.written_wall_s) and 0 <= stored.ttl_s <= longest_life_s):
        return None
    if stored.values is not None and len(stored.values) != len(columns):
        return None
    left_s = stored.written_wall_s + stored.ttl_s - wall_s
    if left_s > stored.ttl_s:
        ahead_s = left_s - stored.ttl_s
        left_s = stored.ttl_s if ahead_s <= _CLOCKS_APART_SHARE * stored.ttl_s else 0.0
    row = None if stored.values is None else dict(zip(columns, map(_frozen, stored.values), strict=True))
    return Entry(row, now_s + left_s, stored.ttl_s)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if type(value) is list else value


def _size_bytes(value: Any) -> int:
    size = sys.getsizeof(value)
    return size + sum(map(_size_bytes, value)) if type(value) is tuple else size
