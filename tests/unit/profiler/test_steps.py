"""What ``record`` makes of what goes wrong on the way: what was recorded is kept, and what could not be is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tailcut.common.slo import parse_objectives
from tailcut.errors import LoadTestError, ProfileError
from tailcut.load import LoadPlan, Samples
from tailcut.load.summary import RunFacts
from tailcut.profiler import pilot
from tailcut.profiler.child_channel import ChildEvent, RecordedRun, Route
from tailcut.profiler.pilot import record
from tailcut.profiler.plan import PilotPlan, max_requests_for
from tailcut.profiler.recording.captured import FoundLayers
from tailcut.profiler.records import Recording

PLAN = PilotPlan(target="shop:app", rate=50.0, duration_s=4.0, warmup_s=0.0, layers=False)
SAMPLING = PLAN.seed + 2


class Process:
    """An application's process that does all that it is asked."""

    pid = 1
    url = "http://127.0.0.1:1"
    started: list[bool]
    """Whether each was profiled."""

    def __init__(self, options: Any, *, directory: Path, environment: dict[str, str]) -> None:
        Process.started.append(options.profiled)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left."""

    def wait_ready(self, timeout_s: float, _say: object = None) -> ChildEvent:
        route = Route(path="/predict", methods=("GET",))
        return ChildEvent(kind="ready", port=1, loop="asyncio", usual_loop="asyncio", routes=(route,))

    def begin(self) -> None:
        """There is nothing to forget."""

    def recorded(self) -> RecordedRun:
        return RecordedRun(requests=(), moments=(), hooks=(), notes=(), failures=())

    def layers(self) -> FoundLayers:
        return FoundLayers()

    def log(self) -> str:
        return ""


def sample_stacks(pid: int, rate: float, run: Callable[[], object]) -> tuple[str, str]:
    """Sees nothing."""
    run()
    return "", ""


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[LoadPlan]:
    """All loads that were sent, each request answered after 4 ms."""
    sent: list[LoadPlan] = []

    def measure(load: LoadPlan) -> tuple[Samples, RunFacts]:
        sent.append(load)
        return answered(load)

    Process.started = []
    monkeypatch.setattr(pilot, "PilotProcess", Process)
    monkeypatch.setattr(pilot, "sample_stacks", sample_stacks)
    monkeypatch.setattr(pilot, "measure", measure)
    return sent


def answered(load: LoadPlan, took_s: Callable[[float], float] = lambda at_s: 0.004) -> tuple[Samples, RunFacts]:
    at_s = np.arange(0.0, load.warmup_s + load.duration_s, 1 / (load.rate or 1.0))
    done_s = at_s + np.array([took_s(each) for each in at_s])
    count = at_s.size
    samples = Samples(
        intended_ns=(at_s * 1e9).astype(np.int64), sent_ns=(at_s * 1e9).astype(np.int64),
        done_ns=(done_s * 1e9).astype(np.int64), status=np.full(count, 200, np.int16),
        cache=np.zeros(count, np.int8), cache_names=("",), stages_ms={},
        measured_from_ns=int(load.warmup_s * 1e9),
    )  # fmt: skip
    return samples, RunFacts(window_s=load.duration_s)


def instead(
    monkeypatch: pytest.MonkeyPatch, module: Any, measured: Callable[[LoadPlan], tuple[Samples, RunFacts] | None]
) -> None:
    """Let some loads end otherwise."""
    usual = module.measure
    monkeypatch.setattr(module, "measure", lambda load: measured(load) or usual(load))


def test_the_application_is_tried_as_it_is_recorded(loads: list[LoadPlan]) -> None:
    """With numbered requests, else it is not profiled."""
    record(PLAN)
    _probe, _trial, recording, sampling = loads
    assert {one.numbered for one in loads} == {pilot.HEADER}
    assert (recording.duration_s, sampling.seed) == (4.0, SAMPLING)
    assert Process.started == [True]


def test_headers_that_all_requests_have_are_told_of(loads: list[LoadPlan]) -> None:
    """By name: what goes by them seems to repeat. What says how a body is written says nothing."""
    found = record(msgspec.structs.replace(PLAN, headers=(("X-User", "secret"), ("Content-Type", "application/json"))))
    (note,) = [one for one in found.notes if "had the same" in one]
    assert note.startswith("all requests had the same x-user: ")
    assert "secret" not in note
    assert not any("had the same" in one for one in record(PLAN).notes)
    assert loads


def test_a_recording_stops_after_so_many_requests_and_says_so(loads: list[LoadPlan]) -> None:
    """The run in which stacks are looked at is as long as ever: it keeps no request."""
    said: list[str] = []
    found = record(msgspec.structs.replace(PLAN, max_requests=150), on_step=said.append)
    recording, sampling = loads[2:]
    assert (recording.duration_s, sampling.duration_s) == (3.0, 4.0)
    assert (len(found.requests), found.duration_s) == (150, 3.0)
    assert "recording for 3 s at 50 requests/s, the first 150 requests of 4 s" in said
    assert any(note.startswith("recorded 3 s of 4 s (the first 150 requests): a higher perc") for note in found.notes)


def test_a_recording_of_as_many_requests_as_that_is_as_long_as_it_was_to_be(loads: list[LoadPlan]) -> None:
    said: list[str] = []
    found = record(msgspec.structs.replace(PLAN, max_requests=200), on_step=said.append)
    assert (len(found.requests), loads[2].duration_s) == (200, 4.0)
    assert "recording for 4 s at 50 requests/s" in said
    assert not any("the first" in note for note in found.notes)


def test_an_slos_percentile_rests_on_enough_requests() -> None:
    assert max_requests_for(None) == max_requests_for(parse_objectives("p95=10ms,errors=1%")) == 1000
    assert max_requests_for(parse_objectives("p95=10ms,p99=50ms")) == 2000


def test_a_recording_in_which_the_queue_grew_is_refused(loads: list[LoadPlan], monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the short trial went well."""
    instead(monkeypatch, pilot, lambda load: answered(load, lambda at_s: at_s) if load.duration_s == 4.0 else None)
    with pytest.raises(ProfileError, match="cannot sustain 50 requests/s"):
        record(PLAN)
    assert Process.started == [True]
    assert SAMPLING not in {one.seed for one in loads}


