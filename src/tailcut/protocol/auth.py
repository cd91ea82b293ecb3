"""Who may do what: bearer tokens for inference, others for management. Without a server: gRPC's metadata will do.

Source: RFC 6750 (bearer tokens), 2.1.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections.abc import Collection
from ipaddress import ip_address
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit

from tailcut.errors import Forbidden, StartError, Unauthorized
from tailcut.manifest.host import HostManifest
from tailcut.protocol.http import LONGEST_TENANT, HeaderMap, clipped

# Bearer tokens that a file knows by their SHA-256, each with a tenant or without.
#
# A line is ``sha256-in-hex [tenant]``; empty lines and what follows ``#`` are left out. The file holds no token, so
# reading it gives no access. It is reloaded when it changes: adding or withdrawing a token needs no restart.

log = logging.getLogger("tailcut.server")

_DIGEST = re.compile("[0-9a-f]{64}")
_LOOK_S = 1.0
_OF_NOTHING = hashlib.sha256(b"").hexdigest()
"""What sha256sum says where the variable with the token was not set: 'Bearer ' alone would be let in."""
LONGEST_TOKEN = 4096


def read_tokens(path: Path) -> dict[bytes, str]:
    """Read a file of tokens: SHA-256 -> tenant, empty where the token has none.

    Raises:
        StartError: it cannot be read, or a line is wrong, by its number.
    """
    hint = "write per line the SHA-256 of a token in hex and optionally a tenant: printf %s TOKEN | sha256sum"
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"the file of tokens {path} cannot be read: {error}", hint=hint) from error
    found: dict[bytes, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        tenant = words[1] if len(words) > 1 else ""
        if len(words) > 2 or not _DIGEST.fullmatch(words[0].lower()):
            # The line is not shown: somebody may have written the token itself.
            raise StartError(
                f"line {number} of the file of tokens {path} is not a SHA-256 with an optional tenant", hint=hint
            )
        if len(tenant) > LONGEST_TENANT or not tenant.isascii():
            raise StartError(
                f"line {number} of {path}: a tenant has at most {LONGEST_TENANT} ASCII characters", hint=hint
            )
        if words[0].lower() == _OF_NOTHING:
            raise StartError(f"line {number} of {path} is the SHA-256 of an empty token", hint=hint)
        found[bytes.fromhex(words[0])] = tenant
    return found


class Tokens:
    """The tokens of one file, read again when it changes. Owned by the event loop.

    Raises:
        StartError: see ``read_tokens``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = self._read()
        self._stamp = self._look()
        self._next_s = monotonic() + _LOOK_S

    def tenant_of(self, token: str) -> str | None:
        """Return the tenant of a token, empty where it has none; None for a token that is not known."""
        if monotonic() >= self._next_s:
            self._refresh()
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        tenant = None
        # Every known digest is compared, in a time that does not depend on where two differ.
        for known, its_tenant in self._known.items():
            if hmac.compare_digest(known, digest):
                tenant = its_tenant
        return tenant

    def _refresh(self) -> None:
        self._next_s = monotonic() + _LOOK_S
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._known = self._read()
        except StartError as error:
            log.error("the previous tokens stay valid: %s", error)

    def _read(self) -> dict[bytes, str]:
        found = read_tokens(self._path)
        if not found:
            log.warning("the file of tokens %s has no token: all requests that need one are refused", self._path)
        return found

    def _look(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return (0, 0, 0)
        return found.st_mtime_ns, found.st_size, found.st_ino


_SCHEME = "bearer "
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")
"""Headers of a proxy: behind one, a loopback address says nothing about where the client is. Their values do not count:
a proxy may append to what the client sent, which may make them unreadable."""


class Guard:
    """Decides by the headers of a request.

    Args:
        inference: known tokens for inference; None where everybody may.
        management: known tokens for management; None where there are none.
        local: whether only this machine can connect, so that management needs no token.
        mounted: whether another application carries the server, which may be reached from anywhere.
        origins: of web pages that may call this server.

    Attributes:
        asks: whether inference needs a token.
    """

    def __init__(
        self,
        inference: Tokens | None = None,
        management: Tokens | None = None,
        *,
        local: bool = False,
        mounted: bool = False,
        origins: Collection[str] = (),
    ) -> None:
        self._inference = inference
        self._management = management
        self._local = local
        self._mounted = mounted
        self._origins = frozenset(origins)
        self.asks = inference is not None

    @classmethod
    def of(cls, manifest: HostManifest, *, address: str = "") -> Guard:
        """Make the guard of a server.

        Args:
            address: IP address that the server listens on; empty where another application carries it, which may be
                reached from anywhere.

        Raises:
            StartError: a file of tokens cannot be read.
        """
        server = manifest.server
        inference = Tokens(manifest.directory / server.tokens) if server.tokens else None
        management = Tokens(manifest.directory / server.management_tokens) if server.management_tokens else None
        local = bool(address) and ip_address(address).is_loopback
        return cls(inference, management, local=local, mounted=not address, origins=server.cors_origins)

    @property
    def leaves_management_open(self) -> bool:
        """Whether a server whose model needs a token can be managed by every process on its machine without one."""
        return self.asks and self._local and self._management is None

    @property
    def has_management_tokens(self) -> bool:
        """Whether management needs a token, wherever the request comes from."""
        return self._management is not None

    def inference(self, headers: HeaderMap) -> str:
        """Let a request pass that may use the model; return its token's tenant, empty where it has none.

        A token for management is good here, too.

        Raises:
            Unauthorized: it has no token that is known.
        """
        if self._inference is None:
            return ""
        token = _token(headers)
        tenant = self._inference.tenant_of(token)
        if tenant is None and self._management is not None:
            tenant = self._management.tenant_of(token)
        if tenant is None:
            raise _unknown("predictions")
        return tenant

    def management(self, headers: HeaderMap) -> None:
        """Let a request pass that may load and unload models, and see requests of others.

        Raises:
            Unauthorized: it has no token that is known for this.
            Forbidden: there are no such tokens, and it may not come from this machine, or comes from a web page.
        """
        if self._management is not None:
            if self._management.tenant_of(_token(headers)) is None:
                raise _unknown("management")
            return
        hint = "set server.management_tokens to a file of tokens (docs/how-to/secure.md)"
        if not self._local or any(name in headers for name in _FORWARDED):
            raise Forbidden(
                f"this needs a management token: {self._why()}, and server.management_tokens is not set", hint=hint
            )
        host = headers.get("host")
        if host is not None and not _is_loopback(host):
            # Another site may have its name resolve to 127.0.0.1; the browser then takes this server for that site.
            raise Forbidden(
                f"without a token, management is for localhost and loopback addresses, not for {clipped(host)}",
                hint="use http://127.0.0.1:PORT, or set server.management_tokens",
            )
        if "origin" in headers and headers.get("origin") not in self._origins:
            raise Forbidden("management refuses requests from web pages without a token", hint=hint)

    def _why(self) -> str:
        """Return why it is not known that a request comes from this machine."""
        if self._mounted:
            return "tailcut is mounted in an application, and cannot tell which machines reach it"
        return "a proxy forwarded the request" if self._local else "other machines can reach this server"


def _is_loopback(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _token(headers: HeaderMap) -> str:
    value = headers.get("authorization")
    if value is None:
        raise Unauthorized("a bearer token is needed", hint="send authorization: Bearer TOKEN")
    if value[: len(_SCHEME)].lower() != _SCHEME or len(value) > LONGEST_TOKEN:
        raise Unauthorized(
            f"the authorization header is not a bearer token of at most {LONGEST_TOKEN} characters",
            hint="send authorization: Bearer TOKEN",
        )
    return value[len(_SCHEME) :].strip()


def _unknown(what: str) -> Unauthorized:
    return Unauthorized(f"the bearer token is not valid for {what}", hint="ask the operator for a token")
