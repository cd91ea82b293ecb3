"""One request as it arrives: what the routes read, and what the connection writes into it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Protocol

from tailcut.errors import BadRequest, ClientGone, TailcutError
from tailcut.protocol.http import HeaderMap

AHEAD_BYTES = 256 * 1024
"""Of a body that nobody reads: more is left to the kernel, and by it to the client."""


class Wire(Protocol):
    """The connection of a request."""

    def wants_body(self, exchange: Exchange) -> None:
        """Have the client send it, where it waits for that."""
        ...

    def has_room(self) -> None:
        """Read on."""
        ...

    def threw_away(self, size_bytes: int) -> None:
        """Count bytes of a body that is discarded."""
        ...

    def wait(self) -> None:
        """Wait for the next head: such a body has come to its end."""
        ...

    async def lost(self) -> None:
        """Return when the connection is closed."""
        ...


class Exchange:
    """A request's head and its body.

    Args:
        body: where it has come already.

    Attributes:
        method: as it was sent.
        path: without the query, as it was sent.
        keep_alive: whether the client wants to send another one on its connection.
        old: whether it speaks HTTP/1.0.
        is_whole: whether the body has arrived.
        is_dropped: whether it was answered, so that the rest of its body is thrown away.
        held_bytes: of the body that nobody has read yet; where it is dropped, that were thrown away.
    """

    is_dropped = False
    held_bytes = 0
    _is_gathering = False
    _waiter: asyncio.Future[None] | None = None
    _fault: Callable[[], TailcutError] | None = None  # made when it is raised: kept, it would keep who met it

    def __init__(
        self,
        wire: Wire,
        method: str,
        path: str,
        headers: HeaderMap,
        body: bytes | None = None,
        *,
        keep_alive: bool = True,
        old: bool = False,
    ) -> None:
        self._wire = wire
        self.method = method
        self.path = path
        self.headers = headers
        self.keep_alive = keep_alive
        self.old = old
        self.is_whole = body is not None
        self._pieces = [] if body is None else [body]

    # -- what the routes read -------------------------------------------------------------------------------------

    async def __call__(self) -> bytes:
        """Return the whole body, once; whoever asks for it knows that its declared length is not too large.

        Raises:
            ClientGone: the client left in its middle.
            BadRequest: it is no chunked encoding.
        """
        while not self.is_whole:
            self._is_gathering = True
            await self._more()
        pieces, self._pieces = self._pieces, []  # who asked has it: the connection outlives its requests
        if len(pieces) == 1:
            return pieces[0]
        return b"".join(pieces)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body in pieces as they arrive, and hold the client up where they are not taken."""
        while True:
            pieces, self._pieces, self.held_bytes = self._pieces, [], 0
            for piece in pieces:
                yield piece
            if not self._pieces:
                if self.is_whole:
                    return
                await self._more()

    async def client_disconnect(self) -> None:
        """Return when the client has closed the connection."""
        await self._wire.lost()

    @property
    def is_full(self) -> bool:
        """Whether nothing more of it should be read for now; asked while it arrives."""
        return self.held_bytes > AHEAD_BYTES and not (self._is_gathering or self.is_dropped)

    async def _more(self) -> None:
        """Wait for more of the body, or its end."""
        if self._fault is not None:
            raise self._fault()
        self._waiter = asyncio.get_running_loop().create_future()
        self._wire.wants_body(self)
        self._wire.has_room()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._fault is not None:
            raise self._fault()

    # -- what the connection writes -------------------------------------------------------------------------------

    def came(self, data: bytes) -> None:
        """Take a piece of the body."""
        if self.is_dropped:
            self.held_bytes += len(data)
            self._wire.threw_away(self.held_bytes)
            return
        self._pieces.append(data)
        self.held_bytes += len(data)
        if self._waiter is not None and not self._is_gathering:
            self._wake()

    def ended(self) -> None:
        """The body is whole."""
        self.is_whole = True
        if self._waiter is not None:
            self._wake()
        if self.is_dropped:
            self._wire.wait()

    def gone(self) -> None:
        """The client has closed the connection."""
        self._fail(_gone)

    def broken(self, reason: str) -> None:
        """The body cannot be read any further."""
        self._fail(partial(_malformed, reason))

    def drop(self) -> None:
        """Throw away what else comes: the request was answered."""
        self.is_dropped = True
        self._pieces = []
        self.held_bytes = 0

    def _fail(self, fault: Callable[[], TailcutError]) -> None:
        if not self.is_whole and self._fault is None:
            self._fault = fault
            if self._waiter is not None:
                self._wake()

    def _wake(self) -> None:
        assert self._waiter is not None
        if not self._waiter.done():
            self._waiter.set_result(None)


def _gone() -> ClientGone:
    return ClientGone("the client closed the connection before it had sent its request")


def _malformed(reason: str) -> BadRequest:
    return BadRequest(f"the request's body is malformed: {reason}", hint="send a body framed as in RFC 9112")
