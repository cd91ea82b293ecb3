"""What the routes need of HTTP, whatever server carries it: a request in, a reply out, errors as replies."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import count
from math import ceil
from reprlib import repr as shown
from secrets import token_hex
from typing import Any, Protocol

import msgspec

from tailcut.errors import (
    BadRequest,
    MethodNotAllowed,
    NotReady,
    RequestTimeout,
    Shed,
    TailcutError,
    Unauthorized,
    UnsupportedEncoding,
)
from tailcut.pipeline.request_context import RequestContext

Headers = list[tuple[str, str]]
LONGEST_TENANT = 256
_LONGEST_SHOWN = 200

_TRACEPARENT = re.compile("00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""Source: https://www.w3.org/TR/trace-context/#traceparent-header-field-values, version 00."""

_REQUEST_ID = re.compile("[!-~]{1,128}")
_PROCESS = token_hex(6)
_NUMBERS = count(1)

JSON = ("content-type", "application/json")
CLOSE = ("connection", "close")
REQUEST_ID = "x-request-id"
TIMEOUT = "x-tailcut-timeout-ms"


class HeaderMap(Protocol):
    """Request headers by lower-case name."""

    def get(self, key: str, /) -> str | None:
        """Return a value; None where there is none."""
        ...

    def __contains__(self, key: object, /) -> bool:
        """Whether the header was sent, whatever its value."""
        ...


class Body(Protocol):
    """A request's body and its connection."""

    async def __call__(self) -> bytes:
        """Return the whole body."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body in pieces as they arrive."""
        ...

    async def client_disconnect(self) -> None:
        """Return when the client has closed the connection."""
        ...


class Chunks(Protocol):
    """A body that is made while it is sent. Whoever sends it closes it, whether or not it was sent to its end."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def left_s(self) -> float:
        """Return the seconds until its deadline; below 0 where it has passed."""
        ...

    async def aclose(self) -> None:
        """End what makes it."""
        ...

    @property
    def failure(self) -> Mapping[str, str] | None:
        """What ended it before its end, as ``code`` and ``incident``; None at its end, and before it is closed."""
        ...


class Reply:
    """Status, headers and body of an answer.

    Attributes:
        chunks: yields the body in pieces as they are made, in place of ``body``; None for a body that is whole.
    """

    __slots__ = ("body", "chunks", "headers", "status")

    def __init__(self, status: int, headers: Headers, body: bytes, chunks: Chunks | None = None) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.chunks = chunks


def timeout_ns(text: str) -> int:
    """Return the value of ``x-tailcut-timeout-ms`` in nanoseconds.

    Raises:
        BadRequest: it is no positive number.
    """
    try:
        value_ms = float(text)
    except ValueError:
        value_ms = -1.0
    if not 0 < value_ms < 1e9:
        raise BadRequest(
            f"header {TIMEOUT} is {shown(text)}, expected milliseconds above 0 and below 1e9",
            hint=f"e.g. {TIMEOUT}: 250",
        )
    return max(int(value_ms * 1e6), 1)


def tenant(headers: HeaderMap, name: str) -> str:
    """Return the tenant that the header ``name`` (lower case) says.

    Raises:
        BadRequest: it is missing, empty, longer than 256 characters or not ASCII. Falling back to one tenant would
            let its cache entries be shared. It was sent twice: a proxy that adds its own to the client's leaves it to
            the client which of the two counts.
    """
    if is_repeated(headers, name):
        raise BadRequest(
            f"header {name} was sent more than once; it names one tenant",
            hint=f"send one {name}; a proxy that sets it must replace the client's",
        )
    return checked_tenant(headers.get(name), f"header {name}", f"send {name}: your-tenant")


def checked_tenant(found: str | None, where: str, hint: str) -> str:
    """Return a tenant's name.

    Raises:
        BadRequest: it is missing, empty, longer than 256 characters or not ASCII.
    """
    if not found or len(found) > LONGEST_TENANT or not found.isascii():
        seen = f"has {len(found)} characters" if found and found.isascii() else "is missing, empty or not ASCII"
        raise BadRequest(
            f"{where} {seen}; it names the tenant and has 1 to {LONGEST_TENANT} ASCII characters", hint=hint
        )
    return found


def traceparent(headers: HeaderMap) -> str | None:
    """Return the request's ``traceparent`` where it is one; anything else is not sent back."""
    found = headers.get("traceparent")
    return found if found is not None and _TRACEPARENT.fullmatch(found) else None


