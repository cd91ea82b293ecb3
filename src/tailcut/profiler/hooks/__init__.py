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
from tailcut.profiler.hooks.imports import ImportHooks
from tailcut.profiler.recording.tracing import tracer


def install_hooks() -> None:
    """Hook what is imported already, and everything that has a hook when it is imported."""
    catalogue = (
        threads, processes, locks, starlette, fastapi, sqlite, databases, caches, http, models, estimators, otel,
        deployments,
    )  # fmt: skip
    hooks = {name: hook for library in catalogue for name, hook in library.HOOKS.items()}
    ImportHooks(hooks, estimators.PREFIXES, _done).install()


def _done(name: str, error: Exception | None) -> None:
    package = name.partition(".")[0]
    if error is not None:
        tracer.note(f"{name} could not be hooked ({error}): its calls count as the code that makes them")
    elif package not in tracer.hooked:
        tracer.hooked.append(package)
