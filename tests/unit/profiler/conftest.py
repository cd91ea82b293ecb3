"""A request under profile, and hooked threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tailcut.profiler.recording.tracing import Trace


@pytest.fixture
def request_() -> Iterator[Trace]:
    """A request under profile that this code works for."""
    from tailcut.profiler.recording.tracing import current, open_root, tracer
    from tailcut.profiler.records import Stage

    tracer.clear()
    trace = tracer.enter(7, "POST", "/predict")
    assert trace is not None
    token = current.set(None)
    open_root(trace, Stage.FRAMEWORK, "fastapi", "")
    yield trace
    current.reset(token)
    tracer.clear()


@pytest.fixture
def hooked_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors' threads belong to the request that hands over to them, on asyncio's own loop."""
    import asyncio
    import importlib
    from concurrent.futures import ThreadPoolExecutor

    from tailcut.profiler.hooks import threads

    monkeypatch.setattr(ThreadPoolExecutor, "submit", ThreadPoolExecutor.submit)
    monkeypatch.setattr(ThreadPoolExecutor, "__init__", ThreadPoolExecutor.__init__)
    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "run_in_executor", asyncio.BaseEventLoop.run_in_executor)
    threads._hook_executor(importlib.import_module("concurrent.futures.thread"))
    threads._hook_asyncio(asyncio.base_events)
