from __future__ import annotations

import numpy as np
import pytest

from tailcut.errors import LoadTestError
from tailcut.load.arrivals import Pace, offsets_ns, steady, trace_ns


def test_a_constant_pace_is_evenly_spaced() -> None:
    assert offsets_ns(steady(10, 0.5, kind="constant"), seed=0).tolist() == [
        0,
        100_000_000,
        200_000_000,
        300_000_000,
        400_000_000,
    ]


def test_warm_up_comes_before_the_measured_seconds() -> None:
    offsets = offsets_ns(steady(10, 1.0, warmup_s=0.5, kind="constant"), seed=0)
    assert offsets.size == 15
    assert (offsets >= 500_000_000).sum() == 10


def test_a_ramp_sends_most_near_its_high_end() -> None:
    offsets = offsets_ns(Pace(start_rate=0, end_rate=200, duration_s=10, kind="constant"), seed=0)
    assert offsets.size == 1000
    first_half = (offsets < 5_000_000_000).sum()
    assert first_half == pytest.approx(250, abs=1)


def test_a_trace_starts_at_its_first_time() -> None:
    assert trace_ns(np.array([100.0, 100.25, 101.0])).tolist() == [0, 250_000_000, 1_000_000_000]


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ([], "is empty"),
        ([0.0, 1e10], "lasts 1e.10 s; the limit is 9e.09 s"),
        ([1.0, 0.5], "not ascending"),
        ([0.0, float("nan")], "time 2"),
    ],
)
def test_a_bad_trace_is_refused(times: list[float], says: str) -> None:
    with pytest.raises(LoadTestError, match=says):
        trace_ns(np.array(times))


@pytest.mark.parametrize(
    ("pace", "says"),
    [
        (steady(0, 1), "rate is 0:0"),
        (steady(-1, 1), "rate is -1"),
        (steady(float("inf"), 1), "rate is inf"),
        (steady(1, 0), "duration is 0"),
        (steady(1, 1, warmup_s=-1), "warm-up is -1"),
        (steady(1e9, 60), "limit is 20000000"),
    ],
)
def test_a_bad_pace_is_refused(pace: Pace, says: str) -> None:
    with pytest.raises(LoadTestError, match=says):
        offsets_ns(pace, seed=0)
