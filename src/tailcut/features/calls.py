"""Asks sources. One call at a time per key: those who want a key that is being asked for wait for that call.

Few calls at a time per group and tenant: keys that are missed meanwhile wait in line, and the next call asks for all of
them at once. A slow source so gets larger batches instead of more load, and a cold start under traffic fills the cache
instead of drowning the database (seen before: at 400 requests a second every query timed out, so nothing was ever
kept). ``timeout_s`` counts from a call's start; who waits for a key in line has a deadline of his own.

A call belongs to nobody who waits for it: a waiter that gives up or is cancelled never hurts the others. What a call
finds reaches the waiters first, then the cache, and only then is the key open for a new call.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from tailcut.cache.flights import land
from tailcut.cache.freshness import blend_source_s, effective_ttl_s, negative_ttl_s, retry_delay_s
from tailcut.cache.keys import feature_key
from tailcut.features.entry import Entry, FetchFailure, Outcome, Row, StaleEntry
from tailcut.features.groups import Group
from tailcut.features.line import NOBODY_WAITS, Caller, KeyFlight, KeyQueue, Lookup, SourceCall
from tailcut.features.outages import Outages
from tailcut.features.sources.base import (
    Answer,
    ColumnProblem,
    Key,
    KeyRefused,
    ModelFailed,
    ModelMisfit,
    Source,
    SourceContext,
    SourceDown,
    SourceError,
    SourceShed,
    SourceUnreachable,
    StaleValues,
)
from tailcut.observe.traces.trace_context import CallerSpan

_log = logging.getLogger("tailcut.features")
_CLOSE_TIMEOUT_S = 1.0
_CLOSING = "the call was cancelled because the server is closing"

Kept = tuple[Group, Lookup, Entry]
_Found = TypeVar("_Found")


class Calls:
    """All source calls of a feature service.

    Args:
        timeout_s: longest wait for a source.
        clock: seconds since the epoch for ``:now``.
        keep: puts entries into the cache; must not raise.
        told: called with every outcome, before waiters run.
        outages: says in the log which sources fail.
    """

    def __init__(
        self,
        *,
        timeout_s: float,
        jitter: float,
        random: Random,
        monotonic_s: Callable[[], float],
        clock: Callable[[], float],
        keep: Callable[[list[Kept]], Awaitable[None]],
        told: Callable[[Group, Lookup, Outcome], None],
        outages: Outages,
    ) -> None:
        self._timeout_s = timeout_s
        self._jitter = jitter
        self._random = random
        self._monotonic_s = monotonic_s
        self._clock = clock
        self._keep = keep
        self._told = told
        self._outages = outages
        self._flights: dict[bytes, KeyFlight] = {}
        self._lines: dict[tuple[Group, str], KeyQueue] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._with_bad_rows: set[Group] = set()
        """Told of in the log, once each."""
        self._closed = False

    def in_flight(self, store_key: bytes) -> bool:
        """Whether a key is being asked for, or waits for that."""
        return store_key in self._flights

    def share(
        self,
        group: Group,
        lookups: Sequence[Lookup],
        tenant: str,
        until_s: float,
        caller: Caller | None = None,
    ) -> list[asyncio.Future[Outcome]]:
        """Ask for all keys that are not being asked for yet, together; the future of each key, in order.

        Args:
            until_s: when the caller gives up, by the monotonic clock; ``NOBODY_WAITS`` lets others go first.
            caller: tells its span of the group; None where it is not traced.
        """
        new: list[KeyFlight] = []
        flights: list[KeyFlight] = []
        loop = asyncio.get_running_loop()
        for lookup in lookups:
            flight = self._flights.get(lookup.store_key)
            if flight is None:
                flight = self._flights[lookup.store_key] = KeyFlight(lookup, loop.create_future(), until_s, caller)
                new.append(flight)
            else:
                flight.until_s = max(flight.until_s, until_s)
                group.counters.single_flight_joins += 1
            flights.append(flight)
        if self._closed:
            self._give_up(new, _CLOSING)
        else:
            line = self._lines.setdefault((group, tenant), KeyQueue())
            line.add(new)
            # Also without new keys: one that only a refresh wanted so far may go first now.
            self._advance(group, tenant, line)
        return [flight.future for flight in flights]

    def alone(
        self,
        group: Group,
        lookups: Sequence[Lookup],
        tenant: str,
        until_s: float,
        caller: Caller | None = None,
    ) -> tuple[list[asyncio.Future[Outcome]], asyncio.Task[Any]]:
        """Ask for all keys with one call of the caller's own, nothing kept; cancelling the task ends the call.

        Args:
            until_s: when the caller gives up, by the monotonic clock, which the source is told.
            caller: tells its span of the group; None where it is not traced.
        """
        loop = asyncio.get_running_loop()
        flights = [KeyFlight(lookup, loop.create_future(), NOBODY_WAITS, caller) for lookup in lookups]
        task = self.own(self._run(group, flights, tenant, until_s=until_s))
        task.add_done_callback(lambda _: self._give_up(flights, _CLOSING))
        return [flight.future for flight in flights], task

    async def close(self) -> None:
        """Cancel all calls and background tasks; requests that wait for them get an error."""
        self._closed = True
        for line in self._lines.values():
            self._give_up(line.clear(), _CLOSING)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_TIMEOUT_S)
        self._give_up(list(self._flights.values()), _CLOSING)

    def _advance(self, group: Group, tenant: str, line: KeyQueue) -> None:
        """Start calls for what waits, as far as there may be more."""
        now_s = self._monotonic_s()
        while (call := line.take(now_s)) is not None:
            self._start(group, tenant, line, call)
        self._give_up(line.let_go(now_s), "too many keys wait for the source")
        if line.idle and self._lines.get((group, tenant)) is line:
            del self._lines[group, tenant]

    def _start(self, group: Group, tenant: str, line: KeyQueue, call: SourceCall) -> None:
        def leave() -> None:
            line.leave(call)
            self._advance(group, tenant, line)

        def ended(task: asyncio.Task[Any]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                _log.error('feature group "%s": unexpected error', group.name, exc_info=error)
            self._give_up(call.flights, _CLOSING if error is None else f"{type(error).__name__}: {error}")
            leave()

        # Not left to the task: one that is cancelled before it starts runs none of its own lines.
        self.own(self._run(group, call.flights, tenant, leave)).add_done_callback(ended)

    def own(self, coroutine: Coroutine[Any, Any, _Found]) -> asyncio.Task[_Found]:
        """Run something that ends with this object at the latest."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Looked at, so that a call given up long ago does not log "exception was never retrieved".
            task.exception()

    async def _run(
        self,
        group: Group,
        flights: list[KeyFlight],
        tenant: str,
        leave: Callable[[], None] | None = None,
        until_s: float = math.inf,
    ) -> None:
        """One call. With ``leave`` it is shared: what it finds is kept, and the place in line is free before that."""
        lookups = [flight.lookup for flight in flights]
        asked_id = group.id
        told = next((flight.caller for flight in flights if flight.caller is not None), None)
        caller = told(group) if told is not None else None
        outcomes = await self._outcomes(group, lookups, tenant, until_s, caller)
        for flight, outcome in zip(flights, outcomes, strict=True):
            self._told(group, flight.lookup, outcome)
            if not flight.future.done():
                flight.future.set_result(outcome)
            if isinstance(outcome, FetchFailure):
                land(self._flights, flight.lookup.store_key, flight)
        if leave is not None:
            leave()
            pairs = zip(lookups, outcomes, strict=True)
            kept = [(group, lookup, entry) for lookup, entry in pairs if isinstance(entry, Entry)]
            await self._keep(kept if group.is_fixed else _still_valid(group, asked_id, tenant, kept))

    def _give_up(self, flights: Iterable[KeyFlight], why: str) -> None:
        """End what has not ended; its keys are open for new calls."""
        for flight in flights:
            if not flight.future.done():
                flight.future.set_result(FetchFailure(why))
            land(self._flights, flight.lookup.store_key, flight)

    async def _outcomes(
        self, group: Group, lookups: list[Lookup], tenant: str, until_s: float, caller: CallerSpan | None
    ) -> list[Outcome]:
        asked_s = self._monotonic_s()
        counters = group.counters
        counters.source_calls += 1
        counters.source_keys += len(lookups)
        gives_up_s = min(asked_s + self._timeout_s, until_s)
        found = await self._ask(group, [lookup.key for lookup in lookups], tenant, gives_up_s, caller)
        took_s = self._monotonic_s() - asked_s
        counters.source_s += took_s
        if isinstance(found, FetchFailure):
            outcomes: list[Outcome] = [found] * len(lookups)
        else:
            pairs = zip(lookups, found, strict=True)
            outcomes = [self._outcome(group, lookup.key, answer, asked_s) for lookup, answer in pairs]
        failed = [outcome for outcome in outcomes if isinstance(outcome, FetchFailure)]
        counters.errors += bool(failed)
        # A source that answered is well, also where a key's row is of no use: that is the key's error alone.
        self._judge(group, found if isinstance(found, FetchFailure) else None, took_s)
        # A key that was shed has no row, one that was refused is its client's fault.
        bad = [failure for failure in failed if failure.retry_s is None and not failure.key_type]
        if bad and not isinstance(found, FetchFailure) and group not in self._with_bad_rows:
            self._with_bad_rows.add(group)
            _log.warning('feature group "%s" returned invalid rows, the first: %s', group.name, bad[0].message)
        return outcomes

    async def _ask(
        self, group: Group, keys: list[Key], tenant: str, gives_up_s: float, caller: CallerSpan | None
    ) -> list[Answer] | FetchFailure:
        task: asyncio.Task[list[Answer]] | None = None
        try:
            context = SourceContext(self._clock(), tenant, gives_up_s, caller)
            task = self.own(_fetch_isolating(group.source, keys, context))
            # Not asyncio.timeout: a source that ignores its cancellation must not hold up those who wait.
            done, _ = await asyncio.wait({task}, timeout=self._timeout_s)
            if not done:
                unreachable = self._outages.explains(group)
                said, hint = f"no answer within {self._timeout_s:g} s", _late_hint(group, self._timeout_s)
                return FetchFailure(said, timed_out=True, unreachable=unreachable, hint=hint)
            if task.cancelled():  # by what it awaits: nobody here cancels a call and goes on
                return FetchFailure(
                    _CLOSING if self._closed else "the source cancelled its own call", kind="CancelledError"
                )
            return task.result()
        except SourceError as error:
            failure = _failure(error)
            of_user = group.spec.function and not isinstance(error, SourceDown)
            return replace(failure, cause=error.__cause__) if of_user else failure
        except Exception as error:
            if not group.failures:  # the first in a row
                _log.exception('feature group "%s": unexpected error', group.name)
            return FetchFailure(f"{type(error).__name__}: {error}", kind=type(error).__name__)
        finally:
            if task is not None and not task.done():
                task.cancel()

    def _outcome(self, group: Group, key: Key, answer: Answer, asked_s: float) -> Outcome:
        if isinstance(answer, SourceError):
            return _failure(answer)
        row: Row | None = group.default_row
        if answer is not None:
            row = dict(zip(group.spec.columns, answer, strict=True))
        if isinstance(answer, StaleValues):
            return StaleEntry(row, asked_s, 0.0)
        if row is None:
            ttl_s = negative_ttl_s(group.longest_ttl_s)
            return Entry(None, asked_s + ttl_s, ttl_s)
        try:
            ttl_s = effective_ttl_s(group.ttl_s(key, row), self._jitter, self._random.random())
        except SourceError as error:
            return _failure(error)
        # Counted from when the source was asked: the value may be that old.
        return Entry(row, asked_s + ttl_s, ttl_s)

    def _judge(self, group: Group, failure: FetchFailure | None, took_s: float) -> None:
        if failure is None:
            group.recent_source_s = blend_source_s(group.recent_source_s, took_s)
            self._outages.answered(group, self._monotonic_s())
            group.failures = 0
            return
        if failure.key_type or failure.retry_s is not None:
            return
        group.failures += 1
        now_s = self._monotonic_s()
        group.retry_at_s = now_s + retry_delay_s(group.failures)
        self._outages.failed(group, failure, now_s)


