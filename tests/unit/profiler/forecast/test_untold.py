"""CPU time that no span tells of: other threads of a model, work after the reply, the HTTP server, drivers."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.unit.profiler import profile_sample

from tailcut.common.slo import parse_objectives
from tailcut.profiler.attribution.awaiting import awaited_ns
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.forecast.calibration import calibrate
from tailcut.profiler.forecast.forecast import capacity, forecast
from tailcut.profiler.forecast.queueing import play
from tailcut.profiler.forecast.service_model import At, ServiceModel
from tailcut.profiler.forecast.state import Known, State
from tailcut.profiler.forecast.work import read_work
from tailcut.profiler.levers.advice import advise
from tailcut.profiler.levers.levers import begin, pull
from tailcut.profiler.levers.priors import Prior
from tailcut.profiler.records import Moment, Pilot, Recording, Request, Span, Stage

_MS = 1_000_000
_COUNT = 300
_RATE = 20.0


few_requests = profile_sample.few_requests(500, 250)


def recording(
    *,
    cpu_ms: float,
    cores: int,
    model_ms: float = 0.0,
    code_ms: float = 0.5,
    awaits: tuple[Stage, float] | None = None,
    later_ms: float = 0.0,
) -> Recording:
    """Asynchronous requests, 0.3 ms to the server and 0.3 ms back.

    Args:
        cpu_ms: per request, of the whole process.
        model_ms: in a thread, whose own CPU time it is.
        awaits: another's answer, after the code.
        later_ms: of CPU after the reply, in a span of its own.
    """
    requests = []
    for number, at in enumerate(
        np.cumsum(np.random.default_rng(0).exponential(1e9 / _RATE, _COUNT)).astype(int).tolist()
    ):
        entered = at + 300_000
        now = entered + int(code_ms * _MS)
        spans = []
        if awaits is not None:
            stage, took_ms = awaits
            waits = Span(
                stage=stage, label="it", place="app.py:3", parent=0, start_ns=now, end_ns=now + int(took_ms * _MS)
            )
            now = waits.end_ns
            spans.append(waits)
        model = now + int(model_ms * _MS)
        if model_ms:
            spans.append(
                Span(stage=Stage.MODEL, label="Net", parent=0, thread=1, start_ns=now, end_ns=model, cpu_ns=model - now)
            )
        later = model + int(later_ms * _MS)
        if later_ms:
            spans.append(
                Span(
                    stage=Stage.CODE,
                    label="log",
                    parent=0,
                    thread=1,
                    start_ns=model,
                    end_ns=later,
                    cpu_ns=later - model,
                )
            )
        root = Span(stage=Stage.FRAMEWORK, label="fastapi", start_ns=entered, end_ns=later)
        requests.append(
            Request(
                number=number, intended_ns=at, sent_ns=at, entered_ns=entered, left_ns=model, done_ns=model + 300_000,
                status=200, spans=(root, *spans),
            )
        )  # fmt: skip
    return Recording(
        target="app:app", rate=_RATE, duration_s=_COUNT / _RATE, requests=tuple(requests),
        machine={"cores": str(cores)},
        pilot=Pilot(loop="asyncio", watched=True, threads=40, cpu_s=_COUNT * cpu_ms / 1e3),
    )  # fmt: skip


def state_of(recorded: Recording) -> State:
    cores = int(recorded.machine["cores"])
    return calibrate(begin(read_work(recorded, attribute(recorded)), Known(cores=cores)))[0]


@pytest.mark.parametrize(("cores", "cpu_ms"), [pytest.param(8, 80.9, marks=pytest.mark.whole), (2, 20.9)])
def test_a_models_other_threads_are_no_interpreters_time(cores: int, cpu_ms: float) -> None:
    """They compute while it is waited for: it takes as long as was measured, and its cores are taken."""
    recorded = recording(cpu_ms=cpu_ms, cores=cores, model_ms=10.0)
    state, calibration = calibrate(begin(read_work(recorded, attribute(recorded)), Known(cores=cores)))
    assert state.work.cpu_of(Stage.NETWORK) <= 0.6 * _MS
    assert calibration.simulated_p50_ms == pytest.approx(11.1, rel=0.1)
    assert forecast(state, 2.0).p95_ms == pytest.approx(11.1, rel=0.15)
    whole = 1e3 * cores / cpu_ms
    assert 0.5 * whole < capacity(state, 1000.0) <= whole * 1.03
    found = advise(recorded, known=Known(cores=cores), slo=parse_objectives("p95=5ms"))
    assert found is not None
    path = {one.lever: one for one in found.levers}["serving path"]
    assert path.p95_ms > 0.7 * found.now.p95_ms, "the model is nearly all there is"
    assert pull(state, "runtime", bound=True).work.beside_of(model=True) == 0.0


@pytest.mark.parametrize("later_ms", [0.0, 10.0], ids=["in no span", "in a span"])
def test_what_is_done_after_the_reply_makes_no_reply_late(later_ms: float) -> None:
    """Ten milliseconds of it: a task in the background. Where it is Python, others that come meanwhile take turns."""
    state = state_of(recording(cpu_ms=11.5, cores=2, code_ms=0.9, later_ms=later_ms))
    expected = forecast(state, _RATE)
    assert expected.p50_ms == pytest.approx(1.5, rel=0.1)
    assert expected.p95_ms < 3.0 if not later_ms else 3.0 < expected.p95_ms < 8.0
    # In a span it is Python, which one thread at a time runs; in none it may be a child process.
    most = (1e3 if later_ms else 2e3) / 11.5
    assert 0.55 * most < capacity(state, 1000.0) < most * 1.05


def test_an_await_beside_a_model_with_threads_is_still_one() -> None:
    """Of what is not hooked: the CPU time that other threads had is no sign that the code computed."""
    recorded = recording(cpu_ms=81.0, cores=8, model_ms=10.0, awaits=(Stage.CODE, 50.0))
    found = attribute(recorded)
    assert awaited_ns(found, recorded).sum() / _COUNT == pytest.approx(48.6 * _MS, rel=0.03)
    work = read_work(recorded, found)
    assert work.cpu_of(Stage.CODE) < 2.0 * _MS
    assert forecast(calibrate(begin(work, Known(cores=8)))[0], _RATE).p50_ms == pytest.approx(61.0, rel=0.05)


def test_a_server_and_a_driver_that_awaits_are_the_interpreters() -> None:
    """As much as the request's time between client and server holds, and a millisecond of a call."""
    some, much = (
        read_work(one, attribute(one))
        for one in (recording(cpu_ms=ms, cores=2, awaits=(Stage.HTTP, 50.0)) for ms in (1.5, 40.0))
    )
    assert some.cpu_ns == pytest.approx(1.5 * _MS, rel=0.01)
    assert some.beside_of(model=False) == 0.0
    assert much.cpu_of(Stage.NETWORK) == pytest.approx(0.6 * _MS, rel=0.01)
    assert much.cpu_of(Stage.SQL) == pytest.approx(1.0 * _MS, rel=0.01), "it goes when its calls go"
    for path in ("serving path", "feature cache"):
        left = pull(begin(much, Known(feature_hits=dict.fromkeys(range(_COUNT), 1.0))), path).work
        assert (left.cpu_of(Stage.SQL) > 0) == (path == "serving path")
    assert much.cpu_ns + much.beside_of(model=False) == pytest.approx(40.0 * _MS, rel=0.01)


