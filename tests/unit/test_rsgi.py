"""A body that is refused unread is let come after the reply: Granian closes an HTTP/1.1 connection over the rest."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.app_kit import INFER, deployment

from tailcut.errors import Shed
from tailcut.server.http import Body, HeaderMap, Reply, error_reply
from tailcut.server.rsgi import RSGIApplication


class Protocol:
    """What happens to a request of three pieces, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.events.append(str(status))

    def __call__(self) -> SimpleNamespace:
        self.events.append("all")
        return SimpleNamespace(done=lambda: True)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(3):
            self.events.append("piece")
            yield b" " * 100_000


@pytest.mark.parametrize(
    ("headers", "events"),
    [
        ({"content-length": "300000"}, ["429", "piece", "piece", "piece"]),
        ({}, ["429", "piece", "piece", "piece"]),
        ({"content-length": "300"}, ["all", "429"]),
    ],
)
def test_a_body_is_let_come_with_the_refusal(tmp_path: Path, headers: dict[str, str], events: list[str]) -> None:
    """A small one, too: many clients send the head alone first. Nobody waits for that one."""

    async def refuse(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        return error_reply(Shed("overload", hint="retry", retry_after_s=1.0))

    application = RSGIApplication(deployment(tmp_path), "http://127.0.0.1:1", "127.0.0.1", os.getppid())
    application._handle = refuse
    protocol = Protocol()
    scope = SimpleNamespace(method="POST", path=INFER, headers=headers, http_version="1.1", client="c")
    asyncio.run(application.__rsgi__(scope, protocol))
    assert protocol.events == events
