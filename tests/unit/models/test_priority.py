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
from tests.wait_kit import block_until

from tailcut.manifest import TensorSpec
from tailcut.models.background_loading import in_background
from tailcut.models.runtimes import open_runtime, priority
from tailcut.models.runtimes.base import OpenSpec
from tailcut.models.runtimes.priority import LOADERS, aside, low_priority

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="scheduling policies of threads are Linux's")


@pytest.fixture(autouse=True)
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine who is aside may really come to nothing."""
    monkeypatch.setattr(priority, "_LOOK_S", 3600.0)


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


@pytest.mark.parametrize(
    ("share", "wants", "stays"),
    [(0.0, True, False), (0.09, True, False), (0.09, False, True), (0.15, True, True), (1.0, True, True)],
)
def test_who_wants_a_core_and_hardly_has_one_steps_aside_no_more(
    monkeypatch: pytest.MonkeyPatch, share: float, wants: bool, stays: bool
) -> None:
    """A server that is busy all the time, and what would end that is being loaded."""
    if not permitted():
        pytest.skip("nobody may raise a priority here")
    looks, looked = 0, threading.Semaphore(0)

    def clocks(_: int) -> tuple[float, float]:
        nonlocal looks
        looks += 1
        looked.release()
        return share * looks, float(looks)

    def compute() -> None:
        threading.Thread(target=pool, daemon=True).start()
        for _ in range(4 if stays else 2):
            assert looked.acquire(timeout=20)
        block_until(lambda: stays or policy() == policy(ids[0]) == usual)
        seen.extend([policy(), policy(ids[0])])

    def pool() -> None:
        ids.append(threading.get_native_id())
        ended.wait(20)

    def load() -> list[int]:
        aside(compute)
        return [*seen, policy(), aside(policy)]

    seen, ids, ended = list[int](), list[int](), threading.Event()
    usual = policy()
    monkeypatch.setattr(priority, "_LOOK_S", 0.001)
    monkeypatch.setattr(priority, "_clocks", clocks)
    monkeypatch.setattr(priority, "_wants_core", lambda _: wants)
    after = os.SCHED_IDLE if stays else usual
    try:
        assert loaded(load) == [after, after, usual, after]
    finally:
        ended.set()


def test_who_computes_wants_a_core_and_who_waits_does_not() -> None:
    ended = threading.Event()
    waiting = threading.Thread(target=ended.wait, args=(20,), daemon=True)
    waiting.start()
    try:
        assert priority._wants_core(threading.get_native_id())
        block_until(lambda: not priority._wants_core(waiting.native_id or 0))
    finally:
        ended.set()


@pytest.mark.parametrize("call", ["setpriority", "sched_setscheduler"])
def test_who_could_not_step_back_does_not_step_aside(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Nobody may raise a priority; or only not leave SCHED_IDLE, as at nice 19 and in some containers."""
    real = getattr(os, call)

    def refused(thread: int, to: int, value: Any) -> None:
        if call == "setpriority" or to != os.SCHED_IDLE:
            raise PermissionError(call)
        real(thread, to, value)

    monkeypatch.setattr(os, call, refused)
    usual = policy()
    assert loaded(lambda: [policy(), aside(policy), policy()]) == [usual] * 3


def test_two_who_load_do_not_put_each_other_back() -> None:
    if not permitted():
        pytest.skip("nobody may raise a priority here")
    begun, ended, after = threading.Event(), threading.Event(), list[int]()

    def first() -> None:
        def compute() -> None:
            started.start()
            assert begun.wait(20)

        aside(compute)
        after.append(policy(started.native_id or 0))
        ended.set()

    def second() -> None:
        def compute() -> int:
            begun.set()
            assert ended.wait(20)
            return policy()

        with low_priority():
            after.append(aside(compute))

    started = threading.Thread(target=second, daemon=True)
    loaded(first)
    started.join(20)
    assert after == [os.SCHED_IDLE] * 2


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
        (TensorSpec(name="x", datatype="FP32", shape=(-1, 2)),),
        (TensorSpec(name="y", datatype="FP32", shape=(-1,)), TensorSpec(name="z", datatype="FP32", shape=(-1, 2))),
    )
    batch = {"x": np.ones((2, 2), np.float32)}

    def load() -> Any:
        opened = open_runtime(OpenSpec("m", runtime, path, *tensors, settings), threads=1)
        assert asked == [os.SCHED_IDLE, policy()]
        assert opened.run(batch, ["y"])["y"].tolist() == [4.0] * 2
        return opened

    opened = loaded(load)
    assert asked == [os.SCHED_IDLE, policy()] * 2
    assert opened.run(batch, ["y"])["y"].tolist() == [4.0] * 2
    assert len(asked) == 4
    opened.close()
