"""The feature stage: entities in, rows of features out."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Any

from tailcut.cache.bypass import BypassedStore, BypassStatistics, Store
from tailcut.cache.flights import wait_all
from tailcut.cache.freshness import is_usable_stale, retry_delay_s, stale_wait_s
from tailcut.cache.keys import feature_key
from tailcut.cache.memory import MemoryStatistics, MemoryStore
from tailcut.cache.redis import open_redis
from tailcut.errors import (
    BadRequest,
    FeatureError,
    FeatureTimeout,
    FeatureUnavailable,
    ManifestError,
    Shed,
    StartError,
    TailcutError,
    UnknownEntity,
)
from tailcut.features.cached import EntryCache
from tailcut.features.calls import Calls
from tailcut.features.entry import Entry, FetchFailure, Outcome, Row, StoredEntry
from tailcut.features.group_times import GroupTimes, Want
from tailcut.features.groups import Group, GroupStatistics, KeyProblem, has_no_row, levels_of
from tailcut.features.key_types import KeyType
from tailcut.features.line import NOBODY_WAITS, Lookup
from tailcut.features.outages import DATABASE, Outages
from tailcut.features.refresh import UNKNOWN_TTL_S, Refresher, UsageTable, tick_s
from tailcut.features.source_opener import CodeOf, Models, Opener, Resolve
from tailcut.features.sources.base import Key, SourceError
from tailcut.manifest.schema import Features


@dataclass(frozen=True, slots=True)
class FeatureStatistics:
    """A snapshot of all groups and of the store."""

    groups: tuple[GroupStatistics, ...]
    memory: MemoryStatistics | None
    """The store in memory, where that is used."""
    store: BypassStatistics | None
    """The store outside this process, where one is used."""

    @property
    def bypasses(self) -> int:
        """Store calls skipped because the store was failing."""
        return self.store.bypasses if self.store is not None else 0


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


class Rows:
    """The rows of a request as they fill up."""

    __slots__ = ("fresh_until_s", "hits", "misses", "rows", "stale")

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.fresh_until_s = [math.inf] * len(rows)
        """Per row: the earliest end of freshness of what is in it; minus infinity once a stale value is."""
        self.stale = [False] * len(rows)
        self.hits = 0
        self.misses = 0


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
        self._is_cached = features.cache != "off"
        """Whether calls are shared between requests and their results kept."""
        self._usages = UsageTable() if features.refresh_ahead and self._is_cached else None
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
            await self._fetch_level(level, into, tenant, deadline_s, times)
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

    async def _fetch_level(
        self, groups: Sequence[Group], into: Rows, tenant: str, deadline_s: float, times: GroupTimes | None
    ) -> None:
        """Add the columns of groups to every row: from the cache, then sources, then stale where a source fails."""
        wants: list[Want] = []
        if times is not None:
            times.begin(groups)
        try:
            wants = self._wants(groups, into.rows, tenant)
            await self._from_cache([want for want in wants if want.entry is None], into, deadline_s)
            missing: dict[Group, list[Want]] = {}
            for want in wants:
                if want.entry is None:
                    missing.setdefault(want.group, []).append(want)
            if missing:
                await self._from_sources(missing, tenant, deadline_s, times)
            self._fill(wants, into, tenant)
        finally:
            if times is not None:
                times.end(wants)

    def _wants(self, groups: Sequence[Group], rows: list[Row], tenant: str) -> list[Want]:
        """Distinct keys of all groups; those of preloaded tables, and those that can have no row, are answered."""
        wants: dict[bytes, Want] = {}
        for group in groups:
            group_tenant = group.tenant_of(tenant)
            for position, row in enumerate(rows):
                key = _key_of(group, row)
                try:
                    store_key = feature_key(group.id, key, group_tenant)
                except TypeError as error:
                    raise _unavailable(group, "its key cannot be looked up", f"{key}: {error}") from error
                want = wants.get(store_key)
                if want is None:
                    want = wants[store_key] = Want(group, Lookup(key, store_key))
                    self._answer_without_io(want, key)
                want.positions.append(position)
        return list(wants.values())

    def _answer_without_io(self, want: Want, key: Key) -> None:
        group, table = want.group, want.group.table
        if has_no_row(key):
            want.entry = Entry(group.default_row, math.inf, math.inf)
        elif table is not None:
            now_s = self._monotonic_s()
            want.entry = Entry(table.rows.get(key, group.default_row), table.fresh_until_s, table.ttl_s)
            want.stale = table.fresh_until_s <= now_s
            if want.stale and not is_usable_stale(table.fresh_until_s, group.spec.stale_for_s, now_s):
                raise _unavailable(group, table.why_expired())

    async def _from_cache(self, wants: list[Want], into: Rows, deadline_s: float) -> None:
        if not wants:
            return
        look_up = self._cache.look_up([(want.group, want.lookup.store_key) for want in wants])
        left_s = deadline_s - self._monotonic_s()
        if left_s >= self._cache.longest_s:
            entries = await look_up
        else:
            # A value that arrives later is cached all the same, for the next request.
            task = self._calls.own(look_up)
            await asyncio.wait({task}, timeout=max(left_s, 0.0))
            if not task.done():
                raise _timed_out(wants[0].group)
            entries = task.result()
        now_s = self._monotonic_s()
        for want, entry in zip(wants, entries, strict=True):
            if entry is not None and entry.fresh_until_s > now_s:
                want.entry = entry
                want.group.counters.hits += 1
                into.hits += 1
                continue
            want.group.counters.misses += 1
            into.misses += 1
            if entry is not None and entry.row is not None:
                want.held = entry

    async def _from_sources(
        self, missing: dict[Group, list[Want]], tenant: str, deadline_s: float, times: GroupTimes | None
    ) -> None:
        left_s = deadline_s - self._monotonic_s()
        if left_s <= 0:
            raise _timed_out(next(iter(missing)))
        caller = times.caller if times is not None else None
        alone: list[asyncio.Task[Any]] = []
        for group, wants in missing.items():
            group_tenant = group.tenant_of(tenant)
            if not self._is_cached:
                lookups = [want.lookup for want in wants]
                futures, task = self._calls.alone(group, lookups, group_tenant, deadline_s, caller)
                alone.append(task)
                self._attach(wants, futures)
                continue
            asked = self._serve_stale_of_failing(group, wants, group_tenant)
            if asked:
                lookups = [want.lookup for want in asked]
                self._attach(asked, self._calls.share(group, lookups, group_tenant, deadline_s, caller))
        if times is not None:
            times.watch(missing)
        try:
            await self._wait([want for wants in missing.values() for want in wants], left_s, deadline_s)
        finally:
            for task in alone:
                task.cancel()

    def _serve_stale_of_failing(self, group: Group, wants: list[Want], tenant: str) -> list[Want]:
        """Answer from stale values at once while the source is failing; return the wants that are left.

        So a source that hangs delays one request, not every one. It is asked in the background meanwhile.
        """
        if not group.failures:
            return wants
        now_s = self._monotonic_s()
        held = [want for want in wants if self._is_usable(want, now_s)]
        for want in held:
            want.entry, want.stale = want.held, True
        if held and now_s >= group.retry_at_s:
            group.retry_at_s = now_s + retry_delay_s(group.failures)
            self._calls.share(group, [want.lookup for want in held], tenant, NOBODY_WAITS)
        return [want for want in wants if want.entry is None]

    async def _wait(self, wants: list[Want], left_s: float, deadline_s: float) -> None:
        now_s = self._monotonic_s()
        with_held = [want for want in wants if want.future is not None and self._is_usable(want, now_s)]
        if with_held:
            await _wait_for(wants, stale_wait_s(left_s))
            for want in with_held:
                if want.future is not None and not want.future.done():
                    want.entry, want.stale, want.future = want.held, True, None
        await _wait_for(wants, deadline_s - self._monotonic_s())

    def _fill(self, wants: list[Want], into: Rows, tenant: str) -> None:
        now_s = self._monotonic_s()
        for want in wants:
            if want.future is not None:
                self._settle(want, now_s)
            entry = want.entry
            assert entry is not None
            group = want.group
            if self._usages is not None and group.table is None and entry.fresh_until_s != math.inf:
                key, store_key = want.lookup.key, want.lookup.store_key
                self._usages.note(group, key, store_key, group.tenant_of(tenant), entry, now_s)
            if entry.row is None:
                raise UnknownEntity(
                    f'feature group "{group.name}" has no row for {_describe(group, want.lookup.key)}',
                    hint="check the entity, or give the group defaults for entities without a row",
                )
            counters = group.counters
            if group.table is not None:
                counters.hits += 1
                into.hits += 1
            counters.stale_served += want.stale
            fresh_until_s = -math.inf if want.stale else entry.fresh_until_s
            for position in want.positions:
                into.rows[position].update(entry.row)
                into.fresh_until_s[position] = min(into.fresh_until_s[position], fresh_until_s)
                into.stale[position] |= want.stale

    def _settle(self, want: Want, now_s: float) -> None:
        """Turn what a call found, or did not find in time, into an entry or an error."""
        assert want.future is not None
        if not want.future.done():
            raise _timed_out(want.group)
        outcome = want.future.result()
        if isinstance(outcome, Entry):
            want.entry, want.stale = outcome, outcome.is_stale
        elif self._is_usable(want, now_s):
            want.entry, want.stale = want.held, True
        else:
            raise _error_of(want.group, want.lookup.key, outcome)

    def _is_usable(self, want: Want, now_s: float) -> bool:
        held = want.held
        return held is not None and is_usable_stale(held.fresh_until_s, want.group.spec.stale_for_s, now_s)

    @staticmethod
    def _attach(wants: list[Want], futures: list[asyncio.Future[Outcome]]) -> None:
        for want, future in zip(wants, futures, strict=True):
            want.future = future

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


async def _wait_for(wants: list[Want], timeout_s: float) -> None:
    await wait_all([want.future for want in wants if want.future is not None], timeout_s)


# -- Errors of features that could not be fetched --


def _key_of(group: Group, row: Row) -> Key:
    """The group's key in a request's row.

    Raises:
        BadRequest: a field of the entity is not of the key's type.
        FeatureUnavailable: a column of another group is not.
    """
    try:
        return group.key_of(row)
    except KeyProblem as problem:
        if group.by_entity:
            raise BadRequest(
                f'entity field {problem}, as feature group "{group.name}" has it', hint=problem.kind.takes
            ) from problem
        raise _unavailable(group, f"its key {problem}") from problem


def _error_of(group: Group, key: Key, failure: FetchFailure) -> TailcutError:
    """The error for a key that a source could not answer."""
    if failure.key_type and group.by_entity:
        return BadRequest(
            f'entity {_describe(group, key)} does not fit feature group "{group.name}": {failure.message}',
            hint="send the entity's fields with the types of the source (numbers as numbers, text as text)",
        )
    if failure.retry_s is not None:
        return Shed(
            f'feature group "{group.name}" has no value: {failure.message}',
            hint="retry after Retry-After seconds; the model behind the group is overloaded",
            retry_after_s=failure.retry_s,
        )
    if failure.misfit:
        return FeatureError(
            f'feature group "{group.name}" does not fit its source: {failure.message}',
            hint=failure.hint,
            group=group.name,
        )
    if failure.kind:
        error = _unavailable(group, f"its source failed ({failure.kind})", failure.message)
    else:
        error = _unavailable(group, failure.message, hint=failure.hint)
    if failure.unreachable:
        error.source = DATABASE  # one cause, whichever of its groups met it
    return error


def _describe(group: Group, key: Key) -> str:
    """A key with the names of its columns."""
    return ", ".join(f"{column}={value!r}" for column, value in zip(group.spec.key, key, strict=True))


def _unavailable(group: Group, reason: str, detail: str = "", hint: str = "") -> FeatureUnavailable:
    """The error for a group that could not be fetched."""
    return FeatureUnavailable(
        f'feature group "{group.name}" is unavailable and has no value within its stale limit of '
        f"{group.spec.stale_for_s:g} s: {reason}",
        hint=hint or "check the group's source; a longer stale_for serves older values during an outage",
        detail=detail,
        group=group.name,
    )


def _timed_out(group: Group) -> FeatureTimeout:
    """The error for a deadline that passed."""
    return FeatureTimeout(
        f'the request\'s deadline passed while feature group "{group.name}" was being fetched',
        hint="send a longer timeout, raise slo.timeout, or make the group's source faster",
    )