def test_what_a_driver_was_seen_to_compute_is_the_interpreters() -> None:
    """Twenty of the 25 ms of a call are rows that it decodes on the event loop: fifty such fill it, on any machine."""
    plain = recording(cpu_ms=21.1, cores=8, awaits=(Stage.SQL, 25.0))
    decoding = [
        Moment(stage=Stage.LOOP, label="read", start_ns=sql.end_ns - 20 * _MS, end_ns=sql.end_ns, request=one.number)
        for one in plain.requests
        for sql in one.spans
        if sql.stage is Stage.SQL
    ]
    seen = msgspec.structs.replace(plain, moments=tuple(decoding))
    assert read_work(seen, attribute(seen)).cpu_ns == pytest.approx(21.1 * _MS, rel=0.03)
    assert read_work(plain, attribute(plain)).cpu_ns < 3.0 * _MS, "unless it was seen it may be another's"


def test_rows_of_a_batch_share_what_a_models_threads_do() -> None:
    """With all of three other cores busy for each row, batching would win nothing."""
    recorded = recording(cpu_ms=40.9, cores=4, model_ms=10.0)
    known = Known(cores=4, batch_share=Prior(low=0.7, mid=0.7, high=0.7, source="measured"))
    state = begin(read_work(recorded, attribute(recorded)), known)
    now, after = (capacity(one, 1000.0) for one in (state, pull(pull(state, "serving path"), "batching")))
    assert after > 1.7 * now


def test_who_is_not_waited_for_takes_a_core() -> None:
    """Of two cores both at once; then others wait for one of them."""
    jobs = [[(At.BESIDE, 20.0 * _MS), (At.BESIDE, 20.0 * _MS)], [(At.PYTHON, 1.0 * _MS)]]
    arrivals_ns = np.array([0.0, 1.0 * _MS])
    for cores, took_ms in ((2, (0.0, 4.0)), (3, (0.0, 1.0))):
        found = play(ServiceModel(cores=cores), arrivals_ns, jobs).latency_ns / _MS
        assert found.tolist() == pytest.approx(took_ms)
