"""What comes on a connection: its requests in their order, and how much of it is read before they are answered."""

from __future__ import annotations

from collections import deque
from typing import Any

from tailcut.transport.http1.exchange import Exchange, Wire
from tailcut.transport.http1.reading import Reader

_PIECE_BYTES = 16 * 1024
"""That are read before it is seen whether requests wait for their turn: small ones in it take milliseconds to read."""

REST_BYTES = 1024 * 1024
"""Of a body whose request was answered before it had come, on a connection that goes on."""

_LAST_BYTES = 32 * REST_BYTES
"""Of what comes behind the last request while the client has time to read its reply: many read none before they have
sent all of theirs, and would be told of a broken pipe."""


class Incoming:
    """Reads a connection, and stops reading it while requests wait or a body is not taken.

    Attributes:
        reader: what has been read up to now.
        queue: requests that wait for their turn.
    """

    __slots__ = ("_away_bytes", "_held", "_is_paused", "_transport", "queue", "reader")

    def __init__(self, wire: Wire) -> None:
        self.queue: deque[Exchange] = deque()
        self.reader = Reader(wire, self.queue.append)
        self._held = b""  # behind requests that wait for their turn
        self._is_paused = False
        self._away_bytes = 0
        self._transport: Any = None

    def begin(self, transport: Any) -> None:
        """Read a connection that was made."""
        self._transport = transport

    def close(self) -> None:
        """Let go of all that came."""
        self.queue.clear()
        self._held = b""
        self.reader.close()

    def read(self, data: bytes) -> None:
        """Read what came, until a second request waits for its turn; the rest is held."""
        if self._held:
            self._held += data
        elif len(data) <= _PIECE_BYTES:
            self.reader.feed(data)
        else:
            self._read_on(data)

    def next(self) -> Exchange | None:
        """Return the request whose turn it is; None where there is none."""
        self._read_held()
        exchange = self.queue.popleft() if self.queue else None
        self._read_held()  # its body may be in what is held
        return exchange

    def _read_held(self) -> None:
        if self._held and not self.queue:
            held, self._held = self._held, b""
            self._read_on(held)

    def _read_on(self, data: bytes) -> None:
        reader = self.reader
        for start in range(0, len(data), _PIECE_BYTES):
            if reader.failure is not None:
                return
            if len(self.queue) > 1:
                self._held = data[start:]
                return
            reader.feed(data[start : start + _PIECE_BYTES])

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to go on with."""
        return not (self.queue or self._held or self._is_paused) and self.reader.failure is None

    def lacks(self, exchange: Exchange) -> int:
        """How many bytes of a request's body are still to come, by the length that it was declared with."""
        declared = exchange.headers.get("content-length") or ""
        if exchange is not self.reader.arriving or not declared.isdecimal():
            return 0
        return int(declared) - self.reader.begun_bytes

    # -- how much is read -----------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Have the transport read, or not, as what came and was not taken asks for."""
        arriving = self.reader.arriving
        if self.queue or self._held or (arriving is not None and arriving.is_full):
            self.pause()
        elif self._is_paused:
            self.resume()

    def throw_away(self, size_bytes: int) -> None:
        """Count bytes behind the last request, for as long as it is not too much."""
        self._away_bytes += size_bytes
        if self._away_bytes > _LAST_BYTES:
            self.pause()

    def read_away(self) -> None:
        """Read what else comes, to throw it away."""
        self._away_bytes = 0
        self._held = b""
        self.queue.clear()
        if self._is_paused:
            self.resume()

    def pause(self) -> None:
        """Leave what else comes to the kernel, and by it to the client."""
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self._is_paused = False
        self._transport.resume_reading()
