"""The feature stage: entities in, rows of features out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Any

from tailcut.cache.bypass import BypassedStore, Store
from tailcut.cache.keys import feature_key
from tailcut.cache.memory import MemoryStore
from tailcut.cache.redis import open_redis
from tailcut.errors import BadRequest, ManifestError, StartError
from tailcut.features.cached import EntryCache
from tailcut.features.calls import Calls
from tailcut.features.entry import Entry, Outcome, StoredEntry
from tailcut.features.group_times import GroupTimes
from tailcut.features.groups import Group, KeyProblem, levels_of
from tailcut.features.key_types import KeyType
from tailcut.features.level import LevelFetcher, Rows
from tailcut.features.line import Lookup
from tailcut.features.outages import Outages
from tailcut.features.refresh import UNKNOWN_TTL_S, Refresher, UsageTable, tick_s
from tailcut.features.source_opener import CodeOf, Models, Opener, Resolve
from tailcut.features.sources.base import SourceError
from tailcut.features.statistics import FeatureStatistics
from tailcut.manifest.schema import Features


@dataclass(slots=True)
class FeatureSet:
    """Rows of features for the entities asked for, in their order."""

    rows: list[dict[str, Any]]
    """Per entity: all columns of all groups and the entity's own fields."""
    fresh_for_s: list[float]
    """Per entity: least remaining TTL over its groups in seconds; 0 when stale, infinite without groups."""
    stale: list[bool]
    """Per entity: whether any group's value was served past its TTL."""
    hits: int
    misses: int


