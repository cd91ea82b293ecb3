"""What the connections of one server share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import TYPE_CHECKING

from tailcut.errors import TailcutError
from tailcut.observe.sample import Sample, counter
from tailcut.protocol.middleware import Handle

PARSE_ERRORS = counter("tailcut_http_parse_errors", "Malformed HTTP/1.1 requests, by error code.", "code", of_host=True)

if TYPE_CHECKING:
    from tailcut.transport.http1.connection import Connection
    from tailcut.transport.worker import Worker


log = logging.getLogger("tailcut.server")


def _nothing() -> None:
    """Do nothing."""


class Site:
    """The routes, the connections that are open, and whether they are to end.

    Attributes:
        handle: answers one request.
        arrivals: see ``Worker``.
        is_leaving: whether clients are told to connect anew, elsewhere.
        is_stopping: whether every reply is the last on its connection.
        on_left: called when a connection has ended.
    """

    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.handle: Handle = worker.handle
        self.arrivals = worker.arrivals
        self.connections: set[Connection] = set()
        self.is_leaving = self.is_stopping = False
        worker.on_drain = self.leave
        self.on_left: Callable[[], None] = _nothing
        self._refused: Counter[str] = Counter()
        self._date = ""
        self._date_until_s = 0.0

    def leave(self) -> None:
        """Have every reply be the last on its connection from now on."""
        self.is_leaving = True

    def left(self, connection: Connection) -> None:
        """Note that a connection has ended."""
        self.connections.discard(connection)
        self.on_left()

    def refused(self, error: TailcutError) -> None:
        """Count what could not be read as a request: no route hears of it. The first of each kind is logged."""
        self._refused[error.code] += 1
        if self._refused[error.code] == 1:
            log.warning("refused one or more malformed requests: %s; %s", error.message, error.hint)

    def samples(self) -> Iterator[Sample]:
        """Yield what /metrics shows."""
        for code, count in sorted(self._refused.items()):
            yield PARSE_ERRORS(count, code)

    def date(self) -> str:
        """Return the header that says when a reply was made (RFC 9110, 6.6.1), to the second."""
        now_s = self.loop.time()
        if now_s >= self._date_until_s:
            wall_s = time.time()
            self._date = f"date: {formatdate(wall_s, usegmt=True)}\r\n"
            self._date_until_s = now_s + 1.0 - wall_s % 1.0
        return self._date
