"""Sends alarms to a webhook: one thread, a bounded queue, deadlines, and retries with back-off."""

from __future__ import annotations

import http.client
import logging
import random
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from threading import Condition, Thread, Timer
from typing import NamedTuple, Protocol
from urllib.parse import SplitResult, urlsplit

from tailcut.observe.alerts.standard_webhooks import signed_headers
from tailcut.system.public_address import AddressRefusedError, checked_addresses
from tailcut.version import version

log = logging.getLogger("tailcut.server")

_MOST_PENDING = 64
_ATTEMPTS = 18
"""With the waits between them, more than an hour and less than three."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 2.0, 900.0
_TIMEOUT_S = 10.0
_MOST_REPLY_BYTES = 4096


class Message(NamedTuple):
    """One message, encoded; ``id`` is the same whenever it is sent again."""

    id: str
    body: bytes


class Target(NamedTuple):
    """Where messages go.

    Attributes:
        key: of signatures; empty: they are not signed.
    """

    url: str
    key: bytes
    allow_private: bool = False


class Attempt(NamedTuple):
    """How one attempt ended: the HTTP status, 0 where there was none, and what went wrong otherwise."""

    status: int
    failure: str = ""


class Post(Protocol):
    """Sends one request."""

    def __call__(self, target: Target, message: Message, timestamp_s: int) -> Attempt:
        """Send; raises nothing for what can go wrong on a network."""
        ...


class WebhookFigures(NamedTuple):
    """Messages so far: delivered, given up after the last attempt, and dropped because too many waited."""

    delivered: int = 0
    failed: int = 0
    dropped: int = 0
    attempts: int = 0


class Webhook:
    """Delivers messages in order, at least once.

    A message that cannot be delivered holds up those behind it until it is given up: their order says which alarm is
    resolved. Messages that were not delivered before ``close`` are in ``undelivered``.

    Args:
        post: sends one request.
        wall_s: Unix seconds, for signatures.
        jitter: from 0 to 1; of several servers not all try again at once.
    """

    def __init__(
        self,
        target: Target,
        post: Post | None = None,
        *,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        most_pending: int = _MOST_PENDING,
    ) -> None:
        self._target = target
        self._post = post or post_once
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._jitter = jitter
        self._most_pending = most_pending
        self._changed = Condition()
        self._pending: deque[Message] = deque()
        self._tries = 0
        self._due_s = 0.0
        self._done: list[str] = []
        self._closing = False
        self._thread: Thread | None = None
        self.figures = WebhookFigures()

    def submit(self, message: Message) -> None:
        """Have a message sent soon; returns at once. Of too many the oldest one that is not being sent is dropped."""
        with self._changed:
            if self._closing or any(message.id == each.id for each in self._pending):
                return
            self._pending.append(message)
            if len(self._pending) > self._most_pending:
                self._done.append(self._pending[1].id)
                del self._pending[1]
                self.figures = self.figures._replace(dropped=self.figures.dropped + 1)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = Thread(target=self._run, name="tailcut-webhook", daemon=True)
                self._thread.start()

    def take_done(self) -> list[str]:
        """Return the ids of messages that need not be sent any more, since the last call."""
        with self._changed:
            done, self._done = self._done, []
            return done

    def close(self, timeout_s: float) -> None:
        """End the thread, waiting for an attempt under way at most ``timeout_s``."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def step(self) -> float:
        """Make an attempt if one is due; return the seconds until the next one, infinity where nothing waits."""
        with self._changed:
            wait_s = self._due_s - self._monotonic_s()
            if not self._pending:
                return float("inf")
            if wait_s > 0:
                return wait_s
            message = self._pending[0]
        attempt = self._post(self._target, message, int(self._wall_s()))
        with self._changed:
            return self._after(message, attempt)

    def _after(self, message: Message, attempt: Attempt) -> float:
        self._tries += 1
        figures = self.figures = self.figures._replace(attempts=self.figures.attempts + 1)
        if 200 <= attempt.status < 300:
            self.figures = figures._replace(delivered=figures.delivered + 1)
        elif self._tries >= _ATTEMPTS or attempt.status == 410:  # Standard Webhooks: 410 Gone ends it
            self.figures = figures._replace(failed=figures.failed + 1)
            log.error("the alarm %s was not delivered: %s; it is given up", message.id, _why(attempt))
        else:
            wait_s = min(_FIRST_WAIT_S * 2.0 ** (self._tries - 1), _LONGEST_WAIT_S) * (0.5 + 0.5 * self._jitter())
            self._due_s = self._monotonic_s() + wait_s
            if self._tries == 1:
                log.warning("the alarm %s was not delivered: %s; it is tried again", message.id, _why(attempt))
            return wait_s
        self._tries, self._due_s = 0, 0.0
        self._pending.popleft()
        self._done.append(message.id)
        return 0.0

    def _run(self) -> None:
        while True:
            wait_s = self.step()
            with self._changed:
                if not self._closing and wait_s > 0 and not (wait_s == float("inf") and self._pending):
                    self._changed.wait(min(wait_s, 3600.0))
                if self._closing:
                    return


