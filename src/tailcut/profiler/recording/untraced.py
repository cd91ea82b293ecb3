"""Requests of the load that are left as they are, so that tracing costs less. Runs in the profiled process.

No span is open in them, so that hooks do nothing; but what they call is no work in the background either
(``background_calls``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import msgspec


class Untraced(msgspec.Struct, eq=False):
    """One of them on its way.

    Args:
        number: of the request.
        endpoint: label and place of what answered a traced one with the same method and path; None: not known.
        over: what a task that it began does from now on is no part of it.
    """

    number: int
    endpoint: tuple[str, str] | None = None
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
    return function if request is None or request.over else _Handing(request, function)


class _Handing:
    """A function on its way to a thread; what is asked of it otherwise, its name for example, is the function's."""

    __slots__ = ("_function", "_request")

    def __init__(self, request: Untraced, function: Callable[..., Any]) -> None:
        self._request = request
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # An executor may run it where it stands, in the midst of the request.
        before = untraced.get()
        untraced.set(self._request)
        try:
            return self._function(*args, **kwargs)
        finally:
            untraced.set(before)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)
