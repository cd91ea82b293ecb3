"""Hooks on what applications call: drivers, HTTP clients, models, frameworks. Set when the application imports it."""

from __future__ import annotations

from types import ModuleType

from tailcut.profiler.hooks import (
    caches,
    databases,
    deployments,
    estimators,
    fastapi,
    http,
    locks,
    models,
    otel,
    processes,
    sqlite,
    starlette,
    threads,
)
from tailcut.profiler.hooks.imports import Hook, ImportHooks
from tailcut.profiler.recording.tracing import tracer


def install_hooks() -> None:
    """Hook what is imported already, and everything that has a hook when it is imported."""
    hooks: dict[str, Hook] = {}
    prefixes: dict[str, Hook] = {}
    for room in (
        threads,
        processes,
        locks,
        starlette,
        fastapi,
        sqlite,
        databases,
        caches,
        http,
        models,
        estimators,
        otel,
        deployments,
    ):
        for name, hook in room.HOOKS.items():
            hooks[name] = _both(hooks[name], hook) if name in hooks else hook
        prefixes.update(getattr(room, "PREFIXES", {}))
    ImportHooks(hooks, prefixes, _done).install()


def _both(one: Hook, other: Hook) -> Hook:
    def hook(module: ModuleType) -> None:
        one(module)
        other(module)

    return hook


def _done(name: str, error: Exception | None) -> None:
    package = name.partition(".")[0]
    if error is not None:
        tracer.note(f"{name} could not be hooked ({error}): its calls count as the code that makes them")
    elif package not in tracer.hooked:
        tracer.hooked.append(package)
