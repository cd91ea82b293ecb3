"""Work that is handed to worker processes, and work after the reply: whose it is, and what its levers win."""

from __future__ import annotations

import importlib
import inspect
import multiprocessing
import multiprocessing.pool
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import msgspec
import pytest
from tests.unit.profiler.levers.test_levers import advice, pilot, reasons

from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.hooks import processes
from tailcut.profiler.levers import work
from tailcut.profiler.recording.spans import requests_of
from tailcut.profiler.recording.tracing import Trace, add_span, tracer
from tailcut.profiler.records import Moment, ProfiledProcess, RecordedSpan, Stage

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
def hooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard library's process pools, hooked."""
    pool = multiprocessing.pool
    for owner, names in (
        (ProcessPoolExecutor, ("submit", "__init__")), (pool.Pool, ("__init__", "apply_async", "_map_async")),
    ):  # fmt: skip
        for name in names:
            monkeypatch.setattr(owner, name, owner.__dict__[name])
    processes._hook_executor(importlib.import_module("concurrent.futures.process"))
    processes._hook_pool(pool)


def of_stage(trace: Trace, stage: Stage) -> list[Any]:
    return [one for one in trace.spans if one.stage is stage]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_call_in_a_worker_is_one_wait_until_its_result(request_: Trace, hooked: None, method: str) -> None:
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


def test_a_pool_of_multiprocessing_gives_its_results_as_they_are(request_: Trace, hooked: None) -> None:
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


def test_a_worker_that_fails_ends_its_wait(request_: Trace, hooked: None) -> None:
    with ProcessPoolExecutor(1) as pool:
        with pytest.raises(LookupError, match="nothing there"):
            pool.submit(fail, 1.0).result()
        assert list(pool.map(abs, [-1, -2])) == [1, 2]
    assert len(of_stage(request_, Stage.WAIT)) == 3


def test_what_is_handed_over_for_no_request_goes_as_it_is(hooked: None) -> None:
    with ProcessPoolExecutor(1) as pool:
        assert pool.submit(abs, -1).result() == 1


def test_a_reply_that_went_out_waited_for_no_worker(request_: Trace, hooked: None) -> None:
    with ProcessPoolExecutor(1) as pool:
        made = pool.submit(compute, 1.0)
        request_.left_ns = time.perf_counter_ns()
        made.result()
    assert of_stage(request_, Stage.WAIT) == []


def test_a_model_may_run_in_a_worker() -> None:
    """Hooks do not see into a worker, so "no model was seen" would be wrong."""
    base = pilot(model_ms=0.0)
    waiting = [
        msgspec.structs.replace(
            one,
            spans=(
                *one.spans,
                RecordedSpan(
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


def test_cpu_time_outside_of_requests_is_one_number() -> None:
    """With the function that held the event loop for no request."""
    base = pilot(code_ms=2.0)
    count = len(base.requests)
    inside_ms = float(work._read_demands(base, attribute(base))[0].sum()) / MS
    moments = [
        Moment(stage=Stage.LOOP, start_ns=0, end_ns=took * MS, label=label, place=place, request=number)
        for took, label, place, number in (
            (5, "follow_up", "app.py:9", -1), (9, "predict", "app.py:3", 7), (7, "Handle", "", -1)
        )
    ]  # fmt: skip
    cpu_s = count * (inside_ms + 10.0) / 1e3
    told = msgspec.structs.replace(
        base, pilot=msgspec.structs.replace(base.pilot, cpu_s=cpu_s), moments=(*base.moments, *moments)
    )
    (note,) = work.outside_words(told, attribute(told))
    assert note.startswith(f"10 ms of CPU per request ({10.0 / (inside_ms + 10.0):.0%} of all) are in no span")
    assert note.endswith("held longest by follow_up (app.py:9)")
    assert work.outside_words(msgspec.structs.replace(base, pilot=ProfiledProcess()), attribute(base)) == ()


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
