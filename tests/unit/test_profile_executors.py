"""Hooks on executors of the user's and of libraries: whose time is the wait for them, and what runs in them."""

from __future__ import annotations

import threading

import pytest

from tailcut.core.profiling.records import Stage
from tailcut.profile.hooks import locks
from tailcut.profile.tracing import Trace, open_timed


def test_who_joins_a_thread_waits_for_another(request_: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``with ThreadPoolExecutor()`` does at its end: not computing, though the span around it is timed."""
    for owner, name in (
        (threading, "Lock"), (threading, "RLock"), (threading.Semaphore, "acquire"), (threading.Semaphore, "__enter__"),
        (threading.Condition, "wait"), (threading.Thread, "join"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, getattr(owner, name))
    locks._hook_threading(threading)
    thread = threading.Thread(target=lambda: None)
    handler = open_timed(request_.spans[0], Stage.CODE, "predict")
    thread.start()
    before = len(request_.spans)
    thread.join()
    waits = request_.spans[before:]
    assert [(one.stage, one.label, one.parent) for one in waits] == [(Stage.WAIT, "another thread", handler)]
