"""Puts a span around a function of somebody else's."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from tailcut.profiler.recording.background_calls import background_calls
from tailcut.profiler.recording.tracing import (
    LEAVES,
    close_span,
    close_timed,
    current,
    open_timed,
    open_under,
    tracer,
)  # fmt: skip
from tailcut.profiler.records import Stage

Label = str | Callable[[tuple[Any, ...], dict[str, Any]], str | bytes]
"""What a call is called: always the same, or made of its arguments."""
_KEPT_CHARS = 8_000
_FRAMEWORKS = frozenset({Stage.DECODE, Stage.ENCODE, Stage.FRAMEWORK})
"""What frameworks do has no line of the user's below it; looking for one would walk the whole stack."""


def wrap(
    owner: Any,
    name: str,
    stage: Stage,
    label: Label,
    *,
    more: bool = False,
) -> None:
    """Replace ``owner.name`` by the same with a span around each call, awaited or not.

    Args:
        owner: a class or module.
        name: of the function in it; a class method is one afterwards.
        stage, label: of the spans.
        more: of a call that has a span already, such as rows of a query: no call of its own.

    Raises:
        AttributeError: the owner has no such attribute; the library is another version than the hook knows.
    """
    original = inspect.getattr_static(owner, name)
    function = original.__func__ if isinstance(original, classmethod) else getattr(owner, name)
    if getattr(function, "_tailcut", False):
        return
    # asyncpg checks something first, in a function of its own.
    make = awaited if inspect.iscoroutinefunction(inspect.unwrap(function)) else called
    wrapped = make(function, stage, label, more=more)
    wrapped._tailcut = True
    setattr(owner, name, classmethod(wrapped) if isinstance(original, classmethod) else wrapped)


def wrap_present(
    owner: Any,
    names: tuple[str, ...],
    stage: Stage,
    label: Label | None,
    *,
    more: bool = False,
) -> None:
    """Wrap those of ``names`` that the owner has; without a label each goes by its own name.

    Raises:
        AttributeError: it has none of them.
    """
    found = [name for name in names if hasattr(owner, name)]
    if not found:
        raise AttributeError(f"{owner!r} has none of {', '.join(names)}")
    for name in found:
        wrap(owner, name, stage, name if label is None else label, more=more)


def after_init(owner: Any, attribute: str, change: Callable[[Any], Any]) -> None:
    """Change an attribute of each new object of a class."""
    original = owner.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        setattr(self, attribute, change(getattr(self, attribute)))

    owner.__init__ = init


def called(function: Callable[..., Any], stage: Stage, label: Label, *, more: bool = False) -> Any:
    """A function with a span around each call."""
    label = guarded(label)
    current_span = current.get
    spot, frame_of = tracer.places.spot, sys._getframe
    own = stage if stage in LEAVES else None
    outside = _outside(function, stage, label, more)
    looks = stage not in _FRAMEWORKS

    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        parent = current_span()
        if parent is None or parent.trace.over:
            return outside(*args, **kwargs)
        if parent.stage is own and not parent.parts:
            return function(*args, **kwargs)
        name = label if isinstance(label, str) else label(args, kwargs)
        place, at = spot(frame_of(1)) if looks else ("", 0)
        if looks and not place:
            place, at = parent.place, parent.at
        span = open_timed(parent, stage, name, place, at)
        span.more = more
        try:
            return function(*args, **kwargs)
        finally:
            close_timed(span)

    return traced


def awaited(function: Callable[..., Any], stage: Stage, label: Label, *, more: bool = False) -> Any:
    """A coroutine function with a span around each call."""
    label = guarded(label)
    current_span = current.get
    spot, frame_of = tracer.places.spot, sys._getframe
    own = stage if stage in LEAVES else None
    outside = _outside(function, stage, label, more, background_calls.await_)
    looks = stage not in _FRAMEWORKS

    @functools.wraps(function)
    async def traced(*args: Any, **kwargs: Any) -> Any:
        parent = current_span()
        if parent is None or parent.trace.over:
            return await outside(*args, **kwargs)
        if parent.stage is own:
            return await function(*args, **kwargs)
        name = label if isinstance(label, str) else label(args, kwargs)
        place, at = spot(frame_of(1)) if looks else ("", 0)
        if looks and not place:
            place, at = parent.place, parent.at
        span = open_under(parent, stage, name, place, at)
        span.more = more
        try:
            return await function(*args, **kwargs)
        finally:
            close_span(span)

    return traced


def guarded(label: Label) -> Label:
    """The same label, but "?" where it cannot be made: the user's call must not fail of it."""
    if isinstance(label, str):
        return label

    def made(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | bytes:
        try:
            return label(args, kwargs)
        except Exception:
            return "?"

    return made


def _outside(
    function: Callable[..., Any],
    stage: Stage,
    label: Label,
    more: bool,
    call: Callable[..., Any] = background_calls.call,
) -> Callable[..., Any]:
    """What is called for no request: some of it is counted."""
    if stage not in LEAVES:
        return function

    def counted(*args: Any, **kwargs: Any) -> Any:
        return call(stage, label if isinstance(label, str) else label(args, kwargs), function, args, kwargs, more)

    return counted


def query_of(value: Any) -> str | bytes:
    """A query as it is kept until the recording is over: text as it was given, anything else as text."""
    text = value if isinstance(value, (str, bytes)) else str(value)
    # A query may hold megabytes of values.
    return text if len(text) <= _KEPT_CHARS else text[:_KEPT_CHARS]
