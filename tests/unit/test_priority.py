"""A thread that loads gives way: its native work to all others, the rest by a low priority, and none for good."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.promotion_kit import save_model

from tailcut.engine.switch import in_background
from tailcut.manifest import Tensor
from tailcut.runtimes import open_runtime
from tailcut.runtimes.base import Opening
from tailcut.runtimes.priority import LOADERS, aside, low_priority

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="scheduling policies of threads are Linux's")


def policy(thread: int = 0) -> int:
    return os.sched_getscheduler(thread or threading.get_native_id())


def permitted() -> bool:
    """Whether this process may raise a priority that it lowered: CAP_SYS_NICE or RLIMIT_NICE."""
    with low_priority():
        return bool(LOADERS)


def loaded(work: Callable[[], Any]) -> Any:
    return asyncio.run(_loaded(work))


async def _loaded(work: Callable[[], Any]) -> Any:
    return await in_background(work, lambda _: None)


def test_native_work_of_a_loader_runs_only_while_nobody_else_does_and_the_rest_as_before() -> None:
    def load() -> list[int]:
        return [policy(), aside(policy), policy()]

    usual = policy()
    inside = os.SCHED_IDLE if permitted() else usual
    assert loaded(load) == [usual, inside, usual]
    assert not LOADERS
    assert aside(policy) == usual, "not a loader any more, or never one"


def test_work_that_fails_leaves_nothing_behind() -> None:
    def load() -> tuple[str, int]:
        try:
            aside(int, "x")
        except ValueError as error:
            return str(error), policy()
        return "", policy()

    message, after = loaded(load)
    assert "'x'" in message
    assert after == policy()


def test_threads_that_are_started_aside_are_put_back() -> None:
    """A runtime's own pool, which serves from then on."""
    ended, ids, inherited = threading.Event(), list[int](), list[int]()

    def pool() -> None:
        inherited.append(policy())
        ids.append(threading.get_native_id())
        ended.wait(20)

    def start() -> None:
        started = threading.Thread(target=pool, daemon=True)
        started.start()
        while not ids:
            started.join(0.001)

    def load() -> int:
        aside(start)
        return policy(ids[0])

    usual = policy()
    try:
        assert loaded(load) == usual
        assert inherited == [os.SCHED_IDLE if permitted() else usual]
        assert os.getpriority(os.PRIO_PROCESS, ids[0]) == os.getpriority(os.PRIO_PROCESS, 0)
    finally:
        ended.set()


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("settings", [{}, {"denormals": True}])
def test_runtimes_open_and_warm_up_aside_and_serve_as_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, settings: dict[str, Any]
) -> None:
    pytest.importorskip(runtime)
    if not permitted():
        pytest.skip("nobody may raise a priority here")
    asked: list[int] = []
    schedule = os.sched_setscheduler

    def recorded(thread: int, to: int, parameters: os.sched_param) -> None:
        if thread == threading.get_native_id():
            asked.append(to)
        schedule(thread, to, parameters)

    monkeypatch.setattr(os, "sched_setscheduler", recorded)
    path = save_model(tmp_path / "m.onnx", 2.0)
    tensors = (
        (Tensor(name="x", datatype="FP32", shape=(-1, 2)),),
        (Tensor(name="y", datatype="FP32", shape=(-1,)), Tensor(name="z", datatype="FP32", shape=(-1, 2))),
    )
    batch = {"x": np.ones((2, 2), np.float32)}

    def load() -> Any:
        opened = open_runtime(Opening("m", runtime, path, *tensors, settings), threads=1)
        assert asked == [os.SCHED_IDLE, policy()]
        assert opened.run(batch, ["y"])["y"].tolist() == [4.0] * 2
        return opened

    opened = loaded(load)
    assert asked == [os.SCHED_IDLE, policy()] * 2
    assert opened.run(batch, ["y"])["y"].tolist() == [4.0] * 2
    assert len(asked) == 4
    opened.close()
