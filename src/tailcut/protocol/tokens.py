"""Bearer tokens that a file knows by their SHA-256, each with a tenant or without.

A line is ``sha256-in-hex [tenant]``; empty lines and what follows ``#`` are left out. The file holds no token, so that
reading it gives nobody access. It is read again when it changes: tokens are added and withdrawn without a restart.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from pathlib import Path
from time import monotonic

from tailcut.errors import StartError
from tailcut.protocol.http import LONGEST_TENANT

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