def test_a_recording_with_requests_without_an_answer_is_refused(
    loads: list[LoadPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(load: LoadPlan) -> tuple[Samples, RunFacts] | None:
        samples, facts = answered(load)
        status = np.where(np.arange(samples.status.size) % 10, samples.status, -3).astype(np.int16)
        return (msgspec.structs.replace(samples, status=status), facts) if load.duration_s == 4.0 else None

    instead(monkeypatch, pilot, silent)
    with pytest.raises(ProfileError, match="20 of 200 requests got no answer within 10 s, at a rate"):
        record(PLAN)


def kept_without(found: Recording, what: str) -> str:
    """The note on what could not be done; the recording is whole."""
    assert len(found.requests) == 200
    return next(note for note in found.notes if what in note)


def test_a_failing_run_for_stacks_loses_no_recording(loads: list[LoadPlan], monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(load: LoadPlan) -> None:
        if load.seed == SAMPLING:
            raise LoadTestError("cannot connect", hint="is it running?")

    instead(monkeypatch, pilot, failing)
    found = record(PLAN)
    note = kept_without(found, "no stacks were sampled")
    assert note.startswith("the run in which stacks are sampled failed (cannot connect)")
    assert found.sample_interval_ns == 0


def test_a_seed_that_cannot_be_is_refused_before_anything_starts(loads: list[LoadPlan]) -> None:
    with pytest.raises(LoadTestError, match="--seed is -1"):
        record(msgspec.structs.replace(PLAN, seed=-1))
    assert not Process.started
    assert not loads
