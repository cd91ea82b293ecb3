"""Calls to other services: httpx, requests, and whatever stands on the standard library's client (urllib, urllib3)."""

from __future__ import annotations

from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from tailcut.profiler.hooks.imports import Hook
from tailcut.profiler.hooks.wrapping import Calls, hook_of, replaces, wrap
from tailcut.profiler.records import Stage


def _short(method: Any, url: Any) -> str:
    # Without the query: it holds keys, and there are as many of those as there are requests. Nor user and password.
    parts = urlsplit(str(url))
    host = parts.netloc.rpartition("@")[2]
    return f"{method} {parts.scheme}://{host}{parts.path}" if host else f"{method} {parts.path}"


def _of_request(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    request = args[1] if len(args) > 1 else kwargs.get("request")
    return _short(getattr(request, "method", "?"), getattr(request, "url", "?"))


def _remembered(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return str(getattr(args[0], "_tailcut", "") or "request")


def _hook_http_client(module: ModuleType) -> None:
    """A request is sent, answered and read in three calls; the connection keeps its method and address."""
    connection = module.HTTPConnection
    wrap(connection, "endheaders", Stage.HTTP, _remembered)
    wrap(connection, "getresponse", Stage.HTTP, _remembered, more=True)
    wrap(module.HTTPResponse, "read", Stage.HTTP, _remembered, more=True)
    asked, answered = connection.putrequest, connection.getresponse

    @replaces(connection, "putrequest")
    def putrequest(self: Any, method: str, url: str, *args: Any, **kwargs: Any) -> None:
        scheme = "https" if self.default_port == 443 else "http"
        self._tailcut = _short(method, f"{scheme}://{self.host}:{self.port}{urlsplit(url).path}")
        asked(self, method, url, *args, **kwargs)

    @replaces(connection, "getresponse")
    def getresponse(self: Any) -> Any:
        response = answered(self)
        response._tailcut = _remembered((self,), {})
        return response


HOOKS: dict[str, Hook] = {
    **dict.fromkeys(
        ("httpx._client", "httpx2._client"),
        hook_of(
            Calls("Client", "send", Stage.HTTP, _of_request), Calls("AsyncClient", "send", Stage.HTTP, _of_request)
        ),
    ),
    "requests.sessions": hook_of(Calls("Session", "send", Stage.HTTP, _of_request)),
    "http.client": _hook_http_client,
}
