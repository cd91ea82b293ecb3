"""Hooks on what applications call: drivers, HTTP clients, models, frameworks. Set when the application imports it."""

from __future__ import annotations

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
        hooks.update(room.HOOKS)
        prefixes.update(getattr(room, "PREFIXES", {}))
    ImportHooks(hooks, prefixes, _done).install()


def _done(name: str, error: Exception | None) -> None:
    package = name.partition(".")[0]
    if error is not None:
        tracer.note(f"{name} could not be hooked ({error}): its calls count as the code that makes them")
    elif package not in tracer.hooked:
        tracer.hooked.append(package)
