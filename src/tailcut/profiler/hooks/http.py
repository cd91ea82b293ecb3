"""Calls to other services: httpx, requests, urllib3, aiohttp, the standard library, gRPC."""

from __future__ import annotations

import functools
import sys
from collections.abc import Generator
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from tailcut.profiler.hooks.imports import Hook
from tailcut.profiler.hooks.wrapping import wrap, wrap_present
from tailcut.profiler.recording.tracing import close_span, current, open_under, tracer
from tailcut.profiler.records import Stage

_HTTP = Stage.HTTP


def _short(method: Any, url: Any) -> str:
    # Without the query: it holds keys, and there are as many of those as there are requests. Nor user and password.
    parts = urlsplit(str(url))
    host = parts.netloc.rpartition("@")[2]
    return f"{method} {parts.scheme}://{host}{parts.path}" if host else f"{method} {parts.path}"


def _of_request(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    request = args[1] if len(args) > 1 else kwargs.get("request")
    return _short(getattr(request, "method", "?"), getattr(request, "url", "?"))


def _of_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    values = [*args[1:3], kwargs.get("method"), kwargs.get("str_or_url", kwargs.get("url"))]
    found = [value for value in values if value is not None]
    return _short(*found[:2]) if len(found) > 1 else "request"


def _of_response(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return _short(getattr(args[0], "method", "?"), getattr(args[0], "url", "?"))


def _of_pool(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    pool = args[0]
    method = args[1] if len(args) > 1 else kwargs.get("method", "?")
    path = args[2] if len(args) > 2 else kwargs.get("url", "/")
    return _short(method, f"{getattr(pool, 'scheme', 'http')}://{pool.host}:{pool.port}{urlsplit(str(path)).path}")


def _of_opener(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    request: Any = args[1] if len(args) > 1 else kwargs.get("fullurl")
    method = request.get_method() if hasattr(request, "get_method") else "GET"
    return _short(method, getattr(request, "full_url", request))


def _of_connection(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    # (connection, method, path, ...); the connection remembers it for what comes of it.
    connection = args[0]
    method = args[1] if len(args) > 1 else kwargs.get("method", "?")
    path = args[2] if len(args) > 2 else kwargs.get("url", "/")
    scheme = "https" if getattr(connection, "default_port", 80) == 443 else "http"
    label = _short(method, f"{scheme}://{connection.host}:{connection.port}{urlsplit(str(path)).path}")
    connection._tailcut = label
    return label


def _of_answer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return str(getattr(args[0], "_tailcut", "") or "request")


def _of_body(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    response = args[0]
    known: str = getattr(response, "_tailcut", "")
    return known or _short(getattr(response, "_method", "?"), getattr(response, "url", "?"))


def _of_grpc(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    method = getattr(args[0], "_method", b"?")
    return f"gRPC {method.decode() if isinstance(method, bytes) else method}"


def _hook_httpx(module: ModuleType) -> None:
    wrap(module.Client, "send", Stage.HTTP, _of_request)
    wrap(module.AsyncClient, "send", Stage.HTTP, _of_request)


def _hook_requests(module: ModuleType) -> None:
    wrap(module.Session, "send", Stage.HTTP, _of_request)


def _hook_urllib3(module: ModuleType) -> None:
    wrap(module.HTTPConnectionPool, "urlopen", Stage.HTTP, _of_pool)


def _hook_aiohttp(module: ModuleType) -> None:
    wrap(module.ClientSession, "_request", Stage.HTTP, _of_arguments)


def _hook_aiohttp_response(module: ModuleType) -> None:
    # The body comes after the request is answered.
    wrap(module.ClientResponse, "read", Stage.HTTP, _of_response, more=True)


def _hook_urllib(module: ModuleType) -> None:
    wrap(module.OpenerDirector, "open", Stage.HTTP, _of_opener)


def _hook_http_client(module: ModuleType) -> None:
    """What others are built on, for those who use it by itself: what is asked, answered and read are three calls."""
    wrap(module.HTTPConnection, "request", Stage.HTTP, _of_connection)
    wrap(module.HTTPConnection, "getresponse", Stage.HTTP, _of_answer, leaf=True, more=True)
    wrap(module.HTTPResponse, "read", Stage.HTTP, _of_body, leaf=True, more=True)
    answered = module.HTTPConnection.getresponse

    @functools.wraps(answered)
    def getresponse(self: Any) -> Any:
        response = answered(self)
        response._tailcut = getattr(self, "_tailcut", "")
        return response

    module.HTTPConnection.getresponse = getresponse


def _hook_grpc(module: ModuleType) -> None:
    for name in ("_UnaryUnaryMultiCallable", "_StreamUnaryMultiCallable"):
        wrap_present(getattr(module, name), ("__call__", "with_call"), Stage.HTTP, _of_grpc)


def _hook_grpc_aio(module: ModuleType) -> None:
    """A call begins when it is made; what is timed is the wait for its answer."""
    for name in ("UnaryUnaryCall", "StreamUnaryCall"):
        owner = getattr(module, name)
        owner.__init__ = _named(owner.__init__)
        owner.__await__ = _awaiting(owner.__await__)


def _named(function: Any) -> Any:
    @functools.wraps(function)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        function(self, *args, **kwargs)
        # (request, deadline, metadata, credentials, wait_for_ready, channel, method, ...)
        self._method = kwargs.get("method", args[6] if len(args) > 6 else b"?")

    return init


def _awaiting(function: Any) -> Any:
    @functools.wraps(function)
    def traced(self: Any) -> Generator[Any, None, Any]:
        parent = current.get()
        if parent is None or parent.stage is _HTTP or parent.trace.over:
            return (yield from function(self))
        place, at = tracer.places.spot(sys._getframe(1))
        span = open_under(parent, _HTTP, _of_grpc((self,), {}), place, at)
        try:
            return (yield from function(self))
        finally:
            close_span(span)

    return traced


HOOKS: dict[str, Hook] = {
    "httpx._client": _hook_httpx,
    "httpx2._client": _hook_httpx,
    "requests.sessions": _hook_requests,
    "urllib3.connectionpool": _hook_urllib3,
    "aiohttp.client": _hook_aiohttp,
    "aiohttp.client_reqrep": _hook_aiohttp_response,
    "urllib.request": _hook_urllib,
    "http.client": _hook_http_client,
    "grpc._channel": _hook_grpc,
    "grpc.aio._call": _hook_grpc_aio,
}
