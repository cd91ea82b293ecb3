"""A client in Python: ``tailcut.Client``, and ``tailcut.AsyncClient`` for asyncio. It needs no extra."""

from __future__ import annotations

from tailcut.client.aio import AsyncClient
from tailcut.client.failures import ConnectionFailed, UnexpectedReply
from tailcut.client.replies import Outputs, Predictions, Reply
from tailcut.client.sync import Client

__all__ = ["AsyncClient", "Client", "ConnectionFailed", "Outputs", "Predictions", "Reply", "UnexpectedReply"]
