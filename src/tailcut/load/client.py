"""Sends each request at its time over as many connections as that takes, and never waits for an answer to do so."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque

from tailcut.load.connection import Connection
from tailcut.load.plan import Target
from tailcut.load.recorder import Failure, Recorder


class Client:
    """A connection pool for open-loop load.

    A request takes an idle connection; where there is none, one more is opened, up to ``cap``, and the request goes out
    on whichever connection is free first. Only requests that met the cap count as delayed by it. A request whose
    connection had answered others, and ends at once, before a byte of the reply, goes out again on a new one, once: the
    server most likely had closed it before the request came (RFC 9112, 9.3.1), as it may after any answer. Where no new
    one opens, it ended with its own connection.

    Args:
        target: where to connect.
        requests: the bytes of each request, by index.
        recorder: where each request's end is written.
        timeout_ns: from the intended time to giving up.
        cap: most connections.
    """

    def __init__(self, target: Target, requests: list[bytes], recorder: Recorder, *, timeout_ns: int, cap: int) -> None:
        self._target = target
        self._requests = requests
        self._recorder = recorder
        self._timeout_ns = timeout_ns
        self._cap = cap
        self._tls = ssl.create_default_context() if target.tls else None
        self._idle: list[Connection] = []
        self._waiting: deque[int] = deque()
        self._flying: dict[int, Connection] = {}
        self._again: dict[Connection, int] = {}
        self._connections: set[Connection] = set()
        self._opening: dict[Connection, asyncio.Task[None] | None] = {}
        self._closed = False

    @property
    def outstanding(self) -> int:
        """Requests whose time has come and that have not ended."""
        return len(self._flying) + len(self._waiting)

    @property
    def connections(self) -> int:
        """Connections that are open or being opened."""
        return len(self._connections) + len(self._opening)

    @property
    def _opening_for_waiting(self) -> int:
        return len(self._opening) - len(self._again)

    def send(self, index: int) -> None:
        """Send request ``index`` now, or as soon as a connection can take it."""
        recorder = self._recorder
        while self._idle:
            if self._write(self._idle.pop(), index):
                break
        else:
            self._waiting.append(index)
            if self.connections < self._cap:
                self._open(Connection(self))
            else:
                recorder.delayed_by_cap += 1
        outstanding = len(self._flying) + len(self._waiting)
        recorder.max_outstanding = max(recorder.max_outstanding, outstanding)

    async def open_one(self) -> None:
        """Open a connection and wait for it.

        Raises:
            OSError: nobody listens there.
        """
        connection = Connection(self)
        self._opening[connection] = None
        await self._connect(connection)

    def oldest_unfinished(self, next_index: int) -> int:
        """Find the lowest index that has not ended; ``next_index`` where all sent ones have."""
        flying = next(iter(self._flying), next_index)
        return min(flying, self._waiting[0] if self._waiting else next_index)

    def expire(self, now_ns: int) -> None:
        """Give up requests whose time-out has passed. The order of sending is the order of intended times."""
        recorder = self._recorder
        latest_ns = now_ns - recorder.start_ns - self._timeout_ns
        while self._flying:
            index = next(iter(self._flying))
            if recorder.intended[index] > latest_ns:
                break
            connection = self._flying.pop(index)
            self._drop(connection)
            recorder.finish(index, Failure.TIMEOUT, now_ns)
        while self._waiting and recorder.intended[self._waiting[0]] <= latest_ns:
            recorder.finish(self._waiting.popleft(), Failure.TIMEOUT, now_ns)
        self._refill()

    def close(self) -> None:
        """Drop every connection; requests that have not ended are recorded as aborted."""
        self._closed = True
        now_ns = time.monotonic_ns()
        for index in [*self._flying, *self._waiting]:
            self._recorder.finish(index, Failure.ABORTED, now_ns)
        self._flying.clear()
        self._waiting.clear()
        for task in self._opening.values():
            if task is not None:
                task.cancel()
        for connection in list(self._connections):
            connection.abort()
        self._connections.clear()

    # -- what connections report ----------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        """A new connection takes the request that has waited longest."""
        self._opening.pop(connection, None)
        if self._closed:
            connection.abort()
            return
        self._recorder.connections_opened += 1
        self._connections.add(connection)
        index = self._again.pop(connection, -1)
        if index not in self._flying:
            self._next(connection)
        elif self._write(connection, index):
            self._recorder.sent_again += 1
        else:
            self._give_up(index, Failure.EOF)

    def header(self, index: int, name: bytes, value: bytes) -> None:
        """Record a header that the server reports its own times or cache outcome with."""
        if name == b"server-timing":
            self._recorder.server_timing(index, value)
        else:
            self._recorder.cache_outcome(index, value)

    def answered(self, connection: Connection, index: int, status: int, body: bytes) -> None:
        """Record a reply and reuse its connection."""
        del self._flying[index]
        self._recorder.finish(index, status, time.monotonic_ns())
        if body:
            self._recorder.failed_body(status, body)
        if connection.open:
            self._next(connection)
        else:
            self._connections.discard(connection)
            self._refill()

    def unheard(self, connection: Connection, index: int) -> None:
        """Send a request again; when it was sent is when it was sent first."""
        self._connections.discard(connection)
        self._flying[index] = fresh = Connection(self)  # in its old place: that is by intended time
        self._again[fresh] = index
        self._open(fresh)

    def broken(self, connection: Connection, index: int, failure: Failure) -> None:
        """Record a request that was written and will get no answer."""
        self._connections.discard(connection)
        if index >= 0:
            self._give_up(index, failure)
        elif connection in self._idle:
            self._idle.remove(connection)
        self._refill()

    # -- connections ------------------------------------------------------------------------------------------------

    def _write(self, connection: Connection, index: int) -> bool:
        if not connection.send(index, self._requests[index]):
            return False
        if index not in self._flying:
            self._recorder.sent[index] = time.monotonic_ns()
        self._flying[index] = connection
        return True

    def _give_up(self, index: int, failure: Failure) -> None:
        del self._flying[index]
        self._recorder.finish(index, failure, time.monotonic_ns())

    def _next(self, connection: Connection) -> None:
        if self._waiting:
            if self._write(connection, self._waiting[0]):
                self._waiting.popleft()
        else:
            self._idle.append(connection)

    def _refill(self) -> None:
        # A closed connection may have been the one that a waiting request counted on.
        while not self._closed and self._opening_for_waiting < len(self._waiting) and self.connections < self._cap:
            self._open(Connection(self))

    def _drop(self, connection: Connection) -> None:
        self._connections.discard(connection)
        connection.abort()

    def _open(self, connection: Connection) -> None:
        self._opening[connection] = asyncio.get_running_loop().create_task(self._open_for_waiting(connection))

    async def _open_for_waiting(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(self._timeout_ns / 1e9):
                await self._connect(connection)
        except (OSError, TimeoutError):
            if self._opening.pop(connection, None) is None or self._closed:
                return
            index = self._again.pop(connection, None)
            if index is None:
                if self._waiting:
                    self._recorder.finish(self._waiting.popleft(), Failure.CONNECT, time.monotonic_ns())
                return
            if index in self._flying:  # else its time-out has passed
                self._give_up(index, Failure.EOF)
            self._refill()

    async def _connect(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: connection, self._target.host, self._target.port, ssl=self._tls)