class FeatureService:
    """All feature groups of a deployment. Owned by the event loop that opened it."""

    def __init__(self, features: Features, groups: list[Group], opener: Opener, cache: EntryCache, seed: int) -> None:
        self._features = features
        self._types = opener.field_types
        self._opener = opener
        self._cache = cache
        self._monotonic_s = opener.monotonic_s
        self._groups = groups
        self._levels = levels_of(features, groups)
        self._by_models = [group for group in groups if not group.is_fixed]
        self._in_order = [group for level in self._levels for group in level]
        self._fast = cache.memory is not None or all(group.table is not None for group in groups)
        on = features.cache != "off"
        self._usages = UsageTable() if features.refresh_ahead and on else None
        random = Random(seed)
        self._calls = Calls(
            timeout_s=features.timeout_s,
            jitter=features.ttl_jitter,
            random=random,
            monotonic_s=opener.monotonic_s,
            clock=opener.clock,
            keep=cache.keep,
            told=self._told,
            outages=Outages(features.database),
        )
        self._fetcher = LevelFetcher(cache, self._calls, self._usages, shared=on, monotonic_s=opener.monotonic_s)
        self._refresher: Refresher | None = None
        if self._usages is not None:
            self._refresher = Refresher(
                self._usages,
                self._calls,
                cache,
                tick_s=tick_s(group.ttl if isinstance(group.ttl, float) else UNKNOWN_TTL_S for group in groups),
                random=random,
                monotonic_s=opener.monotonic_s,
            )

    @classmethod
    async def open(
        cls,
        features: Features,
        *,
        resolve: Resolve,
        monotonic_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
        seed: int = 0,
        store: Store[StoredEntry] | None = None,
        code_of: CodeOf | None = None,
        declared: Mapping[str, str] | None = None,
        models: Models | None = None,
    ) -> FeatureService:
        """Connect, check every group, read preloaded tables, start the background work.

        Args:
            resolve: ``'package.module:callable'`` -> the callable.
            seed: of the generator behind TTL jitter.
            store: used instead of Redis, for tests and other stores.
            code_of: hash of all code behind functions, so that changed code never finds old values in Redis.
            declared: types of fields as ``model.fields`` has them.
            models: finds other models of the server, for groups whose values they compute.

        Raises:
            StartError: what could not be opened, and where in the manifest.
        """
        clock = _seconds(features.clock, resolve) if features.clock else wall_s
        opener = Opener(features, resolve, monotonic_s, clock, declared or {}, code_of, models)
        remote: BypassedStore[StoredEntry] | None = None
        try:
            groups = await opener.groups()
            if features.cache == "redis":
                where, timeout_s = 'features.cache = "redis"', features.redis_timeout_s
                remote = BypassedStore(store, timeout_s) if store else None
                remote = remote or await open_redis(features.redis, StoredEntry, timeout_s, where)
            memory: MemoryStore[Entry] | None = None
            if features.cache != "off":
                memory = MemoryStore(features.max_bytes, monotonic_s)
            service = cls(features, groups, opener, EntryCache(memory, remote, monotonic_s, wall_s), seed)
        except BaseException as error:
            await opener.close()
            if remote is not None:
                await remote.close()
            if isinstance(error, ManifestError):
                raise StartError(error.message, hint=error.hint) from error
            raise
        service._start()
        return service

    def parse_entity(self, value: object) -> EntityKey:
        """Read one entity of a request: a plain value where there is one entity field, else an object.

        Equal values give equal keys: each is in the normal form of its field's type.

        Raises:
            BadRequest: what is wrong, naming the field.
        """
        return parse_entity(value, self._features.entity, self._types)

    def fetch_nowait(self, entities: Sequence[EntityKey], tenant: str) -> FeatureSet | None:
        """Rows for the entities if everything is fresh in memory, else None. No I/O, a few microseconds a group."""
        if not self._fast:
            return None
        now_s = self._monotonic_s()
        fields = self._features.entity
        rows = [dict(zip(fields, entity, strict=True)) for entity in entities]
        fresh_until_s = [math.inf] * len(rows)
        for group in self._in_order:
            for position, row in enumerate(rows):
                try:
                    key = entities[position] if group.key_is_entity else group.key_of(row)
                except KeyProblem:
                    return None
                until_s = self._add_nowait(group, key, row, tenant, now_s)
                if until_s <= now_s:
                    return None
                if until_s < fresh_until_s[position]:  # noqa: PLR1730 - min() costs three times as much
                    fresh_until_s[position] = until_s
        for group in self._in_order:
            group.counters.hits += len(rows)
        fresh_for_s = [until_s - now_s for until_s in fresh_until_s]
        return FeatureSet(rows, fresh_for_s, [False] * len(rows), len(rows) * len(self._in_order), 0)

    async def fetch(
        self, entities: Sequence[EntityKey], tenant: str, deadline_s: float, times: GroupTimes | None = None
    ) -> FeatureSet:
        """Rows for the entities, from the cache and from sources.

        Args:
            deadline_s: when the request's time is over, by the service's monotonic clock.
            times: records when each group was fetched and with what result; None: not recorded.

        Raises:
            UnknownEntity: a key has no row.
            FeatureUnavailable: a source failed and no value within its stale limit is left.
            FeatureTimeout: the deadline passed.
            BadRequest: an entity's type does not fit the source.
        """
        fields = self._features.entity
        into = Rows([dict(zip(fields, entity, strict=True)) for entity in entities])
        for level in self._levels:
            await self._fetcher.fetch(level, into, tenant, deadline_s, times)
        # Once, at the end: a level may take long, and what an earlier one found ages meanwhile.
        now_s = self._monotonic_s()
        fresh_for_s = [max(until_s - now_s, 0.0) for until_s in into.fresh_until_s]
        return FeatureSet(into.rows, fresh_for_s, into.stale, into.hits, into.misses)

    @property
    def group_names(self) -> tuple[str, ...]:
        """Names of the groups, in the order in which they are fetched."""
        return tuple([group.name for group in self._in_order])

    @property
    def asks_models(self) -> bool:
        """Whether other models compute some of the values."""
        return bool(self._by_models)

    def version(self, own: bytes) -> bytes:
        """Return a deployment version that the versions of the models are part of that groups' values come from."""
        if not self._by_models:
            return own
        parts = [own, *(group.id for group in self._by_models)]
        return blake2b(b"".join(parts), digest_size=len(own)).digest()

    def statistics(self) -> FeatureStatistics:
        """Snapshot of all counters."""
        memory, remote = self._cache.memory, self._cache.remote
        return FeatureStatistics(
            groups=tuple(group.statistics() for group in self._groups),
            memory=memory.statistics() if memory is not None else None,
            store=remote.statistics() if remote is not None else None,
        )

    async def close(self) -> None:
        """Stop the background work, tell whoever waits, close connections. Calling it twice is allowed."""
        await self._calls.close()
        await self._cache.close()
        await self._opener.close()

    def _add_nowait(self, group: Group, key: EntityKey, row: dict[str, Any], tenant: str, now_s: float) -> float:
        """Add a group's columns to a row; until when they are fresh, minus infinity where there is no quick answer."""
        if None in key:
            # A NULL equals nothing: no source has a row for it.
            row.update(group.default_row or {})
            return math.inf if group.default_row is not None else -math.inf
        table = group.table
        if table is not None:
            found = table.rows.get(key, group.default_row)
            if found is None:
                return -math.inf
            row.update(found)
            return table.fresh_until_s
        group_tenant = tenant if group.spec.per_tenant else ""
        try:
            store_key = feature_key(group.id, key, group_tenant)
        except TypeError:
            return -math.inf
        assert self._cache.memory is not None
        entry = self._cache.memory.get_nowait(store_key)
        if entry is None or entry.row is None or entry.fresh_until_s <= now_s:
            return -math.inf
        row.update(entry.row)
        if self._usages is not None:
            self._usages.note(group, key, store_key, group_tenant, entry, now_s)
        return entry.fresh_until_s

    def _start(self) -> None:
        for group in self._groups:
            if group.table is not None:
                self._calls.own(group.table.keep_fresh())
        if self._refresher is not None and any(group.table is None for group in self._groups):
            self._calls.own(self._refresher.run())

    def _told(self, group: Group, lookup: Lookup, outcome: Outcome) -> None:
        if self._refresher is not None:
            self._refresher.told(group, lookup, outcome)


