"""Requests of the load that are left as they are, so that tracing costs less. Runs in the profiled process.

No span is open in them, so that hooks do nothing; but what they call is no work in the background either (``strays``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import msgspec


class Untraced(msgspec.Struct, eq=False):
    """One of them on its way; what a task that it began does after it is no part of it."""

    over: bool = False


untraced: ContextVar[Untraced | None] = ContextVar("tailcut_untraced", default=None)
"""Whose work this is; None: a traced request's, or no request's. Tasks inherit it, and threads by ``handing``."""


def is_untraced() -> bool:
    """Say whether this code works for a request that is not traced."""
    request = untraced.get()
    return request is not None and not request.over


def handing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let the thread that a function is handed to know that it works for such a request; else the function as it is."""
    request = untraced.get()
    return function if request is None or request.over else functools.partial(_run, request, function)


def _run(request: Untraced, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    untraced.set(request)
    try:
        return function(*args, **kwargs)
    finally:
        untraced.set(None)
