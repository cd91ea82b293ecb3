"""Of a long recording some requests are traced: which, what becomes of the others, what the traced ones say."""

from __future__ import annotations

import asyncio
import time
from asyncio.events import Handle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.unit.profiler import profile_sample

from tailcut.common.slo import parse_objectives
from tailcut.profiler.attribution.budget import make_budget
from tailcut.profiler.attribution.functions import seen_shares
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.hooks import models
from tailcut.profiler.hooks.wrapping import awaited, brief, called
from tailcut.profiler.levers.known import Known
from tailcut.profiler.levers.work import read_work
from tailcut.profiler.plan import least_for
from tailcut.profiler.recording import blocking, middleware
from tailcut.profiler.recording.background_calls import background_calls
from tailcut.profiler.recording.captured import captured
from tailcut.profiler.recording.middleware import Profiled
from tailcut.profiler.recording.spans import requests_of
from tailcut.profiler.recording.trace_sampling import is_traced, one_in
from tailcut.profiler.recording.tracing import current, tracer
from tailcut.profiler.records import Recording, Request, Span, Stage

_MS = 1_000_000
SKIPPED, TRACED = (next(n for n in range(100) if is_traced(n, 2) is wanted) for wanted in (False, True))


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> None:
    tracer.clear()
    background_calls.clear()
    monkeypatch.setattr(tracer, "one_in", 2)
    monkeypatch.setattr(tracer, "touched", tracer.touched)


@pytest.mark.parametrize("in_", [2, 3, 4, 5, 6, 7, 8])
def test_so_many_of_them_are_traced_whatever_repeats_with_which_period(in_: int) -> None:
    numbers = np.arange(20_000)
    assert is_traced(numbers, 1).all()
    assert is_traced(numbers, in_).mean() == pytest.approx(1 / in_, abs=0.02)
    assert is_traced(numbers, in_).tolist() == [is_traced(number, in_) for number in range(20_000)]
    for period in range(2, 63):
        for first in range(period):
            assert 0.0 < is_traced(numbers[first::period], in_).mean() < 1.0


def waiting(stage: Stage, label: str, share: float, took_ms: float = 100.0) -> Request:
    left_ns = round(took_ms * _MS)
    span = Span(stage=stage, label=label, start_ns=0, end_ns=round(share * left_ns))
    return Request(number=0, intended_ns=-1, sent_ns=-1, done_ns=-1, entered_ns=0, left_ns=left_ns, spans=(span,))


def test_all_of_a_short_recording_are_traced() -> None:
    assert [one_in(requests) for requests in (200, 999, 1000, 1999, 3300, 9000)] == [1, 1, 2, 3, 6, 8]
    assert one_in(50, least_traced=20) == 2


def test_an_slos_percentile_rests_on_enough_that_are_traced() -> None:
    assert least_for(None) == least_for(parse_objectives("p50=10ms,errors=1%")) == 500
    assert least_for(parse_objectives("p95=10ms,p99=50ms")) == 2000


