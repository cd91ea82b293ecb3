"""What the pilot's and the manifest's queries take, for benchmarks.profile_ladder: small runs on an idle machine."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from tailcut.features import FeatureService
from tailcut.manifest import Manifest, resolve

_WARM = 60
"""Requests before those that count: psycopg prepares a statement at its fifth use of each connection."""
_ASKED_OF_PILOT = 300
_OVERLAPPING_S = 10.0
_PAUSE_S = 0.005
"""Between two requests: at the ladder's rates caches have other things in them when a request comes."""
_TIMEOUT_S = 5.0

Ask = Callable[[bytes], Coroutine[None, None, None]]


class Queries(msgspec.Struct, frozen=True, kw_only=True):
    """What queries take.

    Attributes:
        alone_ms: of each request, CPU here and waiting, asked one after the other.
        overlapping: CPU of a request among others at the profile's rate, over that of one alone.
        database_share: of the waiting that the database's processes computed.
    """

    alone_ms: tuple[tuple[float, float], ...]
    overlapping: float
    database_share: float


def pilots_share(bodies: Sequence[bytes]) -> float:
    """Which share of the pilot's waiting for its statements PostgreSQL computes; 1 for SQLite, which computes here."""
    from flight_risk import clock
    from flight_risk.pilot.database import connect

    url = os.environ["FLIGHT_RISK_DATABASE"]
    if not url.startswith("postgresql://"):
        return 1.0
    database = connect(url)

    async def ask(body: bytes) -> None:
        database.features(msgspec.json.decode(body)["entities"], int(clock.now()))

    try:
        return asyncio.run(_one_by_one(ask, bodies[: _WARM + _ASKED_OF_PILOT]))[1]
    finally:
        database.close()


def manifests_queries(manifest: Manifest, bodies: Sequence[bytes], rate: float) -> Queries:
    """Fetch every group one after the other, nothing cached, on the event loop that tailcut's server runs on.

    First request by request; then requests come at the profile's rate, as they did when the pilot was recorded:
    requests that overlap share the event loop's rounds, so each takes less of a core than one that comes alone.
    """
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_queries(manifest, bodies, rate))


async def _queries(manifest: Manifest, bodies: Sequence[bytes], rate: float) -> Queries:
    features = msgspec.structs.replace(manifest.deployment.features, cache="off", concurrent=False, refresh_ahead=False)
    service = await FeatureService.open(features, resolve=lambda reference: resolve(reference, manifest))

    async def ask(body: bytes) -> None:
        keys = [service.parse_entity(one) for one in msgspec.json.decode(body)["entities"]]
        await service.fetch(keys, "", time.monotonic() + _TIMEOUT_S)

    try:
        alone, share = await _one_by_one(ask, [*bodies[:_WARM], *bodies])
        overlapping_ms = await _overlapping(ask, bodies, rate)
    finally:
        await service.close()
    return Queries(
        alone_ms=tuple(alone),
        overlapping=min(overlapping_ms / float(np.mean([cpu for cpu, _ in alone])), 1.0),
        database_share=share,
    )


async def _one_by_one(ask: Ask, bodies: Sequence[bytes]) -> tuple[list[tuple[float, float]], float]:
    """CPU and waiting of each request after the first ``_WARM``, and the database's share of the waiting."""
    found: list[tuple[float, float]] = []
    computed_ns = 0
    for number, body in enumerate(bodies):
        if number == _WARM:
            computed_ns = _computed_ns()
        began_ns, began_cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        await ask(body)
        cpu_ns = time.process_time_ns() - began_cpu_ns
        took_ns = time.perf_counter_ns() - began_ns
        if number >= _WARM:
            found.append((cpu_ns / 1e6, max(took_ns - cpu_ns, 0) / 1e6))
        await asyncio.sleep(_PAUSE_S)
    waited_ms = sum(wait for _, wait in found)
    return found, min((_computed_ns() - computed_ns) / 1e6 / waited_ms, 1.0) if waited_ms else 1.0


async def _overlapping(ask: Ask, bodies: Sequence[bytes], rate: float) -> float:
    """Milliseconds of CPU of this process per request, at Poisson arrivals."""
    count = min(round(rate * _OVERLAPPING_S), len(bodies))
    at_s = np.cumsum(np.random.default_rng(0).exponential(1.0 / rate, count)).tolist()
    loop = asyncio.get_running_loop()
    began_s, began_cpu_ns = loop.time(), time.process_time_ns()
    async with asyncio.TaskGroup() as group:
        for due_s, body in zip(at_s, bodies, strict=False):
            await asyncio.sleep(began_s + due_s - loop.time())
            group.create_task(ask(body))
    return (time.process_time_ns() - began_cpu_ns) / 1e6 / count


def _computed_ns() -> int:
    """CPU time of the local PostgreSQL's processes that serve connections; 0 where there is none."""
    import psycopg

    url = os.environ["FLIGHT_RISK_DATABASE"]
    if not url.startswith("postgresql://"):
        return 0
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ).fetchall()
    # Nanoseconds on a core come first there (proc(5)).
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) for (pid,) in rows)


def fetches_of(queries: Queries, numbers: Sequence[int], groups: int) -> Mapping[int, tuple[tuple[float, float], ...]]:
    """By request's number, CPU and waiting of each group's fetch in nanoseconds: all groups alike."""
    return {
        number: ((cpu_ms * queries.overlapping * 1e6 / groups, wait_ms * 1e6 / groups),) * groups
        for number, (cpu_ms, wait_ms) in zip(numbers, queries.alone_ms, strict=True)
    }
