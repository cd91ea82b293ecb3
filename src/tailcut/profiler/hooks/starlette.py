"""Starlette, and what FastAPI takes from it: bodies, replies, endpoints, middleware, handlers of exceptions, streams.

Each function is looked up by name and hooked on its own, so that a version in which one of them is gone loses that
stage, with a note, and nothing else. Synchronous endpoints and handlers are seen in their threads (``threads``).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from tailcut.profiler.hooks.imports import Hook
from tailcut.profiler.hooks.layering import (
    coded,
    layered,
    layering,
    reenter,
    rendering,
    until_reply,
    users,
)
from tailcut.profiler.hooks.wrapping import Calls, after_init, hook_of, replaces
from tailcut.profiler.recording.tracing import CODE, DROPPED_NS, current, open_under, tracer
from tailcut.profiler.records import Stage

_METHODS = ("get", "head", "post", "put", "patch", "delete", "options", "query")


def _hook_responses(module: ModuleType) -> None:
    """Every response renders its content when it is made, the user's own classes too."""
    original = module.Response.__init__

    @replaces(module.Response, "__init__")
    def init(self: Any, content: Any = None, *args: Any, **kwargs: Any) -> None:
        parent = current.get() if content is not None else None
        if parent is None:
            original(self, content, *args, **kwargs)
            return
        with rendering(parent, self):
            original(self, content, *args, **kwargs)

    after_init(module.StreamingResponse, "body_iterator", streamed)


def _hook_routing(module: ModuleType) -> None:
    """Routes: an asynchronous endpoint is a function of the request, and so is an application that is mounted."""
    original = module.request_response

    @replaces(module, "request_response")
    def request_response(func: Callable[..., Any]) -> Any:
        return original(coded(func, endpoint=True))

    _hook_mounts(module)


def _hook_mounts(module: ModuleType) -> None:
    for owner in (module.Mount, module.Host):
        _layer_argument(owner)
    original = module.Route.__init__

    @replaces(module.Route, "__init__")
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.app is self.endpoint:
            self.app = layered(self.endpoint)


def _layer_argument(owner: Any) -> None:
    """Give what is mounted its span: the second argument, ``app``."""
    original = owner.__init__

    @replaces(owner, "__init__")
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if "app" in kwargs:
            kwargs["app"] = layered(kwargs["app"])
        elif len(args) > 1:
            args = (args[0], layered(args[1]), *args[2:])
        original(self, *args, **kwargs)


def _hook_endpoints(module: ModuleType) -> None:
    """Classes with a method per HTTP method."""

    def init_subclass(cls: Any, /, **kwargs: Any) -> None:
        super(module.HTTPEndpoint, cls).__init_subclass__(**kwargs)
        for name in _METHODS:
            function = inspect.getattr_static(cls, name, None)
            if inspect.iscoroutinefunction(function):
                setattr(cls, name, coded(function, endpoint=True))

    module.HTTPEndpoint.__init_subclass__ = classmethod(init_subclass)


def _hook_middleware(module: ModuleType) -> None:
    """Where an application, router or route puts its middleware together, it asks each for its class."""
    original = module.Middleware.__iter__

    @replaces(module.Middleware, "__iter__")
    def iterate(self: Any) -> Iterator[Any]:
        make, *others = original(self)
        return iter((layering(make), *others))


def _hook_http_middleware(module: ModuleType) -> None:
    after_init(module.BaseHTTPMiddleware, "dispatch_func", _dispatching)


def _dispatching(function: Any) -> Any:
    """A middleware's function with its span; the rest of the application is the framework's in it, until it replies."""
    name = users(function)
    if name is None:
        return function

    @functools.wraps(function)
    async def dispatch(request: Any, call_next: Any) -> Any:
        parent = current.get()
        if parent is None:
            return await function(request, call_next)
        with open_under(parent, CODE, *name):
            return await function(request, until_reply(call_next))

    return dispatch


def _hook_exceptions(module: ModuleType) -> None:
    original = module.ExceptionMiddleware.add_exception_handler

    @replaces(module.ExceptionMiddleware, "add_exception_handler")
    def add_exception_handler(self: Any, key: Any, handler: Any) -> None:
        original(self, key, coded(handler))


def _hook_errors(module: ModuleType) -> None:
    after_init(module.ServerErrorMiddleware, "handler", coded)


def streamed(content: Any) -> Any:
    """An asynchronous iterator of the user's with a span around each piece; anything else as it is."""
    if current.get() is None or not hasattr(content, "__aiter__"):
        return content
    method = getattr(type(content), "__anext__", None)
    label, place, own = tracer.places.describe(method if isinstance(method, FunctionType) else content)
    return _Pieces(content, label, place) if own else content


class _Pieces:
    """Pieces of a reply that is sent while the user's asynchronous generator makes it: each piece is code.

    Other generators are asked for their pieces in threads (``threads``).
    """

    def __init__(self, content: Any, label: str, place: str) -> None:
        self._content = content
        self._name = label, place

    def __aiter__(self) -> AsyncIterator[Any]:
        pieces = self._content.__aiter__()
        # What makes a new iterator each time can be read again, and stays so.
        return self if pieces is self._content else _Pieces(pieces, *self._name)

    async def __anext__(self) -> Any:
        parent = current.get()
        if parent is None:
            return await self._content.__anext__()
        span = open_under(parent, CODE, *self._name)
        try:
            with span:
                return await self._content.__anext__()
        finally:
            spans = span.trace.spans
            # A reply has many pieces, and a request may have only so many spans.
            if spans and spans[-1] is span and span.end_ns - span.start_ns < DROPPED_NS:
                spans.pop()

    def __getattr__(self, name: str) -> Any:
        if name == "_content":
            raise AttributeError(name)
        return getattr(self._content, name)


HOOKS: dict[str, Hook] = {
    "starlette.requests": hook_of(
        Calls("Request", "json", Stage.DECODE, "JSON"), Calls("Request", "_get_form", Stage.DECODE, "form")
    ),
    "starlette.responses": _hook_responses,
    "starlette.routing": _hook_routing,
    "starlette.endpoints": _hook_endpoints,
    "starlette.middleware": _hook_middleware,
    "starlette.middleware.base": _hook_http_middleware,
    "starlette.middleware.exceptions": _hook_exceptions,
    "starlette.middleware.errors": _hook_errors,
    "starlette.applications": lambda module: reenter(module.Starlette),
}
