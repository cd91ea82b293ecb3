"""What both clients have: settings, and connections that are kept for the next call."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Mapping
from typing import Generic, TypeVar

from tailcut.client.failures import ConnectionFailed
from tailcut.client.requests import Settings
from tailcut.client.wire import Received
from tailcut.errors import NotReady, TailcutError

C = TypeVar("C")  # a connection


class Base(Generic[C]):
    """One model of one server, and how it is asked; arguments as ``Client`` says."""

    def __init__(
        self,
        url: str,
        *,
        model: str,
        timeout_s: float | None = None,
        token: str = "",
        headers: Mapping[str, str] | None = None,
        retries: int = 2,
        connections: int = 64,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = Settings(
            url, model=model, timeout_s=timeout_s, token=token, headers=headers, retries=retries, tls=tls
        )
        self._connections = connections
        self._idle: list[C] = []
        self._closed = False
        self._lock = threading.Lock()  # where threads share it

    def _keeps(self, received: Received) -> bool:
        """Whether the connection that brought a reply is kept for the next call."""
        return received.done and received.reusable and not self._closed and len(self._idle) < self._connections


def is_unready(error: TailcutError) -> bool:
    """Whether the error of a call says that requests should not be sent."""
    return error.status == NotReady.status or isinstance(error, ConnectionFailed)
