"""HTTP/1.1 without a socket: a request to bytes, bytes to a reply."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools

from tailcut.client.failures import ConnectionFailed
from tailcut.errors import BadRequest

CHUNK_BYTES = 256 * 1024
"""Read at a time."""

_PORTS = {"http": 80, "https": 443}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_LATIN_1 = 0xFF
_OWN = {"accept-encoding", "content-length", "host", "transfer-encoding"}


class Address(NamedTuple):
    """Where a server is.

    Attributes:
        base: path before those of the protocol, for a server that is mounted below one; empty or "/...".
        tls: the context to connect with; None for plain HTTP.
    """

    host: str
    port: int
    base: str
    tls: ssl.SSLContext | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def address_of(url: str, tls: ssl.SSLContext | None) -> Address:
    """Read a URL such as http://127.0.0.1:8700.

    Raises:
        BadRequest: it is none.
    """
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in _PORTS or not parts.hostname or port == -1 or parts.query or parts.fragment:
        raise BadRequest(f"{url!r} is not the URL of a server", hint="pass a URL such as http://127.0.0.1:8700")
    if parts.scheme == "http":
        tls = None
    elif tls is None:
        tls = ssl.create_default_context()
    return Address(parts.hostname, port or _PORTS[parts.scheme], parts.path.rstrip("/"), tls)


class WireRequest(NamedTuple):
    """What is sent, without what depends on the attempt."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def encoded(self, address: Address, timeout_s: float | None) -> bytes:
        """Return its bytes.

        Args:
            timeout_s: what is left until its deadline, for the server; None leaves the deadline to the server.
        """
        lines = [f"{self.method} {address.base}{self.path} HTTP/1.1", f"host: {address}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if timeout_s is not None:
            lines.append(f"x-tailcut-timeout-ms: {max(timeout_s * 1e3, 0.001):.3f}")
        lines.append(f"content-length: {len(self.body)}")
        return "\r\n".join([*lines, "\r\n"]).encode("latin-1") + self.body


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers that can be sent.

    Raises:
        BadRequest: a name is none, a value holds what would end its line or is not Latin-1, or the header is one that
            the client writes: a second content-length, say, lets the server read another request in this one.
    """
    for name, value in headers.items():
        if (
            not _TOKEN.fullmatch(name)
            or any(char in value for char in "\r\n\0")
            or max(map(ord, value), default=0) > _LATIN_1
        ):
            raise BadRequest(f"header {name!r} cannot be sent", hint="use one line of Latin-1 characters")
        if name.lower() in _OWN:
            raise BadRequest(f"header {name!r} is set by the client", hint="leave it out")
    return {name.lower(): value for name, value in headers.items()}


class Received:
    """A reply as it comes in.

    Attributes:
        headers: by lower-case name.
        begun: whether any of it has come.
        done: whether it is whole.
        reusable: whether the connection may carry another request.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.begun = False
        self.done = False
        self.reusable = False
        self._pieces: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)

    @property
    def body(self) -> bytes:
        """What has come of the body."""
        return b"".join(self._pieces)

    def feed(self, data: bytes) -> None:
        """Take what was received; empty bytes say that the server has closed the connection.

        Raises:
            ConnectionFailed: it is no HTTP, or ends before its end.
        """
        if not data:
            if not self.status or {"content-length", "transfer-encoding"} & self.headers.keys():
                raise ConnectionFailed("the server closed the connection before its answer was complete", sent=True)
            self.done = True
            return
        self.begun = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self.done:  # what follows the answer answers nothing that was asked
                self.reusable = False
                return
            raise ConnectionFailed(
                f"the answer is not HTTP: {error}", hint="check that this is the HTTP port", sent=True
            ) from error

    # -- httptools -----------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Give the connection up where another message follows the answer: the next request would get it."""
        if self.done:
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        if self.done:
            return
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Keep the status."""
        if not self.done:
            self.status = self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        """Keep a piece of the body."""
        if not self.done:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """The reply is whole, if it is no interim one (1xx)."""
        if self.done:
            return
        if self.status >= 200:
            self.done = True
            self.reusable = self._parser.should_keep_alive()
        else:
            self.status = 0
            self.headers.clear()
