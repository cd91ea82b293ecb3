"""Sends alarms to a webhook: one thread, a bounded queue, three tries, signatures after Standard Webhooks."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import logging
import re
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from tailcut.errors import ManifestError
from tailcut.system.public_address import checked_addresses
from tailcut.system.worker_thread import WorkerThread
from tailcut.version import version

log = logging.getLogger("tailcut.server")

_MOST_PENDING = 64
_WAITS_S = (0.0, 5.0, 60.0)
"""Before each try."""
_TIMEOUT_S = 10.0
"""To connect, for TLS, and for the receiver to answer: for each in all."""
_MOST_LINE_BYTES = 1000
_PREFIX = "whsec_"
_MAKE = "write whsec_ and base64 of 32 random bytes: echo whsec_$(head -c 32 /dev/urandom | base64 -w 0)"


class Message(NamedTuple):
    """One message, encoded; ``id`` is the same whenever it is sent again."""

    id: str
    body: bytes


class WebhookTarget(NamedTuple):
    """Where messages go.

    Attributes:
        key: of signatures.
    """

    url: str
    key: bytes
    allow_private: bool = False


Post = Callable[[WebhookTarget, Message, int], str]
"""Sends one request at a time in Unix seconds; returns why it failed, or nothing, or raises."""


class Webhook:
    """Delivers messages in order, each with up to three tries. Its thread begins with the first message.

    Args:
        post: sends one request.
        waits_s: before each try.

    Attributes:
        figures: messages so far: delivered, failed (given up after the last try), and dropped (too many waited).
    """

    def __init__(self, target: WebhookTarget, post: Post | None = None, *, waits_s: Sequence[float] = _WAITS_S) -> None:
        self._target = target
        self._post = post or post_once
        self._waits_s = waits_s
        self._worker = WorkerThread("tailcut-webhook", self._deliver, "an alarm is not sent", most=_MOST_PENDING)
        # With all keys from the start: another thread iterates it while this one counts.
        self.figures: Counter[str] = Counter(delivered=0, failed=0, dropped=0)

    def submit(self, message: Message) -> None:
        """Have a message sent soon; returns at once. One for which there is no room is dropped and counted."""
        self._worker.start()
        if not self._worker.put(message):
            self.figures["dropped"] += 1
            log.error("the alarm %s is not sent: %d messages wait for the webhook already", message.id, _MOST_PENDING)

    def close(self, timeout_s: float) -> None:
        """Send what waits, trying each once, for at most ``timeout_s``."""
        self._worker.close(timeout_s)

    def _deliver(self, messages: Sequence[Message]) -> None:
        for message in messages:
            why = self._why_not_delivered(message)
            if why:
                self.figures["failed"] += 1
                log.error("the alarm %s was not delivered: %s; it is given up", message.id, why)
            else:
                self.figures["delivered"] += 1

    def _why_not_delivered(self, message: Message) -> str:
        """Send a message, again where that fails; return why the last try failed."""
        why = ""
        for wait_s in self._waits_s:
            if self._worker.closing.wait(wait_s) and why:
                break
            try:
                why = self._post(self._target, message, int(time.time()))
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            if not why:
                break
        return why


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
    if not 24 <= len(key) <= 64:
        raise ManifestError(f"{where}: the secret has {len(key)} bytes, expected 24 to 64", hint=_MAKE)
    return key


def signed_headers(key: bytes, message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """Return the headers that a message is sent with; see https://www.standardwebhooks.com, symmetric, version v1.

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


def post_once(target: WebhookTarget, message: Message, timestamp_s: int) -> str:
    """Send one request to one of the host's addresses that were checked, and to nothing else.

    A certificate must be that of the host's name.

    Returns:
        why it failed; empty if the receiver answered with a status from 200 to 299.

    Raises:
        AddressRefusedError, OSError, ValueError, http.client.HTTPException: there was no answer.
    """
    url = urlsplit(target.url)
    host, is_tls = url.hostname or "", url.scheme == "https"
    headers = {
        "content-type": "application/json",
        "user-agent": f"tailcut/{version()}",
        **signed_headers(target.key, message.id, timestamp_s, message.body),
    }
    default_port = 443 if is_tls else 80
    port = url.port or default_port
    addresses = checked_addresses(host, port, allow_private=target.allow_private)
    with closing(http.client.HTTPConnection(host, port)) as connection:
        connection.default_port = default_port  # which the header "host" leaves out
        connection.auto_open = 0  # it would look the name up again
        connection.sock = _first_open(addresses, port)
        connection.sock.settimeout(_TIMEOUT_S)
        if is_tls:
            context = ssl.create_default_context()
            connection.sock = context.wrap_socket(connection.sock, server_hostname=host)
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connection.request("POST", path, message.body, headers)
        status = _read_status(connection.sock)
    redirect = ", a redirect, which is not followed" if 300 <= status < 400 else ""
    return "" if 200 <= status < 300 else f"the webhook answered {status}{redirect}"


def _first_open(addresses: Sequence[str], port: int) -> socket.socket:
    timeout_s = _TIMEOUT_S / len(addresses)
    for address in addresses[:-1]:
        with suppress(OSError):
            return socket.create_connection((address, port), timeout_s)
    return socket.create_connection((addresses[-1], port), timeout_s)


def _read_status(connection: socket.socket) -> int:
    """Return the status of an answer; a socket's own time-out is of one read, however little it brings."""
    until_s = time.monotonic() + _TIMEOUT_S
    line, read = b"", b"..."
    while read and len(line) < _MOST_LINE_BYTES and b"\n" not in line:
        connection.settimeout(max(until_s - time.monotonic(), 0.001))
        read = connection.recv(_MOST_LINE_BYTES)
        line += read
    found = re.match(rb"HTTP/1\.\d (\d{3})\s", line)
    if not found:
        raise http.client.BadStatusLine(repr(line[:80]))
    return int(found[1])
