"""Starlette, and what FastAPI takes from it: bodies, replies, endpoints, middleware, handlers of exceptions, streams.

Each function is looked up by name and hooked on its own, so that a version in which one of them is gone loses that
stage, with a note, and nothing else. Synchronous endpoints and handlers are seen in their threads (``threads``).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from tailcut.profiler.hooks.imports import Hook
from tailcut.profiler.hooks.layering import (
    coded,
    entrances,
    layered,
    layering,
    rendering,
    until_reply,
    users,
)
from tailcut.profiler.hooks.streams import streamed
from tailcut.profiler.hooks.wrapping import after_init, wrap
from tailcut.profiler.recording.tracing import CODE, close_span, current, open_under
from tailcut.profiler.records import Stage

_METHODS = ("get", "head", "post", "put", "patch", "delete", "options", "query")


def _hook_requests(module: ModuleType) -> None:
    wrap(module.Request, "json", Stage.DECODE, "JSON")
    if hasattr(module.Request, "_get_form"):
        wrap(module.Request, "_get_form", Stage.DECODE, "form")


def _hook_responses(module: ModuleType) -> None:
    """Every response renders its content when it is made, the user's own classes too."""
    original = module.Response.__init__

    @functools.wraps(original)
    def init(self: Any, content: Any = None, *args: Any, **kwargs: Any) -> None:
        parent = current.get() if content is not None else None
        if parent is None:
            original(self, content, *args, **kwargs)
            return
        span = rendering(parent, self)
        try:
            original(self, content, *args, **kwargs)
        finally:
            close_span(span)

    module.Response.__init__ = init
    after_init(module.StreamingResponse, "body_iterator", streamed)


def _hook_routing(module: ModuleType) -> None:
    """Routes: an asynchronous endpoint is a function of the request, and so is an application that is mounted."""
    original = module.request_response

    @functools.wraps(original)
    def request_response(func: Callable[..., Any]) -> Any:
        return original(coded(func, endpoint=True))

    module.request_response = request_response  # type: ignore[attr-defined]
    _hook_mounts(module)


def _hook_mounts(module: ModuleType) -> None:
    for owner in (module.Mount, module.Host):
        _layer_argument(owner)
    original = module.Route.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.app is self.endpoint:
            self.app = layered(self.endpoint)

    module.Route.__init__ = init


def _layer_argument(owner: Any) -> None:
    """Give what is mounted its span: the second argument, ``app``."""
    original = owner.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if "app" in kwargs:
            kwargs["app"] = layered(kwargs["app"])
        elif len(args) > 1:
            args = (args[0], layered(args[1]), *args[2:])
        original(self, *args, **kwargs)

    owner.__init__ = init


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

    @functools.wraps(original)
    def iterate(self: Any) -> Iterator[Any]:
        make, *others = original(self)
        return iter((layering(make), *others))

    module.Middleware.__iter__ = iterate


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
        span = open_under(parent, CODE, *name)
        try:
            return await function(request, until_reply(call_next))
        finally:
            close_span(span)

    return dispatch


def _hook_exceptions(module: ModuleType) -> None:
    original = module.ExceptionMiddleware.add_exception_handler

    @functools.wraps(original)
    def add_exception_handler(self: Any, key: Any, handler: Any) -> None:
        original(self, key, coded(handler))

    module.ExceptionMiddleware.add_exception_handler = add_exception_handler


def _hook_errors(module: ModuleType) -> None:
    after_init(module.ServerErrorMiddleware, "handler", coded)


def _hook_application(module: ModuleType) -> None:
    entrances.add(module.Starlette)


HOOKS: dict[str, Hook] = {
    "starlette.requests": _hook_requests,
    "starlette.responses": _hook_responses,
    "starlette.routing": _hook_routing,
    "starlette.endpoints": _hook_endpoints,
    "starlette.middleware": _hook_middleware,
    "starlette.middleware.base": _hook_http_middleware,
    "starlette.middleware.exceptions": _hook_exceptions,
    "starlette.middleware.errors": _hook_errors,
    "starlette.applications": _hook_application,
}
