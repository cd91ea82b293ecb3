"""Starlette and FastAPI: reading and validating the body, dependencies, middleware, the endpoint, the reply.

Each function is looked up by name and hooked on its own, so that a version in which one of them is gone loses that
stage, with a note, and nothing else. Synchronous endpoints and dependencies are seen in their threads (``threads``).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tailcut.core.profiling.records import Stage
from tailcut.profile.hooks.imports import Hook
from tailcut.profile.hooks.wrapping import wrap
from tailcut.profile.tracing import CODE, Open, close_span, current, open_span, open_under, tracer

_ENCODE = Stage.ENCODE


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
        label, place, users = tracer.places.describe(type(self).render)
        span = open_under(parent, _ENCODE, label if users else type(self).__name__, place if users else "")
        try:
            original(self, content, *args, **kwargs)
        finally:
            close_span(span)

    module.Response.__init__ = init


def _hook_routing(module: ModuleType) -> None:
    """Starlette's own routes: an asynchronous endpoint is a function of the request."""
    original = module.request_response

    @functools.wraps(original)
    def request_response(func: Callable[..., Any]) -> Any:
        return original(_endpoint(func))

    module.request_response = request_response  # type: ignore[attr-defined]


def _endpoint(function: Callable[..., Any]) -> Any:
    if not inspect.iscoroutinefunction(function):
        return function
    label, place, users = tracer.places.describe(function)
    if not users:
        return function

    @functools.wraps(function)
    async def traced(*args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None:
            return await function(*args, **kwargs)
        parent.trace.endpoint = (label, place)
        span = open_under(parent, CODE, label, place)
        try:
            return await function(*args, **kwargs)
        finally:
            close_span(span)

    return traced


def _hook_fastapi(module: ModuleType) -> None:
    _wrap_endpoint(module)
    wrap(module, "serialize_response", Stage.ENCODE, "response model")


def _wrap_endpoint(module: ModuleType) -> None:
    original = module.run_endpoint_function

    async def in_span(parent: Open, label: str, place: str, args: Any, kwargs: Any) -> Any:
        span = open_under(parent, CODE, label, place)
        try:
            return await original(*args, **kwargs)
        finally:
            close_span(span)

    # No coroutine of its own where there is no span: a synchronous endpoint has one in its thread.
    @functools.wraps(original)
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

    module.run_endpoint_function = run_endpoint_function  # type: ignore[attr-defined]


def _hook_dependencies(module: ModuleType) -> None:
    """FastAPI solves dependencies by recursion: what comes after a dependency's own ones are solved is its call.

    The span of a call begins when the recursion returns and ends when the next one begins, or the parameters are read.
    """
    wrap(module, "request_body_to_args", Stage.DECODE, "body validation")
    original = module.solve_dependencies
    parameters = module.request_params_to_args

    async def solved_in(outer: Open, dependant: Any, args: Any, kwargs: Any) -> Any:
        _end_call(outer)
        try:
            solved = await original(*args, **kwargs)
        finally:
            _end_call(current.get())
        if kwargs.get("dependency_cache") is not None and getattr(dependant, "call", None) is not None:
            label, place, users = tracer.places.describe(dependant.call)
            if users:
                open_span(CODE, f"{_CALL}{label}", place)
        return solved

    @functools.wraps(original)
    def solve_dependencies(*args: Any, **kwargs: Any) -> Any:
        outer = current.get()
        dependant = kwargs.get("dependant")
        # The endpoint itself, without any dependency: there is no call to tell apart.
        alone = kwargs.get("dependency_cache") is None and not getattr(dependant, "dependencies", True)
        if outer is None or alone:
            return original(*args, **kwargs)
        return solved_in(outer, dependant, args, kwargs)

    @functools.wraps(parameters)
    def request_params_to_args(*args: Any, **kwargs: Any) -> Any:
        _end_call(current.get())
        return parameters(*args, **kwargs)

    module.solve_dependencies = solve_dependencies  # type: ignore[attr-defined]
    module.request_params_to_args = request_params_to_args  # type: ignore[attr-defined]


_CALL = "dependency "


def _end_call(span: Open | None) -> None:
    if span is not None and span.stage is CODE and str(span.label).startswith(_CALL):
        close_span(span)


def _hook_application(module: ModuleType) -> None:
    """Middleware: where the user's own begins and the framework goes on inside it."""
    original = module.Starlette.build_middleware_stack

    @functools.wraps(original)
    def build_middleware_stack(self: Any) -> Any:
        stack = original(self)
        node, known = stack, 0
        while (inner := getattr(node, "app", None)) is not None and known < 100:
            known += 1
            label, place, users = _describe_middleware(inner)
            if users:
                node.app = _Layer(inner, Stage.CODE, label, place)
                deeper = getattr(inner, "app", None)
                if deeper is not None and not _describe_middleware(deeper)[2]:
                    inner.app = _Layer(deeper, Stage.FRAMEWORK, "starlette", "")
                    inner = deeper
            node = inner
        return stack

    module.Starlette.build_middleware_stack = build_middleware_stack


def _describe_middleware(application: Any) -> tuple[str, str, bool]:
    function = getattr(application, "dispatch_func", None) or type(application).__call__
    label, place, users = tracer.places.describe(function)
    return label, place, users


class _Layer:
    """One application of the stack with a span around its calls."""

    def __init__(self, app: Any, stage: Stage, label: str, place: str) -> None:
        self.app = app
        self._span = (stage, label, place)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        span = open_span(*self._span)
        try:
            await self.app(scope, receive, send)
        finally:
            close_span(span)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.app, name)


HOOKS: dict[str, Hook] = {
    "starlette.requests": _hook_requests,
    "starlette.responses": _hook_responses,
    "starlette.routing": _hook_routing,
    "starlette.applications": _hook_application,
    "fastapi.routing": _hook_fastapi,
    "fastapi.dependencies.utils": _hook_dependencies,
}
