"""Puts a span around a function of somebody else's."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from tailcut.core.profiling.records import Stage
from tailcut.profile.tracing import LEAVES, Open, close_span, close_timed, current, open_span, open_timed, tracer

Label = Callable[[tuple[Any, ...], dict[str, Any]], str]
_LABEL_CHARS = 2_000
_FRAMEWORKS = frozenset({Stage.DECODE, Stage.ENCODE, Stage.FRAMEWORK})


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
    leaf = stage in LEAVES

    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None or (leaf and parent.stage is stage):
            return function(*args, **kwargs)
        opened = open_timed(stage, label(args, kwargs)[:_LABEL_CHARS], _place(stage, parent))
        try:
            return function(*args, **kwargs)
        finally:
            close_timed(opened)

    return traced


def awaited(function: Callable[..., Any], stage: Stage, label: Label) -> Any:
    """A coroutine function with a span around each call."""
    leaf = stage in LEAVES

    @functools.wraps(function)
    async def traced(*args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None or (leaf and parent.stage is stage):
            return await function(*args, **kwargs)
        span = open_span(stage, label(args, kwargs)[:_LABEL_CHARS], _place(stage, parent))
        try:
            return await function(*args, **kwargs)
        finally:
            close_span(span)

    return traced


def _place(stage: Stage, parent: Open) -> str:
    # What frameworks do has no line of the user's below it; looking for one would walk the whole stack.
    if stage in _FRAMEWORKS:
        return ""
    return tracer.places.here(sys._getframe(2)) or parent.place


def fixed(text: str) -> Label:
    """A label that is always the same."""
    return lambda args, kwargs: text


def text_of(value: Any) -> str:
    """A query as text, its white space in one line."""
    return _one_line(value) if isinstance(value, str | bytes) else _one_line(str(value))


@functools.lru_cache(maxsize=1024)
def _one_line(value: str | bytes) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return " ".join(text.split())