def _seconds(reference: str, resolve: Resolve) -> Callable[[], float]:
    try:
        clock = resolve(reference)
        value = clock()
    except (Exception, SystemExit) as error:
        raise StartError(
            f"features.clock: cannot use {reference!r}: {error}",
            hint="set it to a callable that returns seconds since the epoch",
        ) from error
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise StartError(
            f"features.clock: {reference!r} returned {value!r}", hint="return seconds since the epoch as a number"
        )

    def read() -> float:
        try:
            return float(clock())
        except (Exception, SystemExit) as error:  # a clock that wants to exit must not take the server along
            raise SourceError(f"features.clock {reference!r} raised {type(error).__name__}: {error}") from error

    return read


# -- Entities --


EntityKey = tuple[Any, ...]
"""Values of the ``features.entity`` fields, in order, each in the normal form of its type."""

MAX_CHARACTERS = 1024
_PLAIN = frozenset({int, str, float, bool})


def parse_entity(value: object, fields: tuple[str, ...], types: Sequence[KeyType]) -> EntityKey:
    """Check one entity: a plain value where there is one field, else an object with exactly these fields.

    Args:
        types: of the fields, in order.

    Raises:
        BadRequest: what is wrong, naming the field.
    """
    # First, because it is what most requests send, and asking whether a value is a mapping costs more than the rest.
    if type(value) in _PLAIN and len(fields) == 1:
        return (_part(value, fields[0], types[0]),)
    if isinstance(value, Mapping):
        return _from_mapping(value, fields, types)
    if len(fields) == 1:
        return (_part(value, fields[0], types[0]),)
    raise BadRequest(
        f"an entity is {_shown(value)}; it must be an object with the fields {', '.join(fields) or '(none)'}",
        hint="see /openapi.json for an example" if fields else "this model has no entities: send rows",
    )


def _from_mapping(value: Mapping[Any, Any], fields: tuple[str, ...], types: Sequence[KeyType]) -> EntityKey:
    for field in fields:
        if field not in value:
            raise BadRequest(f'an entity lacks the field "{field}"', hint=f"its fields are {', '.join(fields)}")
    for name in value:
        if name not in fields:
            raise BadRequest(
                f"an entity has the unknown field {_shown(name)}", hint=f"its fields are {', '.join(fields)}"
            )
    return tuple([_part(value[field], field, kind) for field, kind in zip(fields, types, strict=True)])


def _part(value: object, field: str, kind: KeyType) -> Any:
    if isinstance(value, str):
        _check_text(value, field)
    elif not isinstance(value, int | float):
        raise BadRequest(
            f'entity field "{field}" is {_shown(value)}; it must be text, a number or a boolean',
            hint="send a single value",
        )
    try:
        return kind.normal(value)
    except ValueError as error:
        why = f": {error}" if str(error) else ""
        raise BadRequest(
            f'entity field "{field}" is {_shown(value)}, which is no {kind.name}{why}', hint=kind.takes
        ) from error


def _check_text(value: str, field: str) -> None:
    if len(value) > MAX_CHARACTERS:
        raise BadRequest(
            f'entity field "{field}" has {len(value)} characters, the limit is {MAX_CHARACTERS}',
            hint="send the key only",
        )
    if "\0" in value:
        raise BadRequest(
            f'entity field "{field}" holds a NUL character, which databases do not accept', hint="remove it"
        )
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise BadRequest(
                f'entity field "{field}" is not valid Unicode: {error.reason}', hint="send UTF-8"
            ) from error


def _shown(value: object) -> str:
    if value is None:
        return "null"
    text = _json(value) if isinstance(value, str | int | float) else f"of type {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def _json(value: float | str) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
