"""Fills what a request did not find in a prediction cache: from a request that is working it out, from the level that
servers share, or by working it out.

A key is worked out by one request at a time. The others wait for it, each until its own deadline. Where that request
fails or its client goes, they have lost nothing but time: the next one works the key out. Errors are not kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter_ns
from typing import Any, Generic, TypeVar

from tailcut.cache.flights import land, wait_all
from tailcut.common.timings import Stage
from tailcut.errors import DeadlineExceeded, NotReady, Shed, TailcutError
from tailcut.pipeline.prediction_cache import STALE, Flight, PredictionStore
from tailcut.pipeline.request_context import RequestContext
from tailcut.scheduler.request_queue import DEFAULT_LEVEL

V = TypeVar("V")

_MOST_WAITS = 2
"""Requests whose failure one waits for before it works the key out itself, whoever else does: a row on which the model
fails would otherwise be tried by one request after the other, and the last one waits for all."""

_SHARED_WAITS = 2.0
"""The shared level is asked where the time left is at least so many times what that may take."""

Make = Callable[[list[int]], Awaitable[tuple[list[V], list[float]]]]
"""Places of rows -> their answers, and how long each may be kept in seconds."""


class CacheFill(Generic[V]):
    """One request's missing rows.

    Args:
        stage: which time waiting for others and for the shared level counts as.
        keys: of all rows.
        found: answers of all rows, None where there is none yet; filled in place.
        make: works rows out.
        fallback: whether stale answers are given where there is no room for the request.
    """

    __slots__ = ("_cache", "_call", "_fallback", "_found", "_keys", "_made", "_make", "_stage")

    def __init__(
        self,
        cache: PredictionStore[V],
        context: RequestContext,
        stage: Stage,
        keys: Sequence[bytes],
        found: list[V | None],
        make: Make[V],
        *,
        fallback: bool,
    ) -> None:
        self._cache = cache
        self._call = context
        self._stage = stage
        self._keys = keys
        self._found = found
        self._make = make
        self._fallback = fallback
        self._made = False

    async def fill(self) -> bool:
        """Fill in all that is missing; return whether any of it had to be worked out.

        Raises:
            DeadlineExceeded: it passed while another request worked a key out.
            TailcutError: what ``make`` raised.
        """
        waits = 0
        while missing := self._missing():
            led, joined = self._divide(missing, join=waits < _MOST_WAITS)
            if led:
                await self._lead(led, missing)
            if joined:
                waits += 1
                await self._join(joined, missing)
        return self._made

    def _missing(self) -> dict[bytes, list[int]]:
        """Return the places of each missing key: a board may have one twice."""
        missing: dict[bytes, list[int]] = {}
        for at, value in enumerate(self._found):
            if value is None:
                missing.setdefault(self._keys[at], []).append(at)
        return missing

    def _divide(self, missing: dict[bytes, list[int]], *, join: bool) -> tuple[list[Flight[V]], list[Flight[V]]]:
        level = self._call.priority or DEFAULT_LEVEL
        flights = self._cache.flights
        led: list[Flight[V]] = []
        joined: list[Flight[V]] = []
        for key in missing:
            flight = flights.get(key) if join else None
            # A request of lower priority would hold this one up.
            if flight is not None and flight.level <= level:
                joined.append(flight)
            else:
                flight = flights[key] = Flight(key, level)
                led.append(flight)
        return led, joined

    async def _lead(self, led: list[Flight[V]], missing: dict[bytes, list[int]]) -> None:
        try:
            rest = led if self._cache.shared is None else await self._from_shared(led, missing)
            if rest:
                await self._work_out(rest, missing)
        except (Shed, NotReady) as error:
            if not self._fallback:
                raise
            keys = [flight.key for flight in led if self._found[missing[flight.key][0]] is None]
            self._fill_stale(keys, missing, error)
        finally:
            for flight in led:
                land(self._cache.flights, flight.key, flight)
                flight.end()

    async def _work_out(self, rest: list[Flight[V]], missing: dict[bytes, list[int]]) -> None:
        cache, context = self._cache, self._call
        self._made = True
        looked_ns = context.timings.ns[self._stage] / len(self._keys)
        began_ns = perf_counter_ns()
        values, lives_s = await self._make([missing[flight.key][0] for flight in rest])
        made_ns = perf_counter_ns()
        for flight, value, life_s in zip(rest, values, lives_s, strict=True):
            flight.value, flight.stale = value, life_s == STALE
            self._put(flight, missing)
        cache.keep([(flight.key, value, life_s) for flight, value, life_s in zip(rest, values, lives_s, strict=True)])
        cache.advisor.missed((made_ns - began_ns) / len(rest))
        cache.advisor.cost(looked_ns, (perf_counter_ns() - made_ns) / len(rest))
        cache.count(len(rest))

    async def _from_shared(self, led: list[Flight[V]], missing: dict[bytes, list[int]]) -> list[Flight[V]]:
        """Look keys up in the shared level; return those that it does not have."""
        shared = self._cache.shared
        assert shared is not None
        if self._left_s() < _SHARED_WAITS * shared.timeout_s:
            return led
        answers = await self._wait(shared.get_many([flight.key for flight in led]))
        rest = []
        for flight, answer in zip(led, answers, strict=True):
            if answer is None:
                rest.append(flight)
                continue
            flight.value, left_s = answer
            self._cache.keep_found(flight.key, flight.value, left_s)
            self._put(flight, missing)
        return rest

    async def _join(self, joined: list[Flight[V]], missing: dict[bytes, list[int]]) -> None:
        """Wait for other requests; what they did not bring stays missing."""
        cache, left_s = self._cache, self._left_s()
        futures = [flight.joined() for flight in joined]
        await self._wait(wait_all(futures, left_s))
        for flight, future in zip(joined, futures, strict=True):
            if not future.done():
                raise DeadlineExceeded(
                    "the deadline passed while another request for the same answer was being served",
                    hint="send a longer timeout, lower the rate, or add executors or cores; slo.timeout is the default "
                    "deadline",
                )
            if flight.value is not None:
                self._made = True  # it has waited for the model like the other, so that it is no hit
                cache.joins += len(missing[flight.key])
                self._put(flight, missing)

    def _put(self, flight: Flight[V], missing: dict[bytes, list[int]]) -> None:
        for at in missing[flight.key]:
            self._found[at] = flight.value
        if flight.stale:
            self._call.cache = "stale"

    def _fill_stale(self, keys: list[bytes], missing: dict[bytes, list[int]], error: TailcutError) -> None:
        answers = recalled(self._cache, keys, stale=True)
        if answers is None:
            raise error
        for key, (value, _) in zip(keys, answers, strict=True):
            for at in missing[key]:
                self._found[at] = value
        if not all(fresh for _, fresh in answers):
            self._call.cache = "stale"

    def _left_s(self) -> float:
        return self._call.deadline_ns / 1e9 - self._cache.store.monotonic_s()

    async def _wait(self, work: Any) -> Any:
        """Wait in a task of its own, so that it ends when the client goes."""
        context = self._call
        if context.gone:
            work.close()
            raise asyncio.CancelledError
        context.waiting = asyncio.get_running_loop().create_task(work)
        try:
            return await context.waiting
        finally:
            context.waiting = None
            context.timings.lap(self._stage, perf_counter_ns())


def recalled(cache: PredictionStore[V], keys: Sequence[bytes], *, stale: bool) -> list[tuple[V, bool]] | None:
    """Return the answers of all keys, each with whether it is fresh; None where one is missing.

    Args:
        stale: whether answers past their TTL will do.
    """
    answers: list[tuple[V, bool]] = []
    for key in keys:
        answer = cache.store.get_stale(key)
        if answer is None or not (answer[1] or stale):
            return None
        answers.append(answer)
    cache.stale += sum([not fresh for _, fresh in answers])
    return answers


def recall(
    cache: PredictionStore[V], context: RequestContext, keys: Sequence[bytes], refusal: TailcutError, *, stale: bool
) -> list[V]:
    """Answer a request for which there is no room from the cache alone.

    Raises:
        TailcutError: ``refusal``, where the cache does not have all of it.
    """
    answers = recalled(cache, keys, stale=stale)
    if answers is None:
        raise refusal
    context.cache = "hit" if all(fresh for _, fresh in answers) else "stale"
    return [value for value, _ in answers]
