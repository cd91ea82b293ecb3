"""Litestar: handlers, what comes before and after them, middleware, dependencies, bodies and replies.

What its second version calls is known; a third one, or another, loses what is gone from it, with a note.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import GeneratorType, ModuleType
from typing import Any

from tailcut.profiler.hooks.imports import Hook
from tailcut.profiler.hooks.layering import coded, coded_sync, entrances, layering, rendering
from tailcut.profiler.hooks.streams import streamed
from tailcut.profiler.hooks.wrapping import after_init, called, wrap, wrap_present
from tailcut.profiler.recording.tracing import CODE, close_span, current, open_under, tracer
from tailcut.profiler.records import Stage

_ENCODE, _DECODE = Stage.ENCODE, Stage.DECODE
_CALL = "dependency "
_END = object()


def _hook_application(module: ModuleType) -> None:
    entrances.add(module.Litestar)


def _hook_stack(module: ModuleType) -> None:
    """Where a route is put together its handler is whole, and nobody has called it yet."""
    original = module.build_route_middleware_stack

    @functools.wraps(original)
    def build_route_middleware_stack(app: Any, route: Any, route_handler: Any) -> Any:
        try:
            _trace_handler(route_handler)
        except AttributeError as error:
            tracer.note(f"a handler of Litestar's could not be hooked ({error}): its time counts as the framework's")
        return original(app, route, route_handler)

    module.build_route_middleware_stack = build_route_middleware_stack  # type: ignore[attr-defined]


def _trace_handler(handler: Any) -> None:
    function = handler._fn
    if inspect.iscoroutinefunction(function):
        handler._fn = coded(function, endpoint=True)
    elif type(function).__module__ == "litestar.utils.sync":
        # To be called in a thread, where it has its span.
        function.func = _named(function.func)
    else:
        handler._fn = coded_sync(function, endpoint=True)


def _named(function: Any) -> Any:
    """Say that a function answers the request."""
    label, place, own = tracer.places.describe(function)
    if not own or getattr(function, "_tailcut", False):
        return function

    @functools.wraps(function)
    def named(*args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is not None:
            parent.trace.endpoint = (label, place)
        return function(*args, **kwargs)

    named._tailcut = True  # type: ignore[attr-defined]
    return named


def _hook_handlers(module: ModuleType) -> None:
    original = module.BaseRouteHandler.resolve_middleware

    @functools.wraps(original)
    def resolve_middleware(self: Any) -> list[Any]:
        return [_layering(one) for one in original(self)]

    module.BaseRouteHandler.resolve_middleware = resolve_middleware


def _layering(middleware: Any) -> Any:
    """What makes a middleware: a class, a function, an object that is called with the application, or a pair."""
    if hasattr(middleware, "__iter__"):
        make, kwargs = middleware
        return layering(make), kwargs
    if all(hasattr(middleware, name) for name in ("middleware", "args", "kwargs")):
        return functools.partial(layering(middleware.middleware), *middleware.args, **middleware.kwargs)
    # An ASGIMiddleware has the user's work in a method of its own.
    handle = getattr(type(middleware), "handle", None)
    return layering(middleware) if handle is None else layering(_handling(middleware, handle))


def _handling(middleware: Any, handle: Any) -> Any:
    @functools.wraps(handle)
    def make(app: Any) -> Any:
        return middleware(app)

    return make


def _hook_callables(module: ModuleType) -> None:
    """Guards, and functions before and after a request: Litestar takes each through this when it is put together."""
    original = module.ensure_async_callable

    @functools.wraps(original)
    def ensure_async_callable(fn: Any) -> Any:
        return coded(original(fn))

    module.ensure_async_callable = ensure_async_callable  # type: ignore[attr-defined]
    _hook_generators(module)


def _hook_generators(module: ModuleType) -> None:
    """Generators that are asked for their pieces in threads: what a thread is given says which generator it is."""
    original = module.AsyncIteratorWrapper.__init__

    async def pieces(generator: Any) -> Any:
        while (piece := await module.sync_to_thread(next, generator, _END)) is not _END:
            yield piece

    @functools.wraps(original)
    def init(self: Any, iterator: Any) -> None:
        original(self, iterator)
        if type(iterator) is GeneratorType and current.get() is not None:
            self.generator = pieces(iterator)

    module.AsyncIteratorWrapper.__init__ = init


def _hook_exceptions(module: ModuleType) -> None:
    original = module.get_exception_handler

    @functools.wraps(original)
    def get_exception_handler(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        return coded_sync(found) if found is not None else None

    module.get_exception_handler = get_exception_handler  # type: ignore[attr-defined]


def _hook_dependencies(module: ModuleType) -> None:
    original = module.resolve_dependency

    @functools.wraps(original)
    async def resolve_dependency(dependency: Any, *args: Any, **kwargs: Any) -> None:
        parent = current.get()
        label, place, own = tracer.places.describe(_provided(dependency.provide.dependency))
        if parent is None or not own:
            await original(dependency, *args, **kwargs)
            return
        span = open_under(parent, CODE, f"{_CALL}{label}", place)
        try:
            await original(dependency, *args, **kwargs)
        finally:
            close_span(span)

    module.resolve_dependency = resolve_dependency  # type: ignore[attr-defined]


def _provided(function: Any) -> Callable[..., Any]:
    # What is called in a thread has a library's object around it.
    return getattr(function, "func", function)  # type: ignore[no-any-return]


def _hook_requests(module: ModuleType) -> None:
    wrap(module.Request, "json", _DECODE, "JSON")
    wrap(module.Request, "msgpack", _DECODE, "MessagePack")
    wrap(module.Request, "form", _DECODE, "form")


def _hook_signatures(module: ModuleType) -> None:
    original = inspect.getattr_static(module.SignatureModel, "parse_values_from_connection_kwargs").__func__
    validated = called(original, _DECODE, "body validation")
    module.SignatureModel.parse_values_from_connection_kwargs = classmethod(validated)


def _hook_transfers(module: ModuleType) -> None:
    wrap_present(module.AbstractDTO, ("decode_bytes", "decode_builtins"), _DECODE, "transfer object")
    wrap(module.AbstractDTO, "data_to_encodable_type", _ENCODE, "transfer object")


def _hook_responses(module: ModuleType) -> None:
    original = module.Response.to_asgi_response

    @functools.wraps(original)
    def to_asgi_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None:
            return original(self, *args, **kwargs)
        span = rendering(parent, self)
        try:
            return original(self, *args, **kwargs)
        finally:
            close_span(span)

    module.Response.to_asgi_response = to_asgi_response


def _hook_templates(module: ModuleType) -> None:
    wrap(module.Template, "to_asgi_response", _ENCODE, "template")


def _hook_streams(module: ModuleType) -> None:
    after_init(module.ASGIStreamingResponse, "iterator", streamed)


def _hook_events(module: ModuleType) -> None:
    after_init(module._ServerSentEventIterator, "content_async_iterator", streamed)


HOOKS: dict[str, Hook] = {
    "litestar.app": _hook_application,
    "litestar._asgi.routing_trie.mapping": _hook_stack,
    "litestar.handlers.base": _hook_handlers,
    "litestar.utils.sync": _hook_callables,
    "litestar.middleware._internal.exceptions.middleware": _hook_exceptions,
    "litestar._kwargs.kwargs_model": _hook_dependencies,
    "litestar.connection.request": _hook_requests,
    "litestar._signature.model": _hook_signatures,
    "litestar.dto.base_dto": _hook_transfers,
    "litestar.response.base": _hook_responses,
    "litestar.response.template": _hook_templates,
    "litestar.response.streaming": _hook_streams,
    "litestar.response.sse": _hook_events,
}
