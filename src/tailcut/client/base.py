"""What both clients have: how the server is asked, connections that are kept, and when a request is sent again.

No clock: time comes in as an argument.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from tailcut.client.failures import ConnectionFailed
from tailcut.client.tensors import encode
from tailcut.client.wire import Address, Received, WireRequest, address_of, checked_headers
from tailcut.common.certificates import certificate_hint
from tailcut.common.json_values import plain
from tailcut.common.tensors import Array
from tailcut.errors import BadRequest, DeadlineExceeded, NotReady, Shed, TailcutError

PATIENCE_S = 65.0
"""How long a call without a timeout waits: a little more than the longest deadline a server allows by default."""

_JSON = {"content-type": "application/json"}
_FIRST_S = 0.05
_LONGEST_S = 1.0


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
        self._address = address_of(url, tls)
        self._model = quote(model, safe="")
        self._timeout_s = _checked_timeout(timeout_s)
        self._retries = retries
        more = {"authorization": f"Bearer {token}"} if token else {}
        self._headers = checked_headers({**(headers or {}), **more})
        self._connections = connections
        self._idle: list[C] = []
        self._closed = False
        self._lock = threading.Lock()  # where threads share it

    def _attempts(self, now_s: float, timeout_s: float | None) -> Attempts:
        """Begin a request's tries."""
        asked_s = _checked_timeout(timeout_s) if timeout_s is not None else self._timeout_s
        return Attempts(now_s, asked_s, PATIENCE_S, self._retries)

    def _predicting(self, rows: Sequence[Mapping[str, Any]] | None, entities: Sequence[Any] | None) -> WireRequest:
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

    def _inferring(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None, version: str) -> WireRequest:
        """Return the request of ``infer``."""
        if not isinstance(inputs, Mapping):
            raise BadRequest(
                f"infer takes arrays by input name, not {type(inputs).__name__}", hint='infer({"x": array})'
            )
        headers, body = encode(inputs, outputs)
        versioned = f"/versions/{quote(version, safe='')}" if version else ""
        path = f"/v2/models/{self._model}{versioned}/infer"
        return WireRequest("POST", path, {**headers, **self._headers}, body)

    def _describing(self, rest: str = "") -> WireRequest:
        """Return the request of ``metadata``, and with "/ready" that of ``ready``."""
        return WireRequest("GET", f"/v2/models/{self._model}{rest}", self._headers, b"")

    def _keeps(self, received: Received) -> bool:
        """Whether the connection that brought a reply is kept for the next call."""
        return received.done and received.reusable and not self._closed and len(self._idle) < self._connections


def _checked_timeout(timeout_s: float | None) -> float | None:
    if timeout_s is not None and not 0 < timeout_s < 1e6:
        raise BadRequest(f"timeout_s is {timeout_s}", hint="pass seconds above 0, or None for the server's default")
    return timeout_s


class Attempts:
    """The tries of one request.

    What surely was not begun is sent again: a request that was shed, or met a server without an executor, as soon as
    the server says, and one that no connection was made for. So is, once and at once, what went out on a connection
    that the server was closing.

    Args:
        start_s: of the clock that ``retry_in`` is asked with.
        timeout_s: until when it must be answered; None leaves that to the server.
        patience_s: how long to wait where there is no timeout.
        retries: most tries after the first.

    Attributes:
        deadline_s: of the same clock.
        sent: whether a server may have got the request in an earlier try.
    """

    def __init__(self, start_s: float, timeout_s: float | None, patience_s: float, retries: int) -> None:
        self._asked = timeout_s is not None
        self.deadline_s = start_s + (patience_s if timeout_s is None else timeout_s)
        self.sent = False
        self._left = retries
        self._wait_s = _FIRST_S

    def timeout_s(self, now_s: float) -> float | None:
        """Return what is left for the server; None where the deadline is the server's."""
        return self.deadline_s - now_s if self._asked else None

    def was_stale(self, kept: bool, received: Received) -> bool:
        """Whether the connection that broke was being closed by the server: then a new one takes its place at once.

        A server may close an idle connection at any time, even while the next request is on its way to it. The client
        then sees a connection that has served an earlier request end without a byte of a reply. A server that crashed
        on this request looks the same; no request of this client changes state, so one more try does no harm.
        Source: RFC 9112, 9.3.1.

        Args:
            kept: whether an earlier request had used the connection.
        """
        if not kept or received.begun:
            return False
        self.sent = True
        return True

    def retry_in(self, error: TailcutError, now_s: float) -> float | None:
        """Return the seconds to wait before the next try; None where the error is the answer."""
        if not self._left:
            return None
        if isinstance(error, Shed | NotReady):
            # Only a client that set a deadline has agreed to wait.
            wait_s = error.retry_after_s if self._asked and error.retry_after_s > 0 else None
        elif isinstance(error, ConnectionFailed) and not error.sent and not error.lasting:
            wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, _LONGEST_S)
        else:
            return None
        if wait_s is None or now_s + wait_s >= self.deadline_s:
            return None
        self._left -= 1
        return wait_s


def too_late(phase: str) -> DeadlineExceeded:
    """Return the error of a deadline that passed here, before the server said so."""
    return DeadlineExceeded(
        f"the deadline passed while the client was {phase}", hint="pass a longer timeout_s, or send fewer rows"
    )


def unreachable(address: Address, error: Exception, attempts: Attempts) -> ConnectionFailed:
    """Return the error for a server that no connection could be made to."""
    untrusted = isinstance(error, ssl.SSLCertVerificationError)
    hint = "check that the server runs at this address"
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = certificate_hint(error.verify_code, "tls=ssl.create_default_context(cafile=...)")
    elif isinstance(error, ssl.SSLError):
        hint = "check that the server uses TLS; for plain HTTP write http://"
    return ConnectionFailed(f"cannot connect to {address}: {error}", hint=hint, sent=attempts.sent, lasting=untrusted)


def closed() -> ConnectionFailed:
    """Return the error for a client that was closed."""
    return ConnectionFailed("the client is closed", hint="create another client", sent=False, lasting=True)


def broken(address: Address, phase: str, error: Exception) -> ConnectionFailed:
    """Return the error for a connection that broke."""
    return ConnectionFailed(
        f"the connection to {address} broke while the client was {phase}: {error}",
        hint="the server may have run the request; send it again if that does no harm",
        sent=True,
    )


def is_unready(error: TailcutError) -> bool:
    """Whether the error of a call says that requests should not be sent."""
    return error.status == NotReady.status or isinstance(error, ConnectionFailed)
