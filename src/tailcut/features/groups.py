"""A feature group as the service works with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tailcut.cache.freshness import is_valid_ttl
from tailcut.features.entry import Entry, Row
from tailcut.features.key_types import KeyType
from tailcut.features.preload import PreloadedRows
from tailcut.features.sources.base import Key, Source, SourceError
from tailcut.manifest.levels import groups_in_levels
from tailcut.manifest.schema import FeatureGroup, Features


class KeyProblem(ValueError):
    """A part of a group's key is not of its type."""

    def __init__(self, column: str, value: object, kind: KeyType, why: str) -> None:
        self.column = column
        self.kind = kind
        super().__init__(f'"{column}" is {value!r}, which is no {kind.name}{f": {why}" if why else ""}')


NOT_PLANNED = -math.inf
"""Stands for the time of a refresh that is not planned, or under way."""


class Usage:
    """One key of a group that is in use; see ``refresh.UsageTable``."""

    __slots__ = ("due_s", "fresh_until_s", "group", "interval_s", "key", "last_asked_s", "store_key", "tenant", "ttl_s")

    def __init__(self, group: Group, key: Key, store_key: bytes, tenant: str, entry: Entry, now_s: float) -> None:
        self.group = group
        self.key = key
        self.store_key = store_key
        self.tenant = tenant
        self.last_asked_s = now_s
        self.interval_s = 0.0
        self.ttl_s = entry.ttl_s
        self.fresh_until_s = entry.fresh_until_s
        self.due_s = NOT_PLANNED


@dataclass(slots=True)
class GroupStatistics:
    """One group since the start; the group counts in its own, others get copies."""

    name: str
    entity_type: str
    """The key's columns joined by "+"."""
    hits: int = 0
    """Look-ups answered fresh from the cache (or the preloaded table)."""
    misses: int = 0
    """Look-ups that found nothing fresh."""
    stale_served: int = 0
    """Values served past their TTL because the source failed."""
    errors: int = 0
    """Source calls that failed or timed out, in whole or for a key."""
    refreshes: int = 0
    """Keys that were refreshed in the background."""
    single_flight_joins: int = 0
    """Misses that waited for a call under way instead of making their own."""
    source_calls: int = 0
    source_keys: int = 0
    source_s: float = 0.0
    """Seconds spent in source calls, summed."""
    in_use: int = 0
    """Keys that are kept fresh in the background now."""


@dataclass(slots=True, eq=False)
class Group:
    """One group: its definition, where it comes from, and how it has been doing."""

    spec: FeatureGroup
    own_id: bytes
    """A hash of the definition: a store that several deployments share never mixes two groups of one name."""
    source: Source
    ttl: float | Callable[..., Any]
    table: PreloadedRows | None = None
    """Set for a preloaded group, which is looked up here and nowhere else."""
    by_entity: bool = True
    """Whether the key consists of entity fields only."""
    key_is_entity: bool = False
    """Whether the key is the entity's fields, all and in order and as they are."""
    converted: tuple[int, ...] = ()
    """Parts of the key whose type differs from that of the column of a request's row."""
    counters: GroupStatistics = field(init=False)
    usages: dict[bytes, Usage] = field(default_factory=dict)
    recent_source_s: float = 0.0
    failures: int = 0
    """Source calls in a row that failed as a whole."""
    retry_at_s: float = 0.0
    """While it fails: not asked in the background before this."""
    default_row: Row | None = field(init=False)
    """Values for a key without a row; None where such a key is unknown."""

    def __post_init__(self) -> None:
        self.counters = GroupStatistics(self.name, "+".join(self.spec.key))
        defaults = self.spec.defaults
        # In the columns' order, as rows from sources have them: stores keep values without names.
        self.default_row = {column: defaults[column] for column in self.spec.columns} if defaults else None

    @property
    def id(self) -> bytes:
        """The hash of the definition, and the version of the model that the values come from, where it is a model."""
        return self.own_id if self.is_fixed else self.own_id + self.source.version  # type: ignore[attr-defined]

    @property
    def is_fixed(self) -> bool:
        """Whether its values come from something that has no versions."""
        return not self.spec.model

    @property
    def name(self) -> str:
        """The group's name."""
        return self.spec.name

    @property
    def longest_ttl_s(self) -> float:
        """No TTL of this group is longer."""
        return self.ttl if isinstance(self.ttl, float) else math.inf

    def tenant_of(self, tenant: str) -> str:
        """The tenant as far as this group is concerned."""
        return tenant if self.spec.per_tenant else ""

    @property
    def key_types(self) -> tuple[KeyType, ...]:
        """Types of the key where it is looked up: in the table, else in the source."""
        return self.source.key_types if self.table is None else self.table.key_types

    def key_of(self, row: Row) -> Key:
        """The key in a row that has all its columns, in normal form. None and NaN stay.

        Raises:
            KeyProblem: a part is not of its type.
        """
        key = tuple([row[column] for column in self.spec.key])
        return self._converted(key) if self.converted else key

    def _converted(self, key: Key) -> Key:
        parts = list(key)
        types = self.key_types
        for at in self.converted:
            value = parts[at]
            if is_null(value):
                continue
            try:
                parts[at] = types[at].stored(value)
            except ValueError as error:
                raise KeyProblem(self.spec.key[at], value, types[at], str(error)) from error
        return tuple(parts)

    def ttl_s(self, key: Key, row: Row) -> float:
        """How long this row is fresh.

        Raises:
            SourceError: the TTL function raised, or returned something else than seconds.
        """
        if isinstance(self.ttl, float):
            return self.ttl
        try:
            ttl_s = self.ttl(key, dict(row))
        except (Exception, SystemExit) as error:  # a function that wants to exit must not take the server along
            raise SourceError(f"ttl function {self.spec.ttl} raised {type(error).__name__}: {error}") from error
        if not is_valid_ttl(ttl_s):
            raise SourceError(f"ttl function {self.spec.ttl} returned {ttl_s!r}; it must return seconds, 0 or more")
        return float(ttl_s)

    def statistics(self) -> GroupStatistics:
        """Snapshot of the counters."""
        return replace(self.counters, in_use=len(self.usages))


def has_no_row(key: Key) -> bool:
    """Whether a key has a NULL or NaN part, which equals nothing: no source has a row for it, so none is asked."""
    return any(map(is_null, key))


def is_null(part: object) -> bool:
    """Whether a part of a key is NULL or NaN."""
    return part is None or (isinstance(part, float) and math.isnan(part))


def levels_of(features: Features, groups: Sequence[Group]) -> list[list[Group]]:
    """Put groups into levels: each level's keys are known once the levels before it are fetched.

    With ``features.concurrent`` off every group is its own level, so that they are fetched strictly one by one.
    """
    by_name = {group.name: group for group in groups}
    levels = [[by_name[spec.name] for spec in level] for level in groups_in_levels(features)]
    return levels if features.concurrent else [[group] for level in levels for group in level]
