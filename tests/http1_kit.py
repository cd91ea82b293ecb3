"""A connection of ``transport/http1`` without a socket: what is written, and what it would do to the kernel's end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tailcut.pipeline.request_context import Arrivals
from tailcut.protocol.http import Body, HeaderMap, Reply
from tailcut.transport.http1.connection import Connection, Site

Handle = Callable[[str, str, HeaderMap, Body], Awaitable[Reply]]


class Wire:
    """What uvloop's transport is to a connection."""

    def __init__(self, high_bytes: int = 1 << 30) -> None:
        self.written = bytearray()
        self.untaken = 0
        self.events: list[str] = []
        self.is_paused = False
        self.protocol: Any = None
        self._high_bytes = high_bytes
        self._is_full = False
        self._is_closing = self._is_lost = False

    def write(self, data: bytes) -> None:
        if self._is_closing or "eof" in self.events:
            raise RuntimeError("Cannot call write() after write_eof()")
        self.written += data
        self.untaken += len(data)
        if self.untaken > self._high_bytes and not self._is_full:
            self._is_full = True
            self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self.untaken

    def take_all(self) -> None:
        """The client reads what there is."""
        self.untaken = 0
        if self._is_full:
            self._is_full = False
            self.protocol.resume_writing()

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._is_closing:
            raise RuntimeError("the handle is closed")
        self.events.append("eof")

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Close, once the client has taken what was written."""
        if not self._is_closing:
            self._is_closing = True
            self.events.append("close")
            if not self._is_full:
                self._lose()

    def abort(self) -> None:
        if not self._is_lost:
            self._is_closing = True
            self.events.append("abort")
            self._lose()

    def _lose(self) -> None:
        self._is_lost = True
        asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


@dataclass
class Clock:
    """The loop's, as far as connections look at it."""

    now_s: float = 1000.0
    later: list[tuple[float, Callable[..., object], tuple[Any, ...]]] = field(default_factory=list)

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, do: Callable[..., object], *args: Any) -> None:
        self.later.append((self.now_s + delay_s, do, args))

    def call_soon(self, do: Callable[..., object], *args: Any) -> None:
        asyncio.get_running_loop().call_soon(do, *args)

    def create_task(self, coroutine: Any) -> Any:
        return asyncio.get_running_loop().create_task(coroutine)

    def create_future(self) -> Any:
        return asyncio.get_running_loop().create_future()

    def pass_s(self, seconds: float) -> None:
        """Let time pass, and do what is due."""
        self.now_s += seconds
        due, self.later = self.later, []
        for at_s, do, args in due:
            if at_s <= self.now_s:
                do(*args)
            else:
                self.later.append((at_s, do, args))


class Link:
    """One connection to routes of a test, or to ``site``, where another is."""

    def __init__(self, handle: Handle, high_bytes: int = 1 << 30, site: Site | None = None) -> None:
        self.clock = Clock()
        self.worker = SimpleNamespace(handle=handle, arrivals=Arrivals(), on_drain=None)
        self.site = site or Site(self.worker, self.clock)  # type: ignore[arg-type]
        self.wire = Wire(high_bytes)
        self.connection = Connection(self.site)
        self.wire.protocol = self.connection
        self.connection.connection_made(self.wire)
        self.kernel: list[bytes] = []
        """What has come and is not read, because the connection does not want to."""

    async def leave(self) -> None:
        """Have the client close the connection."""
        self.wire.abort()
        await settle()

    async def send(self, *pieces: bytes) -> bytes:
        """Have pieces come one after the other; return what was written since."""
        before = len(self.wire.written)
        self.kernel += pieces
        while self.kernel and not self.wire.is_paused and not self.wire.is_closing():
            self.connection.data_received(self.kernel.pop(0))
            await settle()
        return bytes(self.wire.written[before:])


async def settle() -> None:
    """Let what is ready run."""
    for _ in range(12):
        await asyncio.sleep(0)


def statuses(written: bytes) -> list[int]:
    """Return the statuses of replies in what a connection wrote; bodies must have none of their own."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", written)]
