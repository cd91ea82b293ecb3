"""Work that is handed to worker processes, and work after the reply: whose it is, and what its levers win."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import multiprocessing
import multiprocessing.pool
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import msgspec
import pytest
from starlette.background import BackgroundTask, BackgroundTasks
from tests.unit.profiler.levers.test_levers import advice, pilot, reasons

from tailcut.profiler.hooks import background as background_hooks
from tailcut.profiler.hooks import processes
from tailcut.profiler.recording.background import background, steps
from tailcut.profiler.recording.blocking import _left_behind
from tailcut.profiler.recording.executors import Executors
from tailcut.profiler.recording.spans import requests_of
from tailcut.profiler.recording.tracing import Trace, add_span, tracer
from tailcut.profiler.records import Span, Stage

pytestmark = pytest.mark.slow


MS = 1_000_000


def compute(ms: float) -> int:
    """Take so much CPU time."""
    end_ns = time.thread_time_ns() + int(ms * MS)
    while time.thread_time_ns() < end_ns:
        pass
    return threading.get_native_id()


def fail(_: float) -> None:
    raise LookupError("nothing there")


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> Executors:
    """The standard library's process pools, hooked."""
    made = Executors()
    monkeypatch.setattr(processes, "executors", made)
    pool = multiprocessing.pool
    for owner, names in (
        (ProcessPoolExecutor, ("submit", "__init__")), (pool.Pool, ("__init__", "apply_async", "_map_async")),
    ):  # fmt: skip
        for name in names:
            monkeypatch.setattr(owner, name, owner.__dict__[name])
    processes._hook_executor(importlib.import_module("concurrent.futures.process"))
    processes._hook_pool(pool)
    return made


def of_stage(trace: Trace, stage: Stage) -> list[Any]:
    return [one for one in trace.spans if one.stage is stage]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_call_in_a_worker_is_one_wait_until_its_result(request_: Trace, hooked: Executors, method: str) -> None:
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, context) as pool:
        made = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        assert pool.submit(compute, 3.0).result() != threading.get_native_id()
    (found,) = requests_of(tracer)
    (wait,) = found.spans[1:]
    here = tracer.places.name(__file__)
    assert (wait.stage, wait.label) == (Stage.WAIT, f"process pool of {here}:{made}")
    assert wait.place == f"{here}:{made + 2}"
    assert wait.end_ns - wait.start_ns >= 3 * MS
    assert wait.thread != 0
    assert hooked.found() == {wait.label: 1}


def test_a_pool_of_multiprocessing_gives_its_results_as_they_are(request_: Trace, hooked: Executors) -> None:
    """And calls the callbacks that it was given, each call being one wait."""
    called: list[object] = []
    with multiprocessing.Pool(2) as pool:
        assert pool.apply(abs, (-3,)) == 3
        assert pool.map(abs, [-1, -2, 3], chunksize=1) == [1, 2, 3]
        assert pool.starmap(divmod, [(7, 2)]) == [(3, 1)]
        assert pool.apply_async(abs, [-4], {}, called.append).get(10.0) == 4
        with pytest.raises(LookupError, match="nothing there"):
            pool.apply_async(fail, (1.0,), error_callback=lambda error: called.append(type(error))).get(10.0)
    assert called == [4, LookupError]
    assert len(of_stage(request_, Stage.WAIT)) == 5


def test_a_worker_that_fails_ends_its_wait(request_: Trace, hooked: Executors) -> None:
    with ProcessPoolExecutor(1) as pool:
        with pytest.raises(LookupError, match="nothing there"):
            pool.submit(fail, 1.0).result()
        assert list(pool.map(abs, [-1, -2])) == [1, 2]
    assert len(of_stage(request_, Stage.WAIT)) == 3


def test_what_is_handed_over_for_no_request_goes_as_it_is(hooked: Executors) -> None:
    with ProcessPoolExecutor(1) as pool:
        assert pool.submit(abs, -1).result() == 1


def test_a_reply_that_went_out_waited_for_no_worker(request_: Trace, hooked: Executors) -> None:
    with ProcessPoolExecutor(1) as pool:
        made = pool.submit(compute, 1.0)
        request_.left_ns = time.perf_counter_ns()
        made.result()
    assert of_stage(request_, Stage.WAIT) == []


