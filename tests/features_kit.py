"""What the feature tests share: short ways to write groups and to run a service on a fake clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tailcut.features import FeatureService, FeatureSet
from tailcut.manifest.schema import Duration, FeatureGroup, Features, Share
from tailcut.testing import FakeClock

Functions = dict[str, Callable[..., Any]]


def group(name: str = "g", **settings: Any) -> FeatureGroup:
    """A group keyed by ``id`` with the column ``value``, from the function of its own name."""
    if "stale_for_s" in settings:
        settings["stale_for_s"] = Duration(settings["stale_for_s"])
    defaults: dict[str, Any] = {"key": ("id",), "columns": ("value",), "ttl": "10s"}
    if not {"sql", "preload_sql"} & settings.keys():
        defaults["function"] = f"test:{name}"
    return FeatureGroup(name=name, **(defaults | settings))


def features(*groups: FeatureGroup, **settings: Any) -> Features:
    """Features keyed by ``id``, without jitter unless it is asked for."""
    for name in ("timeout_s", "redis_timeout_s"):
        if name in settings:
            settings[name] = Duration(settings[name])
    settings["ttl_jitter"] = Share(settings.get("ttl_jitter", 0.0))
    return Features(**({"entity": ("id",), "groups": groups} | settings))


def resolver(functions: Functions) -> Callable[[str], Callable[..., Any]]:
    """``test:name`` -> functions[name]."""
    return lambda reference: functions[reference.removeprefix("test:")]


@asynccontextmanager
async def opened(clock: FakeClock, setup: Features, functions: Functions, **more: Any) -> AsyncIterator[FeatureService]:
    """A service on a fake clock, closed at the end."""
    service = await FeatureService.open(
        setup, resolve=resolver(functions), monotonic_s=clock.monotonic_s, wall_s=clock.wall_s, **more
    )
    try:
        yield service
    finally:
        await service.close()


Test = Callable[[FeatureService, FakeClock], Awaitable[None]]


def run(test: Test, setup: Features, functions: Functions, **more: Any) -> None:
    """Run ``test`` against a service, on a loop that follows a fake clock."""
    clock = FakeClock()

    async def main() -> None:
        async with opened(clock, setup, functions, **more) as service:
            await test(service, clock)

    clock.run(main())


async def get(
    service: FeatureService, clock: FakeClock, *ids: Any, tenant: str = "", within_s: float = 5.0
) -> FeatureSet:
    """Fetch entities with one field."""
    return await service.fetch([(id_,) for id_ in ids], tenant, clock.monotonic_s() + within_s)
