"""Puts a span around a function of somebody else's."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from tailcut.core.profiling.records import Stage
from tailcut.profile.tracing import LEAVES, close_span, close_timed, current, open_timed, open_under, shortened, tracer

Label = str | Callable[[tuple[Any, ...], dict[str, Any]], str | bytes]
"""What a call is called: always the same, or made of its arguments."""
_FRAMEWORKS = frozenset({Stage.DECODE, Stage.ENCODE, Stage.FRAMEWORK})
"""What frameworks do has no line of the user's below it; looking for one would walk the whole stack."""


def wrap(owner: Any, name: str, stage: Stage, label: Label) -> None:
    """Replace ``owner.name`` by the same with a span around each call, awaited or not.

    Raises:
        AttributeError: the owner has no such attribute; the library is another version than the hook knows.
    """
    original = inspect.getattr_static(owner, name)
    if getattr(original, "_tailcut", False):
        return
    function = getattr(owner, name)
    make = awaited if inspect.iscoroutinefunction(function) else called
    wrapped = make(function, stage, label)
    wrapped._tailcut = True
    setattr(owner, name, wrapped)


def wrap_present(owner: Any, names: tuple[str, ...], stage: Stage, label: Label) -> None:
    """Wrap those of ``names`` that the owner has.

    Raises:
        AttributeError: it has none of them.
    """
    found = [name for name in names if hasattr(owner, name)]
    if not found:
        raise AttributeError(f"{owner!r} has none of {', '.join(names)}")
    for name in found:
        wrap(owner, name, stage, label)


def called(function: Callable[..., Any], stage: Stage, label: Label) -> Any:
    """A function with a span around each call."""
    current_span, spot, frame_of = current.get, tracer.places.spot, sys._getframe
    own = stage if stage in LEAVES else None
    looks = stage not in _FRAMEWORKS

    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        parent = current_span()
        if parent is None or parent.stage is own:
            return function(*args, **kwargs)
        name = label if isinstance(label, str) else label(args, kwargs)
        place, at = spot(frame_of(1)) if looks else ("", 0)
        if looks and not place:
            place, at = parent.place, parent.at
        span = open_timed(parent, stage, name, place, at)
        try:
            return function(*args, **kwargs)
        finally:
            close_timed(span)

    return traced


def awaited(function: Callable[..., Any], stage: Stage, label: Label) -> Any:
    """A coroutine function with a span around each call."""
    current_span, spot, frame_of = current.get, tracer.places.spot, sys._getframe
    own = stage if stage in LEAVES else None
    looks = stage not in _FRAMEWORKS

    @functools.wraps(function)
    async def traced(*args: Any, **kwargs: Any) -> Any:
        parent = current_span()
        if parent is None or parent.stage is own:
            return await function(*args, **kwargs)
        name = label if isinstance(label, str) else label(args, kwargs)
        place, at = spot(frame_of(1)) if looks else ("", 0)
        if looks and not place:
            place, at = parent.place, parent.at
        span = open_under(parent, stage, name, place, at)
        try:
            return await function(*args, **kwargs)
        finally:
            close_span(span)

    return traced


def query_of(value: Any) -> str | bytes:
    """A query as it is kept until the recording is over: text as it was given, anything else as text."""
    return shortened(value if isinstance(value, (str, bytes)) else str(value))
