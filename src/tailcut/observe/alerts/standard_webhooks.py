"""Signatures of webhooks after Standard Webhooks (https://www.standardwebhooks.com), symmetric, version v1. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from tailcut.errors import ManifestError

_PREFIX = "whsec_"
_LEAST, _MOST = 24, 64
_MAKE = "write whsec_ and base64 of 32 random bytes: echo whsec_$(head -c 32 /dev/urandom | base64 -w 0)"


def read_secret(text: str, where: str) -> bytes:
    """Return the key of a secret.

    Args:
        text: "whsec_" and base64 of 24 to 64 bytes.
        where: it stands, for messages; the secret itself is in none.

    Raises:
        ManifestError: it is none.
    """
    text = text.strip()
    if not text.startswith(_PREFIX):
        raise ManifestError(f"{where}: the secret does not begin with {_PREFIX}", hint=_MAKE)
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        raise ManifestError(f"{where}: what follows {_PREFIX} is not base64", hint=_MAKE) from None
    if not _LEAST <= len(key) <= _MOST:
        raise ManifestError(f"{where}: the secret has {len(key)} bytes, expected {_LEAST} to {_MOST}", hint=_MAKE)
    return key


def signed_headers(key: bytes, message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """Return the headers that a message is sent with.

    Args:
        message_id: the same whenever the message is sent again; without a dot.
        timestamp_s: Unix seconds of this attempt.
    """
    signed = b".".join((message_id.encode(), str(timestamp_s).encode(), body))
    signature = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": f"v1,{signature}",
    }
