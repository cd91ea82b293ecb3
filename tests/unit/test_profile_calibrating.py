"""The simulation is made to repeat what was measured: the median by all waits, the p95 by the longest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.test_profile_levers import pilot

from tailcut.core.profiling.attribution import attribute
from tailcut.core.profiling.calibrating import Calibration, calibrate
from tailcut.core.profiling.forecast import forecast
from tailcut.core.profiling.levers import Known, State, begin
from tailcut.core.profiling.records import Stage
from tailcut.core.profiling.work import read_work


def beside_a_database(share: float, *, rate: float = 50.0) -> tuple[State, State, Calibration]:
    """Queries of 6 ms, of which a database on the service's only core computes a share; before and after."""
    recording = pilot(rate=rate)
    known = Known(database_beside=True, database_share=share)
    state = begin(read_work(recording, attribute(recording)), known)
    return state, *calibrate(state)


def test_waits_for_the_requests_own_load_are_not_simulated_twice() -> None:
    """They are in what was recorded, mostly of the slowest requests: the simulation adds them, and they go there."""
    before, after, found = beside_a_database(0.7)
    assert forecast(before, 50.0).p95_ms > 1.1 * found.measured_p95_ms
    assert found.spread_kept < 0.9
    assert found.simulated_p95_ms == pytest.approx(found.measured_p95_ms, rel=0.08)
    assert found.simulated_p50_ms == pytest.approx(found.measured_p50_ms, rel=0.12)
    assert forecast(after, 80.0).p95_ms > 1.15 * found.simulated_p95_ms  # the load still tells


def test_who_waits_for_little_waits_for_as_little() -> None:
    """Of the spread only what is beyond the median goes, in the order in which it was."""
    before, after, found = beside_a_database(0.7)
    then, now = ([sum(part.wait_ns for part in job) for job in state.work.jobs] for state in (before, after))
    usual = sorted(then)[len(then) // 2]
    for had, has in zip(then, now, strict=True):
        scaled = had * found.wait_scale
        assert has == pytest.approx(scaled if had < usual else min(has, scaled))
    assert [one for _, one in sorted(zip(then, now, strict=True))] == pytest.approx(sorted(now))


def test_no_wait_is_made_longer_for_what_is_not_simulated() -> None:
    """Where the simulated p95 is too short, something is missing; that is told, and not made up."""
    state, _, _ = beside_a_database(0.0)
    slow = state.work.latency_ns.copy()
    slow[::15] *= 4.0
    after, found = calibrate(replace(state, work=replace(state.work, latency_ns=slow)))
    assert found.spread_kept == 1.0
    assert found.p95_error < -0.25
    assert after.work.wait_of(Stage.SQL) == pytest.approx(found.wait_scale * state.work.wait_of(Stage.SQL))
