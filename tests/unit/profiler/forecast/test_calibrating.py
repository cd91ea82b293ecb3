"""The simulation is brought near to what was measured: the median by all waits, a long p95 by the longest."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import msgspec
import pytest
from tests.unit.profiler import profile_sample
from tests.unit.profiler.levers.test_levers import pilot

from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.forecast.calibration import Calibration, calibrate
from tailcut.profiler.forecast.forecast import forecast, latency_ms
from tailcut.profiler.forecast.state import NONE, Known, State
from tailcut.profiler.forecast.work import read_work
from tailcut.profiler.levers.levers import begin, pull
from tailcut.profiler.records import Stage
from tailcut.report.profile.levers import trust

pytestmark = pytest.mark.slow


@cache
def beside_a_database(share: float, *, beside: bool = True) -> tuple[State, State, Calibration]:
    """Queries of 6 ms, of which a database on the service's only core computes a share; before and after."""
    recording = pilot()
    known = Known(database_beside=beside, database_share=share)
    state = begin(read_work(recording, attribute(recording)), known)
    return state, *calibrate(state)


def test_waits_for_the_requests_own_load_are_not_simulated_twice() -> None:
    """They are in what was recorded, mostly of the slowest requests: the simulation adds them, and they go there."""
    _, after, found = beside_a_database(0.7)
    assert found.p95_error > 0.1  # told as it is without the cut
    assert 0.5 <= found.spread_kept < 0.95
    again = forecast(after, 50.0)
    assert again.p95_ms == pytest.approx(found.measured_p95_ms, rel=0.08)
    assert again.p50_ms == pytest.approx(found.measured_p50_ms, rel=0.12)
    assert forecast(after, 80.0).p95_ms > 1.15 * again.p95_ms  # the load still tells


def test_half_of_the_spread_stays_whatever_the_simulation_says() -> None:
    _, after, found = beside_a_database(1.0)
    assert 0.5 <= found.spread_kept < 0.6
    assert forecast(after, 50.0).p95_ms < (1.0 + found.p95_error) * found.measured_p95_ms


def test_what_is_too_much_even_so_is_taken_off_what_is_foretold() -> None:
    _, after, found = beside_a_database(1.0)
    assert found.excess > 0.01
    assert forecast(after, 50.0).p95_ms == pytest.approx(found.measured_p95_ms, rel=0.02)
    assert forecast(after, 80.0).p95_ms > 1.15 * forecast(after, 50.0).p95_ms


def test_it_goes_with_the_fetches_that_were_recorded() -> None:
    _, after, found = beside_a_database(1.0)
    assert after.excess.of(after.work) == found.excess
    numbers = after.work.numbers.tolist()
    half = pull(
        replace(after, known=replace(after.known, feature_hits=dict.fromkeys(numbers[::2], 1.0))), "feature cache"
    )
    assert 0.3 * found.excess < half.excess.of(half.work) < 0.7 * found.excess
    cached = pull(replace(after, known=replace(after.known, feature_hits=dict.fromkeys(numbers, 1.0))), "feature cache")
    assert cached.excess.of(cached.work) == 0.0
    others = replace(after, known=replace(after.known, fetches=dict.fromkeys(numbers, ((1e5, 6e6),))))
    assert (served := pull(others, "serving path")).excess.of(served.work) == 0.0  # timed by themselves, one by one
    assert (quicker := pull(after, "runtime")).excess.of(quicker.work) == found.excess


def test_a_median_is_told_as_it_is_simulated() -> None:
    _, after, _ = beside_a_database(1.0)
    plain = replace(after, excess=NONE)
    assert latency_ms(after, 50.0, 0.5, seed=1) == latency_ms(plain, 50.0, 0.5, seed=1)
    assert latency_ms(after, 50.0, 0.95, seed=1) < latency_ms(plain, 50.0, 0.95, seed=1)


def test_who_waits_for_little_waits_for_as_little() -> None:
    """Of the spread only what is beyond the median goes, in the order in which it was; other waits stay."""
    before, after, found = beside_a_database(0.7)
    then, now = ([sum(one.wait_ns for one in job if one.stage is Stage.SQL) for job in each.work.jobs]
                 for each in (before, after))  # fmt: skip
    usual = sorted(then)[len(then) // 2]
    scaled = [found.wait_scale * one for one in then]
    assert [has for has, had in zip(now, then, strict=True) if had < usual] == pytest.approx(
        [one for one, had in zip(scaled, then, strict=True) if had < usual]
    )
    assert all(has <= one * (1 + 1e-9) for has, one in zip(now, scaled, strict=True))
    assert max(now) < 0.95 * max(scaled)
    assert [one for _, one in sorted(zip(then, now, strict=True))] == pytest.approx(sorted(now))
    assert after.work.wait_of(Stage.NETWORK) == pytest.approx(found.wait_scale * before.work.wait_of(Stage.NETWORK))


def test_without_a_database_on_these_cores_no_wait_is_cut() -> None:
    """The simulation adds no load to such waits; what makes its p95 too long is something else."""
    state, _, _ = beside_a_database(0.7, beside=False)
    work = replace(state.work, latency_ns=state.work.latency_ns.clip(max=float(state.work.latency_ns.mean())))
    _, found = calibrate(replace(state, work=work))
    assert found.p95_error > 0.1
    assert found.spread_kept == 1.0


def test_no_wait_is_made_longer_for_what_is_not_simulated() -> None:
    """Where the simulated p95 is too short, something is missing; that is told, and not made up."""
    state, _, _ = beside_a_database(0.0)
    slow = state.work.latency_ns.copy()
    slow[::15] *= 4.0
    after, found = calibrate(replace(state, work=replace(state.work, latency_ns=slow)))
    assert found.spread_kept == 1.0
    assert found.p95_error < -0.25
    assert after.work.wait_of(Stage.SQL) == pytest.approx(found.wait_scale * state.work.wait_of(Stage.SQL))


def test_the_report_says_what_was_cut() -> None:
    advice = profile_sample.advice()
    assert "are kept" not in trust(advice, None)
    cut = msgspec.structs.replace(advice.calibration, spread_kept=0.72)
    assert trust(msgspec.structs.replace(advice, calibration=cut), None).endswith(
        " Of what requests waited for fetches beyond the median one, 72% are kept in what follows."
    )
    more = msgspec.structs.replace(cut, spread_kept=0.5, excess=0.21)
    assert trust(msgspec.structs.replace(advice, calibration=more), None).endswith(
        " The 21% that it is still too slow are taken off, as far as those fetches are left."
    )
