"""Fetches that run side by side, or could: what sending them out at once wins, and what it does not."""

from __future__ import annotations

import msgspec
import numpy as np

from tailcut.core.profiling.attribution import attribute
from tailcut.core.profiling.levers import Known, begin, pull
from tailcut.core.profiling.records import Pilot, Recording, Request, Span, Stage
from tailcut.core.profiling.work import Work, read_work

_MS = 1_000_000


def recorded(requests: list[Request], rate: float) -> Recording:
    return Recording(
        target="app:app", rate=rate, duration_s=len(requests) / rate, requests=tuple(requests),
        machine={"cores": "2"}, pilot=Pilot(loop="asyncio"),
    )  # fmt: skip


def request(number: int, at: int, end: int, spans: list[Span]) -> Request:
    """A handler with spans of its own, children of the second; it ends where it is told to."""
    around = [
        Span(stage=Stage.FRAMEWORK, label="fastapi", start_ns=at + _MS // 10, end_ns=end + _MS // 10),
        Span(
            stage=Stage.CODE, label="predict", place="app.py:7", start_ns=at + _MS // 5, end_ns=end, parent=0,
            cpu_ns=_MS // 2,
        ),
    ]  # fmt: skip
    return Request(
        number=number, intended_ns=at, sent_ns=at, entered_ns=at + _MS // 10, left_ns=end + _MS // 10,
        done_ns=end + _MS // 5, status=200, endpoint="predict (app.py:7)", spans=(*around, *spans),
    )  # fmt: skip


def fetching(*, queries: int = 4, together: float = 1.0, rate: float = 40.0, count: int = 400) -> Recording:
    """Each query takes about 10 ms; in a share of the requests all go out together, a tenth of a millisecond apart."""
    draw = np.random.default_rng(0)
    requests = []
    for number, at in enumerate(np.cumsum(draw.exponential(1e9 / rate, count)).astype(int).tolist()):
        now, spans = at + _MS // 2, []
        gathers = draw.random() < together
        for length in (draw.uniform(9.0, 11.0, queries) * _MS).astype(int).tolist():
            spans.append(Span(stage=Stage.SQL, label="q", start_ns=now, end_ns=now + length, parent=1))
            now += _MS // 10 if gathers else length
        end = max([now, *(span.end_ns for span in spans)]) + _MS // 5
        requests.append(request(number, at, end, spans))
    return recorded(requests, rate)


def work_of(recording: Recording) -> Work:
    return read_work(recording, attribute(recording))


def test_a_request_that_fetches_nothing_is_no_quicker_for_a_feature_cache() -> None:
    """It waits for a thread and its way back as before; who fetched and hits does not."""
    recording = fetching(count=40)
    plain = []
    for one in recording.requests:
        kept = tuple(span for span in one.spans if span.stage is not Stage.SQL or one.number % 2)
        at = one.entered_ns
        wait = Span(stage=Stage.WAIT, label="thread pool", start_ns=at, end_ns=at + 50_000, parent=0, cpu_ns=0)
        plain.append(msgspec.structs.replace(one, spans=(*kept, wait)))
    known = Known(feature_hits={number: 1.0 for number in range(40)})
    state = begin(work_of(msgspec.structs.replace(recording, requests=tuple(plain))), known)
    after = pull(state, "feature cache")
    assert all(any(part.stage is Stage.WAIT for part in job) for job in state.work.jobs)  # or this test asks nothing
    for number, before, job in zip(state.work.numbers.tolist(), state.work.jobs, after.work.jobs, strict=True):
        assert job == before if number % 2 == 0 else not any(part.stage is Stage.WAIT for part in job)
