"""What both clients have: settings, requests, and connections that are kept for the next call."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from tailcut.client.attempts import Attempts
from tailcut.client.failures import ConnectionFailed
from tailcut.client.tensors import encode
from tailcut.client.wire import Address, Received, WireRequest, address_of, checked_headers
from tailcut.common.json_values import plain
from tailcut.common.tensors import Array
from tailcut.errors import BadRequest, NotReady, TailcutError

PATIENCE_S = 65.0
"""How long a call without a timeout waits: a little more than the longest deadline a server allows by default."""

_JSON = {"content-type": "application/json"}


class ClientSettings:
    """Where the server is and how it is asked; see ``Client``."""

    def __init__(
        self,
        url: str,
        *,
        model: str,
        timeout_s: float | None,
        token: str,
        headers: Mapping[str, str] | None,
        retries: int,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.address: Address = address_of(url, tls)
        self._model = quote(model, safe="")
        self._timeout_s = _checked_timeout(timeout_s)
        self._retries = retries
        more = {"authorization": f"Bearer {token}"} if token else {}
        self._headers = checked_headers({**(headers or {}), **more})

    def attempts(self, now_s: float, timeout_s: float | None) -> Attempts:
        """Begin a request's tries."""
        asked_s = _checked_timeout(timeout_s) if timeout_s is not None else self._timeout_s
        return Attempts(now_s, asked_s, PATIENCE_S, self._retries)

    def predict(self, rows: Sequence[Mapping[str, Any]] | None, entities: Sequence[Any] | None) -> WireRequest:
        """Return the request of ``predict``."""
        if (rows is None) is (entities is None):
            raise BadRequest(
                "predict takes either rows or entities", hint="call predict(rows=[{...}]) or predict(entities=[...])"
            )
        form = {"rows": list(rows)} if rows is not None else {"entities": list(entities or ())}
        try:
            body = msgspec.json.encode(plain(form))
        except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
            raise BadRequest(
                f"the rows cannot be written as JSON: {error}", hint="send numbers, text, lists"
            ) from error
        return WireRequest("POST", f"/predict/{self._model}", {**_JSON, **self._headers}, body)

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None, version: str) -> WireRequest:
        """Return the request of ``infer``."""
        if not isinstance(inputs, Mapping):
            raise BadRequest(
                f"infer takes arrays by input name, not {type(inputs).__name__}", hint='infer({"x": array})'
            )
        headers, body = encode(inputs, outputs)
        versioned = f"/versions/{quote(version, safe='')}" if version else ""
        path = f"/v2/models/{self._model}{versioned}/infer"
        return WireRequest("POST", path, {**headers, **self._headers}, body)

    def metadata(self) -> WireRequest:
        """Return the request of ``metadata``."""
        return WireRequest("GET", f"/v2/models/{self._model}", self._headers, b"")

    def ready(self) -> WireRequest:
        """Return the request of ``ready``."""
        return WireRequest("GET", f"/v2/models/{self._model}/ready", self._headers, b"")


def _checked_timeout(timeout_s: float | None) -> float | None:
    if timeout_s is not None and not 0 < timeout_s < 1e6:
        raise BadRequest(f"timeout_s is {timeout_s}", hint="pass seconds above 0, or None for the server's default")
    return timeout_s


C = TypeVar("C")  # a connection


class Base(Generic[C]):
    """One model of one server, and how it is asked; arguments as ``Client`` says."""

    def __init__(
        self,
        url: str,
        *,
        model: str,
        timeout_s: float | None = None,
        token: str = "",
        headers: Mapping[str, str] | None = None,
        retries: int = 2,
        connections: int = 64,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = ClientSettings(
            url, model=model, timeout_s=timeout_s, token=token, headers=headers, retries=retries, tls=tls
        )
        self._connections = connections
        self._idle: list[C] = []
        self._closed = False
        self._lock = threading.Lock()  # where threads share it

    def _keeps(self, received: Received) -> bool:
        """Whether the connection that brought a reply is kept for the next call."""
        return received.done and received.reusable and not self._closed and len(self._idle) < self._connections


def is_unready(error: TailcutError) -> bool:
    """Whether the error of a call says that requests should not be sent."""
    return error.status == NotReady.status or isinstance(error, ConnectionFailed)
