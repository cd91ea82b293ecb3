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
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.background import BackgroundTask, BackgroundTasks
from tests.unit.profiler import profile_sample

from tailcut.profiler.attribution.background import Background, left_behind
from tailcut.profiler.forecast.queueing import play
from tailcut.profiler.forecast.service_model import At, ServiceModel
from tailcut.profiler.forecast.state import Known
from tailcut.profiler.hooks import background as background_hooks
from tailcut.profiler.hooks import processes
from tailcut.profiler.levers.advice import Advice, advise
from tailcut.profiler.recording.background import background, steps
from tailcut.profiler.recording.blocking import _left_behind
from tailcut.profiler.recording.executors import Executors
from tailcut.profiler.recording.spans import requests_of
from tailcut.profiler.recording.tracing import Trace, add_span, tracer
from tailcut.profiler.records import Pilot, Recording, Request, Span, Stage

pytestmark = pytest.mark.slow

few_requests = profile_sample.few_requests(800, 400)

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
        (ProcessPoolExecutor, ("submit", "__init__")), (Future, ("set_result",)),
        (pool.Pool, ("__init__", "apply_async", "_map_async")), (pool.ApplyResult, ("_set",)),
        (pool.MapResult, ("_set",)),
    ):  # fmt: skip
        for name in names:
            monkeypatch.setattr(owner, name, owner.__dict__[name])
    processes._hook_executor(importlib.import_module("concurrent.futures.process"))
    processes._hook_future(importlib.import_module("concurrent.futures._base"))
    processes._hook_pool(pool)
    return made


def of_stage(trace: Trace, stage: Stage) -> list[Any]:
    return [one for one in trace.spans if one.stage is stage]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_call_in_a_worker_is_its_wait_and_its_work(request_: Trace, hooked: Executors, method: str) -> None:
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, context) as pool:
        made = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        assert pool.submit(compute, 3.0).result() != threading.get_native_id()
        (found,) = requests_of(tracer)
    wait, work = found.spans[1:]
    here = tracer.places.name(__file__)
    assert (wait.stage, wait.label) == (Stage.WAIT, f"process pool of {here}:{made}")
    assert wait.place == f"{here}:{made + 2}"
    assert (work.stage, work.label, work.place) == (Stage.CODE, "compute", f"{here}:{compute.__code__.co_firstlineno}")
    assert wait.end_ns == work.start_ns
    assert wait.thread == work.thread != 0
    assert 3 * MS <= work.cpu_ns <= 4 * MS
    assert hooked.found() == {wait.label: 1}


def test_a_pool_of_multiprocessing_gives_its_results_as_they_are(request_: Trace, hooked: Executors) -> None:
    with multiprocessing.Pool(2) as pool:
        assert pool.apply(abs, (-3,)) == 3
        assert pool.map(abs, [-1, -2, 3], chunksize=1) == [1, 2, 3]
        assert pool.starmap(divmod, [(7, 2)]) == [(3, 1)]
        assert pool.apply_async(abs, [-4]).get(10.0) == 4
        with pytest.raises(LookupError, match="nothing there"):
            pool.apply(fail, (1.0,))
    assert [one.label for one in of_stage(request_, Stage.CODE)].count("abs") == 5
    assert processes._calls == {}


def test_a_worker_that_fails_leaves_nothing_behind(request_: Trace, hooked: Executors) -> None:
    with ProcessPoolExecutor(1) as pool:
        with pytest.raises(LookupError, match="nothing there"):
            pool.submit(fail, 1.0).result()
        assert list(pool.map(abs, [-1, -2])) == [1, 2]
    assert processes._calls == {}


def test_what_is_handed_over_for_no_request_goes_as_it_is(hooked: Executors) -> None:
    with ProcessPoolExecutor(1) as pool:
        assert pool.submit(abs, -1).result() == 1


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


