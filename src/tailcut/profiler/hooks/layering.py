"""Spans where a framework calls the user's functions, and where these call the framework again.

All of it is decided when the application is put together: a function of a library stays as it is, and a request that
meets no middleware, handler or stream of the user's pays for a comparison only.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import Any

from tailcut.profiler.recording.clocks import now
from tailcut.profiler.recording.tracing import CODE, OpenSpan, current, open_under, tracer
from tailcut.profiler.records import Stage

_ENCODE, _FRAMEWORK, _UNATTRIBUTED = Stage.ENCODE, Stage.FRAMEWORK, Stage.UNATTRIBUTED
_PLAIN = (FunctionType, MethodType)

Name = tuple[str, str]
"""Label and place."""


def users(function: Any) -> Name | None:
    """Name a callable of the user's; None where it is a library's.

    What a library made around a function of the user's, and holds as a closure, is the user's.
    """
    if not isinstance(function, (*_PLAIN, functools.partial)):
        function = type(function).__call__
    for one in (function, *_held(function)):
        label, place, own = tracer.places.describe(one)
        if own:
            return label, place
    return None


def _held(function: Any) -> list[Any]:
    found = []
    for cell in getattr(function, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    return [one for one in found if isinstance(one, _PLAIN)]


def coded(function: Any, *, endpoint: bool = False) -> Any:
    """A coroutine function of the user's with a span of code around each call; anything else as it is.

    Args:
        endpoint: it is what answers the request.
    """
    label, place, own = tracer.places.describe(function)
    if not own or not inspect.iscoroutinefunction(function) or getattr(function, "_tailcut", False):
        return function

    @functools.wraps(function)
    async def traced(*args: Any, **kwargs: Any) -> Any:
        with _within(CODE, label, place) as span:
            if endpoint and span is not None:
                span.trace.endpoint = (label, place)
            return await function(*args, **kwargs)

    traced._tailcut = True  # type: ignore[attr-defined]
    return traced


def reentered(function: Callable[..., Any]) -> Any:
    """A framework's coroutine function that the user's code may call: what it does is the framework's again."""

    @functools.wraps(function)
    async def traced(*args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None or (parent.stage is not CODE and parent.stage is not _UNATTRIBUTED):
            return await function(*args, **kwargs)
        with _within(_FRAMEWORK):
            return await function(*args, **kwargs)

    traced._tailcut = True  # type: ignore[attr-defined]
    return traced


def rendering(parent: OpenSpan, response: Any) -> OpenSpan:
    """Begin the span in which a response renders its content; the class is the user's where ``render`` is."""
    label, place, own = tracer.places.describe(type(response).render)
    return open_under(parent, _ENCODE, label if own else type(response).__name__, place if own else "")


def until_reply(function: Callable[..., Any]) -> Any:
    """The same for what gives a middleware of Starlette's the reply, which is sent when the middleware has returned.

    Until then all that the rest of the application has begun waits, and does nothing: it is over with the call.
    """

    async def traced(*args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None:
            return await function(*args, **kwargs)
        span, first = open_under(parent, _FRAMEWORK, _framework(parent)), len(parent.trace.spans)
        try:
            return await function(*args, **kwargs)
        finally:
            _end(span)
            for one in parent.trace.spans[first:]:
                if one.end_ns < 0 and one.cpu_ns < 0 and _below(one, span):
                    one.end_ns = span.end_ns

    return traced


def _below(span: OpenSpan, other: OpenSpan) -> bool:
    parent = span.parent
    while parent is not None and parent is not other:
        parent = parent.parent
    return parent is other


def _end(span: OpenSpan) -> None:
    """End a span, unless that was before it returned."""
    if span.end_ns < 0:
        span.end_ns = now()
    current.set(span.parent)


@contextmanager
def _within(stage: Stage, *name: str) -> Iterator[OpenSpan | None]:
    """Put a span around what runs inside for a request: the framework's has its name.

    It is not ended again where the reply has ended it (``until_reply``).
    """
    parent = current.get()
    if parent is None:
        yield None
        return
    span = open_under(parent, stage, *(name or (_framework(parent),)))
    try:
        yield span
    finally:
        _end(span)


def _framework(span: OpenSpan) -> str | bytes:
    """One name for all that the framework does in a request."""
    spans = span.trace.spans  # none in what runs for no request
    return spans[0].label if spans and spans[0].stage is _FRAMEWORK else "framework"


class _Around:
    """Stands for an application of the user's: has its attributes, and a span of code around its calls."""

    def __init__(self, app: Any, name: Name) -> None:
        self.app = app
        self._name = name

    # Not named like what takes requests in: stacks are of no interest below that (``stack_sampler``).
    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        with _within(CODE, *self._name):
            await self.app(scope, receive, send)

    def __getattr__(self, name: str) -> Any:
        if name == "app":
            raise AttributeError(name)
        return getattr(self.app, name)

    __call__ = _serve


class _Inside(_Around):
    """What a middleware of the user's is given to call: the framework again, but for the ``send`` that it passes on."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        with _within(_FRAMEWORK):
            await self.app(scope, receive, _sending(send))

    __call__ = _serve


def _sending(send: Any) -> Any:
    # By its file first: nearly always it is the server's own.
    code = getattr(send, "__code__", None)
    return coded(send) if code is not None and tracer.places.is_user(code.co_filename) else send


def layered(app: Any) -> Any:
    """An application of the user's, a function or an object that is called, with its span; a library's as it is."""
    name = users(app) if callable(app) and not isinstance(app, type) else None
    return app if name is None else _Around(app, name)


def layering(make: Any) -> Any:
    """What makes a middleware of the user's, so that its span is around it and the framework's inside; else as it is.

    Args:
        make: a class, or a function of (app, ...).
    """
    called = make.__call__ if isinstance(make, type) else make
    if users(called) is None or getattr(make, "_tailcut", False):
        return make

    @functools.wraps(make, updated=())
    def made(*args: Any, **kwargs: Any) -> Any:
        if "app" in kwargs:
            kwargs["app"] = _Inside(kwargs["app"])
        else:
            args = (_Inside(args[0]), *args[1:])
        app = make(*args, **kwargs)
        name = users(app) or users(called)
        return _Around(app, name) if name is not None else app

    made._tailcut = True  # type: ignore[attr-defined]
    return made


def reenter(owner: Any) -> None:
    """Watch the calls of a framework's class of applications: code of the user's may call one."""
    owner.__call__ = reentered(owner.__call__)
