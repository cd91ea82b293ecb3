"""What tailcut's own path takes of a core at another rate than the recorded one."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.profiler import profile_sample
from tests.unit.profiler.levers.test_levers import pilot

from tailcut.errors import LoadTestError
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.deployments import own_path
from tailcut.profiler.forecast.cpu_scaling import cpu_factor, fit_slope
from tailcut.profiler.forecast.forecast import capacity, forecast
from tailcut.profiler.forecast.idle_cost import FASTEST, at_rate
from tailcut.profiler.forecast.state import Known, State
from tailcut.profiler.forecast.work import read_work
from tailcut.profiler.levers.assumptions import know
from tailcut.profiler.levers.levers import begin, pull
from tailcut.profiler.levers.priors import THREAD_SHARE, measured
from tailcut.profiler.records import Pilot, decode_recording, encode_recording

pytestmark = pytest.mark.slow

few_requests = profile_sample.few_requests(800, 300)

_MS = 1_000_000
_RATE = 50.0


@given(
    st.floats(0.0, 1.0), st.floats(1.0, 1e4), st.floats(1.01, 100.0), st.floats(1e-6, 1.0),
)  # fmt: skip
def test_a_power_is_found_again(slope: float, rate: float, times: float, took: float) -> None:
    assert fit_slope((rate, took), (rate * times, took * times**-slope)) == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize(("took", "slope"), [(1.5, 0.0), (1.0, 0.0), (0.1, 1.0)])
def test_what_no_idle_core_does_is_cut(took: float, slope: float) -> None:
    """A request that takes more where more come meets something else; and more requests never take less in all."""
    assert fit_slope((50.0, 1.0), (100.0, took)) == slope


@pytest.mark.parametrize(
    ("low", "high"), [((100.0, 1.0), (50.0, 1.0)), ((50.0, 0.0), (100.0, 1.0)), ((0.0, 1.0), (1.0, 1.0))]
)
def test_what_cannot_be_is_refused(low: tuple[float, float], high: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="rates and times are positive and the second rate is higher"):
        fit_slope(low, high)


@given(st.floats(0.0, 1.0), st.floats(1.0, 1e4), st.floats(0.01, 1e6))
def test_the_farther_the_rate_the_less_but_no_farther_than_twice(slope: float, recorded: float, rate: float) -> None:
    factor = cpu_factor(slope, recorded, rate)
    assert 0.5 <= factor <= 2.0
    assert factor <= 1.0 if rate >= recorded else factor >= 1.0
    assert cpu_factor(slope, recorded, recorded) == 1.0
    assert cpu_factor(slope, recorded, recorded * 2) == pytest.approx(cpu_factor(slope, recorded, recorded * 50))


def served(slope: float, path_ms: float = 8.0) -> State:
    """On tailcut's own path, which takes most of what a request computes."""
    recording = pilot(model_ms=0.5)
    known = Known(path=measured(path_ms * _MS), path_slope=slope)
    return pull(begin(read_work(recording, attribute(recording)), known), "serving path")


def test_at_the_recorded_rate_nothing_changes() -> None:
    state = served(0.5)
    assert at_rate(state, _RATE) is state
    assert at_rate(served(0.0), 10 * _RATE).work.cpu_ns == state.work.cpu_ns


def test_at_twice_the_rate_tailcuts_path_takes_less_of_a_core_and_what_was_recorded_as_much() -> None:
    recording = msgspec.structs.replace(pilot(), pilot=Pilot(threads=40, path_ns=2.0 * _MS, path_slope=1.0))
    known = know(recording, [], None, _RATE)
    plain = begin(read_work(recording, attribute(recording)), known)
    assert at_rate(plain, 2 * _RATE).work.cpu_ns == plain.work.cpu_ns
    state = pull(plain, "serving path")
    # And what a batch takes to be handed over goes with it.
    assert state.work.cpu_ns - at_rate(state, 2 * _RATE).work.cpu_ns == pytest.approx((1 + THREAD_SHARE / 2) * _MS)


def test_a_forecast_at_a_higher_rate_knows_it() -> None:
    plain, cooling = served(0.0), served(0.8)
    assert forecast(plain, _RATE) == forecast(cooling, _RATE)
    assert forecast(cooling, 1.6 * _RATE).p95_ms < 0.8 * forecast(plain, 1.6 * _RATE).p95_ms
    assert capacity(cooling, 200.0) > 1.4 * capacity(plain, 200.0)


def test_a_percentile_that_falls_before_it_rises_has_a_capacity() -> None:
    """At the recorded rate it is within the limit, at half of that it is not: requests take more of a core."""
    state = served(1.0)
    limit_ms = 1.02 * forecast(state, _RATE).p95_ms
    assert forecast(state, _RATE / 2).p95_ms > limit_ms
    assert capacity(state, limit_ms) >= _RATE


def test_no_capacity_is_beyond_what_the_core_has_time_for_at_that_rate() -> None:
    slow = served(0.5, path_ms=12.0)
    found = capacity(slow, 10_000.0)
    assert 0 < found <= 1.01e9 / at_rate(slow, found).work.cpu_ns


def test_tailcuts_path_is_asked_in_turns_and_no_faster_than_it_bears(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def ask(rate: float) -> own_path.PathSample:
        asked.append(rate)
        if rate > 500.0:
            raise LoadTestError("half of the requests were answered", hint="")
        cpu_ns = 1e6 * rate**-0.4
        return own_path.PathSample(cpu_ns, 1e6 * np.linspace(-0.1, 2.0, 106))

    path = own_path._in_turns(ask, 100.0)
    assert path[:2] == (pytest.approx(1e6 * 100.0**-0.4), pytest.approx(0.4))
    assert asked == [100.0, 200.0, 100.0, 200.0]
    assert path.waits_ns[0] == 0.0
    assert np.quantile(path.waits_ns, (0.25, 0.5, 0.95)) == pytest.approx([0.425e6, 0.95e6, 1.895e6], rel=0.03)
    assert own_path._in_turns(ask, 300.0)[:2] == (pytest.approx(1e6 * 300.0**-0.4), 0.0)
    seldom = own_path._in_turns(lambda rate: own_path.PathSample(1e6, np.empty(0)), 0.1)
    assert seldom.waits_ns == (), "none came after the warm-up"
    with pytest.raises(LoadTestError):
        own_path._in_turns(ask, 5000.0)
    assert asked[-1] == FASTEST


def test_a_path_that_was_asked_slower_says_so() -> None:
    recording = msgspec.structs.replace(pilot(), rate=5000.0, pilot=Pilot(path_ns=1.0 * _MS))
    path = know(recording, [], None, 5000.0).path
    assert path is not None
    assert path.source == "measured: at 1000 requests/s"


def test_a_recording_from_before_uvloop_could_be_watched_was_watched() -> None:
    old = msgspec.structs.replace(pilot(), pilot=Pilot(loop="asyncio"))
    assert decode_recording(encode_recording(old)).pilot.watched
    other = msgspec.structs.replace(pilot(), pilot=Pilot(loop="uvloop"))
    assert not decode_recording(encode_recording(other)).pilot.watched