def _why(attempt: Attempt) -> str:
    if attempt.failure:
        return attempt.failure
    redirect = ", a redirect, which is not followed" if 300 <= attempt.status < 400 else ""
    return f"the webhook answered {attempt.status}{redirect}"


def post_once(target: Target, message: Message, timestamp_s: int) -> Attempt:
    """Send one request over a connection of its own, within ``_TIMEOUT_S`` once the host's name is resolved."""
    url = urlsplit(target.url)
    headers = {
        "content-type": "application/json",
        "user-agent": f"tailcut/{version()}",
        **(signed_headers(target.key, message.id, timestamp_s, message.body) if target.key else {}),
    }
    begun_s = time.monotonic()
    try:
        port = url.port or (443 if url.scheme == "https" else 80)
        addresses = checked_addresses(url.hostname or "", port, allow_private=target.allow_private)
        begun_s = time.monotonic()
        with _connected(url, addresses, port) as connection:
            connection.request(
                "POST", (url.path or "/") + (f"?{url.query}" if url.query else ""), message.body, headers
            )
            response = connection.getresponse()
            response.read(_MOST_REPLY_BYTES)
            return Attempt(response.status)
    except AddressRefusedError as error:
        return Attempt(0, str(error))
    except (OSError, ValueError, http.client.HTTPException) as error:
        if time.monotonic() - begun_s >= _TIMEOUT_S:
            return Attempt(0, f"no answer within {_TIMEOUT_S:g} s")
        return Attempt(0, f"{type(error).__name__}: {error}")


@contextmanager
def _connected(url: SplitResult, addresses: Sequence[str], port: int) -> Iterator[http.client.HTTPConnection]:
    """Connect to one of these addresses, and to nothing else; a certificate must be that of the host's name.

    A time-out of a socket is one of each read: a peer that sends a byte every second would never meet it. So the socket
    is shut down when its time is over.
    """
    host = url.hostname or ""
    with ExitStack() as stack:
        plain = stack.enter_context(_first_open(addresses, port))
        # Of the same connection: wrapping it in TLS takes the descriptor from the first object.
        watchdog = Timer(_TIMEOUT_S, _shut_down, [stack.enter_context(plain.dup())])
        watchdog.daemon = True
        watchdog.start()
        stack.callback(watchdog.cancel)
        connection: http.client.HTTPConnection
        if url.scheme == "https":
            connection = http.client.HTTPSConnection(host, port)
            connection.sock = stack.enter_context(ssl.create_default_context().wrap_socket(plain, server_hostname=host))
        else:
            connection = http.client.HTTPConnection(host, port)
            connection.sock = plain
        connection.auto_open = 0  # it would look the name up again
        yield connection


def _first_open(addresses: Sequence[str], port: int) -> socket.socket:
    for address in addresses[:-1]:
        with suppress(OSError):
            return socket.create_connection((address, port), _TIMEOUT_S / len(addresses))
    return socket.create_connection((addresses[-1], port), _TIMEOUT_S / len(addresses))


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