def test_a_model_may_run_in_a_worker() -> None:
    """Nobody sees it there, so it is not taken for none."""
    base = pilot(model_ms=0.0)
    waiting = [
        msgspec.structs.replace(
            one,
            spans=(
                *one.spans,
                Span(
                    stage=Stage.WAIT, label="process pool of app.py:3", start_ns=one.entered_ns, end_ns=one.left_ns,
                    parent=0,
                ),
            ),
        )
        for one in base.requests
    ]  # fmt: skip
    found = reasons(advice(msgspec.structs.replace(base, requests=tuple(waiting))))
    for lever in ("runtime", "INT8", "batching"):
        assert found[lever].startswith("not known: requests wait for a process pool")


async def notify(ms: float) -> None:
    compute(ms)


def audit(ms: float) -> None:
    compute(ms)


@pytest.fixture
def hooked_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackgroundTask, "__call__", BackgroundTask.__call__)
    background_hooks._hook_task(BackgroundTask, "func")
    background.clear()
    steps.end()


def test_a_background_task_is_charged_to_its_function(request_: Trace, hooked_tasks: None) -> None:
    """Each of several, though they run in one step; the rest of the step ends where the first begins."""
    request_.left_ns = time.perf_counter_ns()
    tasks = BackgroundTasks([BackgroundTask(notify, 3.0), BackgroundTask(notify, 2.0)])
    asyncio.run(tasks())
    (found,) = background.found()
    place = f"{tracer.places.name(__file__)}:{notify.__code__.co_firstlineno}"
    assert (found.request, found.label, found.place, found.where, found.calls) == (7, "notify", place, "loop", 2)
    assert 5 * MS <= found.cpu_ns <= 6 * MS
    first_ns = steps.parts[0].start_ns
    assert _left_behind(first_ns + 10 * MS) == first_ns
    assert [(one.label, one.request) for one in tracer.moments] == [("notify", -1)] * 2
    assert steps.parts == []


def test_a_background_task_that_runs_in_a_thread_holds_no_event_loop(request_: Trace, hooked_tasks: None) -> None:
    request_.left_ns = time.perf_counter_ns()
    asyncio.run(BackgroundTask(audit, 1.0)())
    assert (background.found(), steps.parts, steps.active) == ((), [], None)


def test_a_thread_that_outlives_the_reply_is_background_work_and_one_that_is_joined_is_not(
    request_: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("start", "join"):
        monkeypatch.setattr(threading.Thread, name, threading.Thread.__dict__[name])
    background_hooks._hook_threading(threading)
    background.clear()
    joined = threading.Thread(target=audit, args=(1.0,))
    joined.start()
    joined.join()
    assert background.found() == ()
    left, over = threading.Thread(target=audit, args=(1.0,)), threading.Event()
    monkeypatch.setattr(threading.Thread, "join", lambda self, timeout=None: over.set())
    request_.left_ns = time.perf_counter_ns()
    left.start()
    _wait_until(lambda: not left.is_alive())
    (found,) = background.found()
    assert (found.label, found.where) == ("audit", "thread")
    assert MS <= found.cpu_ns <= 2 * MS


@pytest.mark.parametrize("end_ms", [4, 9])
def test_what_runs_in_a_thread_beyond_the_reply_is_no_part_of_the_request(request_: Trace, end_ms: int) -> None:
    """Nothing waited for it: neither its wait for the thread nor what it called is the request's."""
    root, at = request_.spans[0], request_.entered_ns
    root.end_ns, request_.left_ns = at + 6 * MS, at + 5 * MS
    wait = add_span(root, Stage.WAIT, "executor", at + MS, at + 2 * MS)
    work = add_span(root, Stage.CODE, "audit", at + 2 * MS, at + end_ms * MS)
    call = add_span(work, Stage.SQL, "INSERT", at + 3 * MS, at + 4 * MS)
    wait.thread = work.thread = call.thread = 3
    (found,) = requests_of(tracer)
    assert [one.label for one in found.spans[1:]] == (["executor", "audit", "INSERT"] if end_ms < 5 else [])


def _wait_until(done: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 20.0
    while not done() and time.monotonic() < end_s:
        compute(0.1)