def ask(*numbers: int, handler: Callable[[], Any]) -> None:
    """Ask an application that calls ``handler``, which may be awaited, on one connection."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        made = handler()
        if made is not None:
            await made

    async def main() -> None:
        for number in numbers:
            scope = {
                "type": "http", "method": "GET", "path": "/",
                "headers": [(middleware.HEADER, b"%d" % number)],
            }  # fmt: skip
            await asyncio.create_task(Profiled(application)(scope, None, None))  # type: ignore[arg-type]
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
        await asyncio.get_running_loop().shutdown_default_executor()

    asyncio.run(main())


def query() -> int:
    def answer() -> int:
        time.sleep(0.0001)  # takes time: a call of no length is not recorded
        return 2

    found: int = called(answer, Stage.SQL, "SELECT")()
    return found


def stray_calls() -> int:
    return sum(one.calls for one in background_calls.found())


@pytest.mark.usefixtures("half")
def test_what_an_untraced_request_calls_is_neither_its_span_nor_anybodys() -> None:
    ask(SKIPPED, TRACED, SKIPPED, handler=lambda: query() and None)
    assert [(one.number, [span.label for span in one.spans[1:]]) for one in requests_of(tracer)] == [
        (TRACED, ["SELECT"])
    ]
    assert stray_calls() == 0
    assert current.get() is None


@pytest.mark.usefixtures("half")
def test_what_an_untraced_request_leaves_behind_is_work_in_the_background() -> None:
    """As it is with a traced one: once it is over."""
    tasks: list[asyncio.Task[None]] = []

    async def after(request: asyncio.Task[None]) -> None:
        await asyncio.wait([request])
        query()

    def handler() -> None:
        request = asyncio.current_task()
        assert request is not None
        tasks.append(asyncio.create_task(after(request)))

    ask(SKIPPED, handler=handler)
    assert stray_calls() == 1


@pytest.mark.usefixtures("half")
def test_what_drivers_do_for_an_untraced_request_is_theirs_alone() -> None:
    """A call that is short, and one that is awaited."""
    calls: list[str] = []

    async def fetch() -> None:
        calls.append("fetch")

    handler = awaited(fetch, Stage.SQL, "SELECT 1")
    ask(SKIPPED, handler=handler)
    ask(SKIPPED, handler=brief(lambda: calls.append("commit"), Stage.SQL, "COMMIT"))
    assert calls == ["fetch", "commit"]
    assert requests_of(tracer) == ()
    assert stray_calls() == 0
    asyncio.run(handler())
    assert stray_calls() == 1
    background_calls.clear()


class Module:
    """As torch's: calls go by ``_wrapped_call_impl`` to the compiled form where there is one."""

    _compiled_call_impl: Any = None

    def __init__(self, *inner: Module) -> None:
        self.inner = inner
        self.went: list[str] = []

    def _wrapped_call_impl(self, x: int) -> int:
        self.went.append("wrapped")
        return self._compiled_call_impl(x) if self._compiled_call_impl is not None else self._call_impl(x)

    def _call_impl(self, x: int) -> int:
        self.went.append("call")
        for one in self.inner:
            x = one(x)
        return x + 1

    __call__ = _wrapped_call_impl