def handed(*, process_ms: float = 0.0, late_ms: float = 0.0, where: str = "loop", rate: float = 20.0) -> Recording:
    """Requests of 2 ms on the event loop, with a call of a worker's in the middle, and work after the reply."""
    requests, left = [], []
    generator = np.random.default_rng(3)
    at_ns = np.cumsum(generator.exponential(1e9 / rate, 300)).astype(np.int64).tolist()
    for number, at in enumerate(at_ns):
        worker_ns = int(process_ms * MS)
        done = at + 2 * MS + worker_ns
        spans = [Span(stage=Stage.CODE, label="f", place="app.py:7", start_ns=at, end_ns=done)]
        if worker_ns:
            wait = {"label": "process pool of app.py:3", "place": "app.py:9", "thread": 1, "parent": 0}
            spans.append(Span(stage=Stage.WAIT, start_ns=at + MS, end_ns=at + MS, **wait))  # type: ignore[arg-type]
            spans.append(
                Span(
                    stage=Stage.CODE, label="score", place="app.py:5", start_ns=at + MS, end_ns=at + MS + worker_ns,
                    parent=0, thread=1, cpu_ns=worker_ns, delay_ns=0,
                )
            )  # fmt: skip
        if late_ms:
            cpu_ns = int(late_ms * MS)
            left.append(
                Background(
                    request=number, label="audit", place="app.py:2", where=where,  # type: ignore[arg-type]
                    calls=1, cpu_ns=cpu_ns, took_ns=cpu_ns,
                )
            )  # fmt: skip
        requests.append(
            Request(
                number=number, intended_ns=at, sent_ns=at, entered_ns=at, left_ns=done, done_ns=done, status=200,
                endpoint="f (app.py:7)", spans=tuple(spans),
            )
        )  # fmt: skip
    used_s = len(requests) * (2.0 + process_ms + late_ms) / 1e3
    pilot = Pilot(
        loop="uvloop", watched=False, threads=40, executors={"process pool of app.py:3": 1} if process_ms else {},
        cpu_s=used_s, workers_s=len(requests) * process_ms / 1e3,
    )  # fmt: skip
    return Recording(
        target="app:app", rate=rate, duration_s=300 / rate, requests=tuple(requests), machine={"cores": "2"},
        pilot=pilot, background=tuple(left),
    )  # fmt: skip


def advised(recording: Recording) -> Advice:
    found = advise(recording, known=Known(cores=2))
    assert found is not None
    return found


def test_a_pool_of_one_worker_ends_the_capacity_and_the_interpreter_does_not() -> None:
    """10 ms in the only worker: some 70 a second within 48 ms; 500 without that work, for which the loop has 2 ms."""
    found = advised(handed(process_ms=10.0))
    lever = next(one for one in found.levers if one.lever == "no process pool")
    assert found.now.capacity == pytest.approx(70.0, rel=0.15)
    assert lever.capacity < found.now.capacity
    assert lever.bound_capacity == pytest.approx(500.0, rel=0.3)
    assert lever.bound_p95_ms < 6.0 < found.now.p95_ms


@pytest.mark.parametrize("where", ["loop", pytest.param("thread", marks=pytest.mark.whole), "process"])
def test_work_after_the_reply_counts_in_the_capacity(where: str) -> None:
    """10 ms after each reply: a core's worth of 83 a second on the interpreter, of 2 cores beside it."""
    found = advised(handed(late_ms=10.0, where=where))
    lever = next(one for one in found.levers if one.lever == "no background work")
    assert found.now.capacity is not None
    assert found.now.capacity < (185.0 if where == "process" else 90.0)
    assert lever.capacity == pytest.approx(advised(handed()).now.capacity, rel=0.1)
    recording = handed(late_ms=10.0, where=where)
    (line,) = left_behind(recording.background, {one.number for one in recording.requests}, recording.rate)
    assert (line.label, line.place, line.where, line.cpu_ms) == ("audit", "app.py:2", where, 10.0)
    assert line.core_share == pytest.approx(0.2)


def test_child_processes_whose_calls_were_not_seen_are_told() -> None:
    recording = handed()
    pilot = Pilot(loop="uvloop", threads=40, cpu_s=3.0, workers_s=2.4)
    unseen = Recording(
        target="app:app", rate=recording.rate, duration_s=recording.duration_s, requests=recording.requests,
        machine={"cores": "2"}, pilot=pilot,
    )  # fmt: skip
    lever = next(one for one in advised(unseen).levers if one.lever == "no process pool")
    assert lever.reason.startswith("not known: child processes of the service computed 8 ms a request")


def test_a_service_that_hands_nothing_over_has_no_such_levers() -> None:
    assert not {"no process pool", "no background work"} & {one.lever for one in advised(handed()).levers}


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.01, 9.0), st.floats(0.0, 9.0)), min_size=1, max_size=25),
    st.integers(1, 3),
)
def test_work_in_workers_takes_cores_and_nothing_else(requests: list[tuple[float, float, float]], cores: int) -> None:
    """Nothing is lost: each is done no sooner than its own work, and all of it no sooner than the cores can do it."""
    arrivals = np.sort(np.array([at for at, _, _ in requests])) * MS
    jobs = [[(At.PYTHON, own * MS), (At.WORKER, there * MS)] for _, own, there in requests]
    found = play(ServiceModel(cores=cores), arrivals, jobs)
    own_ns = np.array([own + there for _, own, there in requests]) * MS
    assert (found.latency_ns >= own_ns - 1.0).all()
    last_ns = float((arrivals + found.latency_ns).max()) - float(arrivals.min())
    assert last_ns >= own_ns.sum() / cores - 1.0