def request_id(headers: HeaderMap) -> str:
    """Return the id by which logs find a request: its ``x-request-id``, else the trace of its ``traceparent``.

    Empty where the client sent neither, or an id longer than 128 characters or with others than printable ASCII.
    """
    found = headers.get(REQUEST_ID)
    if found is not None and _REQUEST_ID.fullmatch(found):
        return found
    parent = traceparent(headers)
    return parent.split("-")[1] if parent is not None else ""


def new_request_id() -> str:
    """Return an id for a request that failed and came without one."""
    return f"{_PROCESS}-{next(_NUMBERS):x}"


def name_request(context: RequestContext, headers: HeaderMap) -> None:
    """Give a request the id that its client sent, or a new one."""
    context.request_id = context.request_id or request_id(headers) or new_request_id()


def clipped(text: object) -> str:
    """Return text from outside for an error, cut to a bounded length."""
    said = str(text)
    return said if len(said) <= _LONGEST_SHOWN else f"{said[:_LONGEST_SHOWN]}..."


def unread(error: Exception, body: bytes | memoryview) -> str:
    """Return why a body could not be read, for the error of whoever wanted it: an empty one is called that."""
    return clipped(error) if body else "it is empty"


def json_reply(value: object, status: int = 200) -> Reply:
    """Return ``value`` as a JSON reply."""
    return Reply(status, [JSON], msgspec.json.encode(value))


def error_reply(error: TailcutError, incident: str = "") -> Reply:
    """Return an error as the Open Inference Protocol has it, with its code and the way out beside it.

    Args:
        incident: under which the server's log says more; empty where it does not.
    """
    headers: Headers = [JSON]
    if isinstance(error, Shed | NotReady) and error.retry_after_s > 0:
        # Whole seconds is all that Retry-After can say (RFC 9110, 10.2.3).
        headers.append(("retry-after", str(max(1, ceil(error.retry_after_s)))))
    elif isinstance(error, MethodNotAllowed):
        headers.append(("allow", error.allowed))
    elif isinstance(error, Unauthorized):
        headers.append(("www-authenticate", 'Bearer realm="tailcut"'))  # RFC 6750, 3
    elif isinstance(error, UnsupportedEncoding):
        headers.append(("accept-encoding", "gzip, deflate"))  # RFC 9110, 15.5.16
    elif isinstance(error, RequestTimeout):
        headers.append(CLOSE)  # RFC 9110, 15.5.9: the rest of the body is not waited for
    body = {"error": error.message, "code": error.code, "hint": error.hint}
    if incident:
        body["incident"] = incident
    return Reply(error.status, headers, msgspec.json.encode(body))


# -- Repeated headers --------------------------------------------------------------------------------------------------


class Repeated(dict[str, str]):
    """Headers by name, the last value of each; it knows the others, too."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._pairs = list(pairs)
        super().__init__(self._pairs)

    def get_all(self, key: str) -> list[str]:
        """Return every value of a header."""
        return [value for name, value in self._pairs if name == key]


def by_name(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return headers by name; of a repeated one the last value, and ``is_repeated`` knows."""
    headers = dict(pairs)
    return headers if len(headers) == len(pairs) else Repeated(pairs)


def is_repeated(headers: Any, name: str) -> bool:
    """Whether a header was sent more than once."""
    get_all = getattr(headers, "get_all", None)
    return get_all is not None and len(get_all(name)) > 1
