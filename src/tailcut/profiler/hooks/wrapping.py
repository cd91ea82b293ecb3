"""Puts spans around functions of libraries."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from tailcut.profiler.hooks.imports import Hook
from tailcut.profiler.recording.background_calls import background_calls
from tailcut.profiler.recording.tracing import LEAVES, OpenSpan, current, open_timed, open_under, tracer
from tailcut.profiler.records import Stage

Label = str | Callable[[tuple[Any, ...], dict[str, Any]], str | bytes]
"""What a call is called: always the same, or made of its arguments."""
_KEPT_CHARS = 8_000
_FRAMEWORKS = frozenset({Stage.DECODE, Stage.ENCODE, Stage.FRAMEWORK})
"""What frameworks do has no line of the user's below it; looking for one would walk the whole stack."""
_NOTHING = nullcontext()


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


def wrap_present(owner: Any, names: Sequence[str], stage: Stage, label: Label, *, more: bool = False) -> None:
    """Wrap those of ``names`` that the owner has.

    Raises:
        AttributeError: it has none of them.
    """
    found = [name for name in names if hasattr(owner, name)]
    if not found:
        raise AttributeError(f"{owner!r} has none of {', '.join(names)}")
    for name in found:
        wrap(owner, name, stage, label, more=more)


class Calls(NamedTuple):
    """Calls of a module that get spans.

    Attributes:
        owner: class in the module; empty: the module itself.
        names: of its functions, separated by blanks; a version of the library has at least one of them.
        stage, label, more: as of ``wrap``.
    """

    owner: str
    names: str
    stage: Stage
    label: Label
    more: bool = False


def hook_of(*calls: Calls) -> Hook:
    """Return the hook that puts spans around these calls."""

    def hook(module: ModuleType) -> None:
        for owner, names, stage, label, more in calls:
            wrap_present(getattr(module, owner) if owner else module, names.split(), stage, label, more=more)

    return hook


def replaces(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put the function below in the place of ``owner.name``, with its name and signature."""

    def put(function: Callable[..., Any]) -> Callable[..., Any]:
        setattr(owner, name, functools.wraps(getattr(owner, name))(function))
        return function

    return put


def classes_of(module: ModuleType) -> list[type]:
    """List the classes that a module defines."""
    found = list(vars(module).values())
    return [one for one in found if isinstance(one, type) and one.__module__ == module.__name__]


def replace_methods(owner: type, names: Iterable[str], make: Callable[[Callable[..., Any], str], Any]) -> None:
    """Replace methods of a class, or of the base that it has them from, once each.

    Args:
        names: of the methods; some of scikit-learn's stand behind ``available_if``.
        make: makes the new method from the old one and its name.
    """
    for name in names:
        base = next((one for one in owner.__mro__ if name in vars(one)), None)
        found = vars(base).get(name) if base is not None else None
        function = found if inspect.isfunction(found) else getattr(found, "fn", None)
        if not inspect.isfunction(function) or getattr(function, "_tailcut", False):
            continue
        made = make(function, name)
        made._tailcut = True
        if function is found:
            setattr(base, name, made)
        else:
            found.fn = made  # type: ignore[union-attr]


def after_init(owner: Any, attribute: str, change: Callable[[Any], Any]) -> None:
    """Change an attribute of each new object of a class."""
    original = owner.__init__

    @replaces(owner, "__init__")
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        setattr(self, attribute, change(getattr(self, attribute)))


def called(function: Callable[..., Any], stage: Stage, label: Label, *, more: bool = False) -> Any:
    """A function with a span around each call."""
    around, frame_of = _around_of(stage, label, more, open_timed), sys._getframe

    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        with around(args, kwargs, frame_of(1)):
            return function(*args, **kwargs)

    return traced


def awaited(function: Callable[..., Any], stage: Stage, label: Label, *, more: bool = False) -> Any:
    """A coroutine function with a span around each call."""
    around, frame_of = _around_of(stage, label, more, open_under), sys._getframe

    @functools.wraps(function)
    async def traced(*args: Any, **kwargs: Any) -> Any:
        with around(args, kwargs, frame_of(1)):
            return await function(*args, **kwargs)

    return traced


def _around_of(
    stage: Stage, label: Label, more: bool, open_in: Callable[..., OpenSpan]
) -> Callable[[tuple[Any, ...], dict[str, Any], FrameType], AbstractContextManager[object]]:
    """Return what chooses the context of a call by its arguments and its caller's frame.

    In a request it is a span, unless the call is part of another one of its kind. Outside of requests, calls of some
    stages are counted.
    """
    current_span, spot = current.get, tracer.places.spot
    own = stage if stage in LEAVES else None
    looks = stage not in _FRAMEWORKS

    def name_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | bytes:
        try:
            return label if isinstance(label, str) else label(args, kwargs)
        except Exception:  # the user's call must not fail of it
            return "?"

    def around(args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> AbstractContextManager[object]:
        parent = current_span()
        if parent is None or parent.trace.over:
            return _NOTHING if own is None else background_calls.counted(stage, name_of(args, kwargs), more=more)
        if parent.stage is own and not parent.parts:
            return _NOTHING
        place, at = spot(frame) if looks else ("", 0)
        if looks and not place:
            place, at = parent.place, parent.at
        span = open_in(parent, stage, name_of(args, kwargs), place, at)
        span.more = more
        return span

    return around


def query_of(value: Any) -> str | bytes:
    """A query as it is kept until the recording is over: text as it was given, anything else as text."""
    text = value if isinstance(value, (str, bytes)) else str(value)
    # A query may hold megabytes of values.
    return text if len(text) <= _KEPT_CHARS else text[:_KEPT_CHARS]