def _still_valid(group: Group, asked_id: bytes, tenant: str, kept: list[Kept]) -> list[Kept]:
    """Return what was looked up and computed by one version of the model that a group's values come from."""
    if group.id != asked_id:
        return []
    return [each for each in kept if feature_key(asked_id, each[1].key, tenant) == each[1].store_key]


def _late_hint(group: Group, timeout_s: float) -> str:
    limit, model = f"raise features.timeout ({timeout_s:g} s)", group.spec.model
    if not model:
        return f"{limit}, make the group's source faster, or give it a longer stale_for"
    return f"{limit} and slo.timeout of model {model!r} where that is shorter, or make model {model!r} faster"


def _failure(error: SourceError) -> FetchFailure:
    kind = "" if isinstance(error, ColumnProblem | ModelFailed) else type(error.__cause__ or error).__name__
    return FetchFailure(
        str(error),
        kind=kind,
        key_type=isinstance(error, KeyRefused),
        unreachable=isinstance(error, SourceUnreachable),
        retry_s=error.retry_s if isinstance(error, SourceShed) else None,
        hint=error.hint if isinstance(error, ModelFailed) else "",
        misfit=isinstance(error, ModelMisfit),
    )


async def _fetch_isolating(source: Source, keys: list[Key], context: SourceContext) -> list[Answer]:
    """Ask a source, halving the keys when it fails, so that one bad key does not fail its neighbours.

    A few halvings find one or two bad keys among many; when all are bad the rest is given up.

    Raises:
        SourceError: the source raised for every key, or failed in a way that has nothing to do with the keys.
    """
    halvings_left = 2 * len(keys).bit_length()
    answered = False

    async def ask(part: list[Key]) -> list[Answer]:
        nonlocal answered, halvings_left
        try:
            answers = await source.fetch(part, context)
        except SourceDown:
            raise
        except SourceError as error:
            if len(part) == 1 or halvings_left <= 0:
                return [error] * len(part)
            halvings_left -= 1
            middle = len(part) // 2
            return await ask(part[:middle]) + await ask(part[middle:])
        if len(answers) != len(part):
            raise SourceDown(f"the source returned {len(answers)} rows for {len(part)} keys")
        answered = True
        return answers

    answers = await ask(keys)
    if not answered and isinstance(answers[0], SourceError):
        raise answers[0]
    return answers
