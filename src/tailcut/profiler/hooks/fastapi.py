"""FastAPI: validating the body, dependencies, the endpoint, routes of the user's own kind, the reply."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tailcut.profiler.hooks.imports import Hook
from tailcut.profiler.hooks.layering import coded, reenter, reentered
from tailcut.profiler.hooks.starlette import streamed
from tailcut.profiler.hooks.wrapping import replaces, wrap
from tailcut.profiler.recording.tracing import CODE, OpenSpan, close_span, current, open_under, tracer
from tailcut.profiler.records import Stage


def _hook_routing(module: ModuleType) -> None:
    _wrap_endpoint(module)
    _wrap_streams(module)
    _wrap_custom_routes(module)
    wrap(module, "serialize_response", Stage.ENCODE, "response model")


def _wrap_endpoint(module: ModuleType) -> None:
    original = module.run_endpoint_function

    async def in_span(parent: OpenSpan, label: str, place: str, args: Any, kwargs: Any) -> Any:
        with open_under(parent, CODE, label, place):
            return await original(*args, **kwargs)

    # No coroutine of its own where there is no span: a synchronous endpoint has one in its thread.
    @replaces(module, "run_endpoint_function")
    def run_endpoint_function(*args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        dependant = kwargs.get("dependant", args[0] if args else None)
        if parent is None or dependant is None:
            return original(*args, **kwargs)
        label, place, _ = tracer.places.describe(dependant.call)
        parent.trace.endpoint = (label, place)
        if not kwargs.get("is_coroutine", args[2] if len(args) > 2 else False):
            return original(*args, **kwargs)
        return in_span(parent, label, place, args, kwargs)


def _wrap_streams(module: ModuleType) -> None:
    """Endpoints that are asynchronous generators: what the reply is made of has FastAPI's own generators around it."""
    original = module.get_request_handler

    @replaces(module, "get_request_handler")
    def get_request_handler(dependant: Any, *args: Any, **kwargs: Any) -> Any:
        if inspect.isasyncgenfunction(dependant.call):
            dependant = copy.copy(dependant)
            dependant.call = _streaming(dependant.call)
        return original(dependant, *args, **kwargs)


def _streaming(function: Callable[..., Any]) -> Any:
    label, place, _ = tracer.places.describe(function)

    # FastAPI asks whether it is an asynchronous generator by its flags.
    @functools.wraps(function)
    async def pieces(*args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is not None:
            parent.trace.endpoint = (label, place)
        generator = function(*args, **kwargs)
        try:
            async for piece in streamed(generator):
                yield piece
        finally:
            # As soon as no more pieces are read, as without this hook.
            await generator.aclose()

    return pieces


def _wrap_custom_routes(module: ModuleType) -> None:
    """Kinds of routes that the user defines put a function of his around FastAPI's handling of a request."""
    original, handler = module.request_response, module.APIRoute.get_route_handler

    @replaces(module, "request_response")
    def request_response(func: Callable[..., Any]) -> Any:
        return original(coded(func))

    @replaces(module.APIRoute, "get_route_handler")
    def get_route_handler(self: Any) -> Any:
        found = handler(self)
        return found if type(self).get_route_handler is get_route_handler else reentered(found)


def _hook_dependencies(module: ModuleType) -> None:
    """FastAPI solves dependencies by recursion: what comes after a dependency's own ones are solved is its call.

    The span of a call begins when the recursion returns and ends when the next one begins, or the parameters are read.
    """
    wrap(module, "request_body_to_args", Stage.DECODE, "body validation")
    original = module.solve_dependencies
    parameters = module.request_params_to_args

    async def solved_in(outer: OpenSpan, dependant: Any, args: Any, kwargs: Any) -> Any:
        _end_call(outer)
        try:
            solved = await original(*args, **kwargs)
        finally:
            _end_call(current.get())
        parent = current.get()
        called = kwargs.get("dependency_cache") is not None and getattr(dependant, "call", None) is not None
        if called and parent is not None:
            label, place, own = tracer.places.describe(dependant.call)
            if own:
                open_under(parent, CODE, f"{_CALL}{label}", place)
        return solved

    @replaces(module, "solve_dependencies")
    def solve_dependencies(*args: Any, **kwargs: Any) -> Any:
        outer = current.get()
        dependant = kwargs.get("dependant")
        # The endpoint itself, without any dependency: there is no call to tell apart.
        alone = kwargs.get("dependency_cache") is None and not getattr(dependant, "dependencies", True)
        if outer is None or alone:
            return original(*args, **kwargs)
        return solved_in(outer, dependant, args, kwargs)

    @replaces(module, "request_params_to_args")
    def request_params_to_args(*args: Any, **kwargs: Any) -> Any:
        span = current.get()
        if span is not None:
            _end_call(span)
        return parameters(*args, **kwargs)


_CALL = "dependency "


def _end_call(span: OpenSpan | None) -> None:
    if span is not None and span.stage is CODE and str(span.label).startswith(_CALL):
        close_span(span)


HOOKS: dict[str, Hook] = {
    "fastapi.routing": _hook_routing,
    "fastapi.dependencies.utils": _hook_dependencies,
    "fastapi.applications": lambda module: reenter(module.FastAPI),
}
