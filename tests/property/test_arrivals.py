from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailcut.load.arrivals import Pace, expected_count, offsets_ns

rates = st.floats(min_value=0.5, max_value=2_000)
paces = st.builds(
    Pace,
    start_rate=rates,
    end_rate=rates,
    duration_s=st.floats(min_value=0.1, max_value=10),
    warmup_s=st.floats(min_value=0, max_value=3),
    kind=st.sampled_from(["constant", "poisson"]),
)


@given(paces, st.integers(0, 2**32))
def test_times_ascend_and_stay_inside_the_run(pace: Pace, seed: int) -> None:
    offsets = offsets_ns(pace, seed)
    assert (np.diff(offsets) >= 0).all()
    if offsets.size:
        assert offsets[0] >= 0
        assert offsets[-1] <= (pace.warmup_s + pace.duration_s) * 1e9


@given(paces, st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_times(pace: Pace, seed: int) -> None:
    assert offsets_ns(pace, seed).tolist() == offsets_ns(pace, seed).tolist()


@given(paces, st.integers(0, 2**32))
def test_counts_match_the_rate(pace: Pace, seed: int) -> None:
    count, expected = offsets_ns(pace, seed).size, expected_count(pace)
    if pace.kind == "constant":
        assert abs(count - expected) <= 1
    else:
        assert abs(count - expected) <= 8 * np.sqrt(expected) + 8  # beyond 8 standard deviations: never


@given(paces, st.integers(0, 2**32), st.floats(min_value=0, max_value=1))
def test_every_prefix_has_the_rate_of_its_pace(pace: Pace, seed: int, part: float) -> None:
    at_s = part * (pace.warmup_s + pace.duration_s)
    ramp_s = max(0.0, at_s - pace.warmup_s)
    slope = (pace.end_rate - pace.start_rate) / pace.duration_s
    expected = pace.start_rate * at_s + slope * ramp_s * ramp_s / 2
    count = int((offsets_ns(pace, seed) < at_s * 1e9).sum())
    tolerance = 1 if pace.kind == "constant" else 8 * np.sqrt(expected) + 8
    assert abs(count - expected) <= tolerance + 1e-3


@given(st.integers(0, 2**32))
def test_poisson_gaps_are_exponential(seed: int) -> None:
    gaps = np.diff(offsets_ns(Pace(start_rate=1000, end_rate=1000, duration_s=5, kind="poisson"), seed)) / 1e6
    assert abs(gaps.mean() - 1.0) < 0.15
    assert abs((gaps > 1.0).mean() - np.exp(-1)) < 0.06  # the share beyond the mean of an exponential