@pytest.mark.usefixtures("half")
def test_a_torch_model_of_an_untraced_request_is_called_by_the_shortest_way(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(Module, "__call__", Module.__call__)
    monkeypatch.setattr(captured, "torch", lambda *_: kept.append(_))
    models._hook_torch(SimpleNamespace(Module=Module))  # type: ignore[arg-type]
    plain, compiled = Module(), Module()
    compiled._compiled_call_impl = lambda x: x + 100
    net, found = Module(plain, compiled), []
    ask(SKIPPED, handler=lambda: found.append(net(0)))
    assert found == [102]
    assert (net.went, plain.went, compiled.went) == (["call"], ["call"], ["wrapped"])
    assert (requests_of(tracer), stray_calls(), kept) == ((), 0, [])
    net(0)  # for nobody
    assert (stray_calls(), len(kept)) == (1, 1)
    background_calls.clear()


@pytest.mark.usefixtures("half", "hooked_threads")
def test_threads_know_that_they_work_for_an_untraced_request() -> None:
    own = ThreadPoolExecutor(1)
    found: list[int] = []
    asked: list[str] = []

    class Named(ThreadPoolExecutor):
        """Of the user's: it wants to know what it is given."""

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            asked.append(fn.__name__)
            return super().submit(fn, *args, **kwargs)

    class Asks:
        def __call__(self) -> int:
            return query()

    class Inline(ThreadPoolExecutor):
        """Runs what it is given where it stands."""

        def _adjust_thread_count(self) -> None:
            self._work_queue.get_nowait().run()

    async def handler() -> None:
        loop = asyncio.get_running_loop()
        found.append(await loop.run_in_executor(None, query))
        found.append(await loop.run_in_executor(own, query))
        found.append(own.submit(query).result())
        found.append(await asyncio.to_thread(query))
        with Named(1) as named:
            await loop.run_in_executor(named, query)
        found.append(await loop.run_in_executor(own, Asks()))
        Inline(1).submit(query)
        found.append(query())  # still in the request

    ask(SKIPPED, handler=handler)
    assert (found, stray_calls()) == ([2, 2, 2, 2, 2, 2], 0)
    assert asked == ["query"]
    assert own.submit(query).result() == 2  # the thread is nobody's again
    assert stray_calls() == 1
    own.shutdown()


@pytest.mark.usefixtures("half")
def test_a_torch_model_of_an_untraced_request_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of its parts is taken for a model of its own."""

    class Module:
        def __init__(self, *inner: Module) -> None:
            self.inner = inner

        def __call__(self, x: int) -> int:
            for one in self.inner:
                x = one(x)
            return x + 1

    kept: list[Any] = []
    monkeypatch.setattr(captured, "torch", lambda *arguments: kept.append(arguments))
    models._hook_torch(SimpleNamespace(Module=Module))  # type: ignore[arg-type]
    answers: list[int] = []
    ask(SKIPPED, handler=lambda: answers.append(Module(Module(), Module())(0)))
    assert (answers, kept, stray_calls()) == ([3], [], 0)


@pytest.mark.usefixtures("half")
def test_an_untraced_request_that_fails_is_told() -> None:
    def fail() -> None:
        raise ValueError("no such flight")

    with pytest.raises(ValueError, match="no such flight"):
        ask(SKIPPED, handler=fail)
    assert tracer.failures[0].endswith("ValueError: no such flight")
    tracer.clear()


def only(recording: Recording, is_kept: Callable[[Request], bool]) -> Recording:
    """The same with only these requests traced."""
    kept = tuple(filter(is_kept, recording.requests))
    others = [one for one in recording.requests if not is_kept(one)]
    seen = tuple(msgspec.structs.replace(one, spans=(), entered_ns=-1, left_ns=-1) for one in others)
    return msgspec.structs.replace(recording, requests=kept, untraced=seen)


def thinned(recording: Recording, in_: int = 2) -> Recording:
    return only(recording, lambda one: bool(is_traced(one.number, in_)))


def test_half_of_the_requests_say_of_the_process_what_all_say() -> None:
    """Its CPU time is that of all of them, and so are the stacks that were seen in it."""
    whole = profile_sample.recording(count=800)
    pilot = msgspec.structs.replace(whole.pilot, cpu_s=800 * 0.016)
    whole = msgspec.structs.replace(whole, pilot=pilot, sampled_s=whole.duration_s, sample_interval_ns=20 * _MS)
    part = thinned(whole)
    took_ms = [read_work(one, attribute(one), Known()).cpu_ns.sum() / _MS for one in (whole, part)]
    assert took_ms[1] == pytest.approx(took_ms[0], rel=0.05)
    label = ("recompute (features.py:60)", "features.py:60")
    code = [
        sum(span.end_ns - span.start_ns for one in of.requests for span in one.spans if span.label == label[0])
        for of in (whole, part)
    ]
    shares = [seen_shares(of, {label: float(ns)}) for of, ns in zip((whole, part), code, strict=True)]
    assert shares[0]
    assert shares[1][label] == pytest.approx(shares[0][label], rel=0.1)


@pytest.mark.usefixtures("half")
def test_who_holds_the_loop_for_an_untraced_request_is_named_as_in_a_traced_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def handler() -> None:
        span = current.get()
        if span is not None:
            span.trace.endpoint = ("predict", "app.py:7")
        until_s = time.monotonic() + 0.004
        while time.monotonic() < until_s:
            pass

    monkeypatch.setattr(Handle, "_run", Handle._run)
    blocking.watch_loop("asyncio")
    ask(TRACED, SKIPPED, handler=handler)
    # Shorter ones are of callbacks that others kept from their core.
    held = [one for one in tracer.moments if one.stage is Stage.LOOP and one.end_ns - one.start_ns >= 4 * _MS]
    told = [(one.label, one.place, one.request) for one in held]
    assert told == [("predict", "app.py:7", number) for number in (TRACED, SKIPPED)]
    tracer.clear()


def test_answers_and_failures_are_those_of_all_requests() -> None:
    whole = profile_sample.recording(count=800)
    part = thinned(whole)
    assert len(part.requests) < 500
    budgets = [make_budget(one, parse_objectives("p95=25ms,errors=0.1%")) for one in (whole, part)]
    for name in ("answered", "failed", "wall", "perception", "findings"):
        assert getattr(budgets[1], name) == getattr(budgets[0], name)
    calls = [{one.text: (one.calls, one.total_ms) for one in budget.calls} for budget in budgets]
    for text, (count, total_ms) in calls[0].items():
        assert calls[1][text][0] == pytest.approx(count, rel=0.1)
        assert calls[1][text][1] == pytest.approx(total_ms, rel=0.15)
