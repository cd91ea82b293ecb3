"""Threads of the pool: a request has one while its own code runs there, and none while it awaits."""

from __future__ import annotations

import numpy as np
import pytest

from tailcut.core.profiling import forecast as forecasts
from tailcut.core.profiling.attribution import attribute
from tailcut.core.profiling.forecast import calibrate, forecast, phases_of
from tailcut.core.profiling.levers import Known, begin
from tailcut.core.profiling.queueing import THREAD, At
from tailcut.core.profiling.records import Pilot, Recording, Request, Span, Stage
from tailcut.core.profiling.work import Work, read_work

_MS = 1_000_000


@pytest.fixture(autouse=True)
def few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked here is no question of a few percent."""
    monkeypatch.setattr(forecasts, "REQUESTS", 800)
    monkeypatch.setattr(forecasts, "_CAPACITY_REQUESTS", 400)


def awaiting(parts: list[tuple[Stage, int, float]], rate: float = 120.0, count: int = 300) -> Work:
    """Requests of an asynchronous endpoint: stage, thread and milliseconds of what it does, one after the other."""
    requests = []
    for number, at in enumerate(
        np.cumsum(np.random.default_rng(0).exponential(1e9 / rate, count)).astype(int).tolist()
    ):
        now, spans = at, []
        for stage, thread, took_ms in parts:
            end = now + int(took_ms * _MS)
            cpu_ns = -1 if stage is Stage.HTTP else end - now
            spans.append(
                Span(stage=stage, label="it", parent=0, thread=thread, start_ns=now, end_ns=end, cpu_ns=cpu_ns)
            )
            now = end
        root = Span(stage=Stage.FRAMEWORK, label="fastapi", start_ns=at, end_ns=now)
        requests.append(
            Request(
                number=number, intended_ns=at, sent_ns=at, entered_ns=at, left_ns=now, done_ns=now, status=200,
                spans=(root, *spans),
            )
        )  # fmt: skip
    recording = Recording(
        target="app:app", rate=rate, duration_s=count / rate, requests=tuple(requests), machine={"cores": "2"},
        pilot=Pilot(threads=40),
    )  # fmt: skip
    return read_work(recording, attribute(recording))


def test_a_thread_goes_back_to_the_pool_while_the_request_awaits() -> None:
    """Sixty requests await an answer at any time; of forty threads hardly one is ever in use."""
    work = awaiting([(Stage.CODE, 1, 1.0), (Stage.HTTP, 0, 500.0), (Stage.CODE, 2, 1.0)])
    state, calibration = calibrate(begin(work, Known(cores=2)))
    assert calibration.wait_scale == pytest.approx(1.0, abs=0.05)
    assert forecast(state, 120.0).p95_ms == pytest.approx(504.0, rel=0.03)
    assert forecast(state, 300.0).p95_ms == pytest.approx(505.0, rel=0.05)


def test_a_drivers_own_thread_is_none_of_the_pools() -> None:
    """As aiosqlite's: the event loop awaits what it fetches. Code that is handed over has a thread of the pool."""
    state = begin(awaiting([(Stage.WAIT, 1, 0.1), (Stage.SQL, 1, 5.0)]), Known(cores=2))
    assert not any(part.thread for job in state.work.jobs for part in job)
    state = begin(awaiting([(Stage.CODE, 1, 1.0), (Stage.MODEL, 1, 1.0)]), Known(cores=2))
    taken = [phases_of(job, state.service).count((At.TAKE, float(THREAD))) for job in state.work.jobs]
    assert set(taken) == {1}, "what follows in the same pool has the thread still"
