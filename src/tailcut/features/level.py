"""Fetches one level of groups: cache, then sources, then stale values where a source fails."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

from tailcut.cache.flights import wait_all
from tailcut.cache.freshness import is_usable_stale, retry_delay_s, stale_wait_s
from tailcut.cache.keys import feature_key
from tailcut.errors import (
    BadRequest,
    FeatureError,
    FeatureTimeout,
    FeatureUnavailable,
    Shed,
    TailcutError,
    UnknownEntity,
)
from tailcut.features.cached import EntryCache
from tailcut.features.calls import Calls
from tailcut.features.entry import Entry, FetchFailure, Outcome, Row
from tailcut.features.group_times import GroupTimes, Want
from tailcut.features.groups import Group, KeyProblem, has_no_row
from tailcut.features.line import NOBODY_WAITS, Lookup
from tailcut.features.outages import DATABASE
from tailcut.features.refresh import UsageTable
from tailcut.features.sources.base import Key


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


class LevelFetcher:
    """Fetches levels of groups.

    Args:
        shared: whether calls are shared between requests and their results kept (the cache is on).
        usages: told of every key asked for; None where nothing is refreshed ahead.
    """

    def __init__(
        self,
        cache: EntryCache,
        calls: Calls,
        usages: UsageTable | None,
        *,
        shared: bool,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._calls = calls
        self._usages = usages
        self._shared = shared
        self._monotonic_s = monotonic_s

    async def fetch(
        self, groups: Sequence[Group], into: Rows, tenant: str, deadline_s: float, times: GroupTimes | None = None
    ) -> None:
        """Add the columns of ``groups`` to every row.

        Args:
            times: records when each group was fetched and with what result; None: not recorded.

        Raises:
            UnknownEntity: a key has no row.
            FeatureUnavailable: a source failed and no value within its stale limit is left.
            FeatureTimeout: the deadline passed.
            BadRequest: an entity's type does not fit the source.
        """
        if times is None:
            await self._fetch(self._wants(groups, into.rows, tenant), into, tenant, deadline_s, None)
            return
        times.begin(groups)
        wants: list[Want] = []
        try:
            wants = self._wants(groups, into.rows, tenant)
            await self._fetch(wants, into, tenant, deadline_s, times)
        finally:
            times.end(wants)

    async def _fetch(
        self, wants: list[Want], into: Rows, tenant: str, deadline_s: float, times: GroupTimes | None
    ) -> None:
        await self._from_cache([want for want in wants if want.entry is None], into, deadline_s)
        missing: dict[Group, list[Want]] = {}
        for want in wants:
            if want.entry is None:
                missing.setdefault(want.group, []).append(want)
        if missing:
            await self._from_sources(missing, tenant, deadline_s, times)
        self._fill(wants, into, tenant)

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
            # What it finds later is kept in memory all the same, for whoever asks next.
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
            if not self._shared:
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
