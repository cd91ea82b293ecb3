"""Web frameworks: what of a request is their own work, and which functions of the user's they call for it."""

from __future__ import annotations

from tailcut.profiler.hooks import fastapi, litestar, starlette
from tailcut.profiler.hooks.imports import Hook

HOOKS: dict[str, Hook] = starlette.HOOKS | fastapi.HOOKS | litestar.HOOKS
