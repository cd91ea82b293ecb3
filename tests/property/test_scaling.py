"""The pool's size: within its limits, up in seconds, down after quiet, and no flapping; over a simulated pool."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailcut.scheduler.pool_scaling import PoolObservation, Scaler, ScalingLimits, Wear

LOOK_S = 0.25

seen = st.builds(
    PoolObservation,
    now_s=st.floats(0, 1e6),
    executors=st.integers(0, 20),
    opening=st.integers(0, 3),
    busy_s=st.floats(0, 1e3),
    queued_s=st.floats(0, 1e3),
    p95_s=st.floats(0, 100),
    load_s=st.floats(0, 100),
)


def simulate(
    work: Callable[[float], float],
    *,
    most: int,
    least: int = 1,
    load_s: float = 2.0,
    for_s: float = 120.0,
    seed: int = 0,
) -> list[tuple[float, int, float]]:
    """Run a pool whose work arrives at ``work(now)`` executor seconds a second; (time, executors, queued) per look."""
    random = np.random.default_rng(seed)
    scaler = Scaler(ScalingLimits(least, most, latency_s=0.1))
    executors, loading, queued = least, [], 0.0
    history = []
    for look in range(int(for_s / LOOK_S)):
        now = look * LOOK_S
        ready = [at for at in loading if at <= now]
        loading = [at for at in loading if at > now]
        executors += len(ready)
        arrived = random.poisson(work(now) * LOOK_S / 0.01) * 0.01  # pieces of 10 ms
        done = min(queued + arrived, executors * LOOK_S)
        queued += arrived - done
        p95 = 0.02 + queued / executors
        target = scaler.target(PoolObservation(now, executors, len(loading), done, queued, p95, load_s))
        there = executors + len(loading)
        if target > there and not loading:  # one at a time, as the pool does
            loading.append(now + load_s)
        elif target < there:
            executors -= 1
        history.append((now, executors, queued))
    return history


def size_at(history: list[tuple[float, int, float]], at_s: float) -> int:
    return next(executors for now, executors, _ in history if now >= at_s)


@given(st.lists(seen, max_size=20), st.integers(1, 5), st.integers(0, 10))
def test_the_size_stays_within_its_limits_whatever_is_seen(looks: list[PoolObservation], least: int, more: int) -> None:
    scaler = Scaler(ScalingLimits(least, least + more, latency_s=0.025))
    for look in looks:
        assert least <= scaler.target(look) <= least + more


def test_two_looks_at_almost_the_same_moment_break_nothing() -> None:
    scaler = Scaler(ScalingLimits(1, 4, latency_s=0.025))
    for now_s in (0.0, 5e-324, 1e-300):
        assert 1 <= scaler.target(PoolObservation(now_s, 1, 0, 1e3, 0.0, 0.0, 100.0)) <= 4


@settings(max_examples=25)
@given(st.floats(0, 0.3), st.integers(0, 2**32 - 1))
def test_light_work_keeps_one_executor(work: float, seed: int) -> None:
    history = simulate(lambda now: work, most=8, for_s=60, seed=seed)
    assert max(executors for _, executors, _ in history) <= 2
    assert np.mean([executors for _, executors, _ in history]) < 1.6


def test_a_step_of_work_is_met_within_seconds_and_what_waits_is_worked_off() -> None:
    history = simulate(lambda now: 0.3 if now < 20 else 2.4, most=8, for_s=60)
    assert size_at(history, 19) == 1
    assert size_at(history, 30) >= 3  # ten seconds later, at two seconds an executor
    assert history[-1][2] < 0.2


def test_work_that_grows_is_met_before_a_queue_forms() -> None:
    history = simulate(lambda now: min(0.4 + now / 40, 3.0), most=8, for_s=150)
    assert max(queued for _, _, queued in history) < 0.5
    assert history[-1][1] >= 4


def test_a_quarter_second_burst_is_left_to_the_queue() -> None:
    history = simulate(lambda now: 1.6 if now % 10 < 0.25 else 0.2, most=8, for_s=100)
    assert max(executors for _, executors, _ in history) <= 2


def test_it_shrinks_after_half_a_minute_of_quiet_one_by_one() -> None:
    history = simulate(lambda now: 2.4 if now < 30 else 0.1, most=8, for_s=300)
    peak = size_at(history, 30)
    assert peak >= 3
    assert size_at(history, 50) == peak  # not at once: the work may come back
    assert history[-1][1] == 1
    falls = [now for (_, before, _), (now, after, _) in pairwise(history) if after < before]
    assert all(later - earlier >= 25 for earlier, later in pairwise(falls))


@settings(max_examples=25)
@given(st.floats(0.2, 5.0), st.integers(0, 2**32 - 1))
@example(0.3828125, 0)
def test_steady_work_does_not_make_it_flap(work: float, seed: int) -> None:
    history = simulate(lambda now: work, most=10, for_s=300, seed=seed)
    settled = [executors for now, executors, _ in history if now >= 90]
    changes = sum(before != after for before, after in pairwise(settled))
    assert changes <= 6
    assert min(settled) >= work * 0.95  # never fewer than the work needs


def test_who_is_missed_soon_after_it_went_stays_longer_the_next_time() -> None:
    """A burst a minute: one executor more goes after half a minute, then after a whole one, and then it stays."""
    history = simulate(lambda now: 2.4 if now % 60 < 5 else 0.1, most=8, for_s=600)
    falls = [now for (now, before, _), (_, after, _) in pairwise(history) if after < before]
    assert sum(now < 120 for now in falls) >= 1
    assert sum(now >= 240 for now in falls) == 0


def test_after_a_long_quiet_it_shrinks_as_soon_as_ever() -> None:
    bursts = {0, 60, 120, 180, 1200}
    history = simulate(lambda now: 2.4 if any(0 <= now - one < 5 for one in bursts) else 0.1, most=8, for_s=1400)
    assert size_at(history, 1195) == 1
    peak = max(executors for now, executors, _ in history if now >= 1200)
    first_fall = next(now for (now, before, _), (_, after, _) in pairwise(history) if now > 1205 and after < before)
    assert peak > 1
    assert first_fall < 1245


def look_on(scaler: Scaler, from_s: float, executors: int, opening: int, work: float, for_s: float) -> float:
    """Show a pool that stays as it is; return when fewer than what is there are wanted first, or the end."""
    for look in range(round(for_s / LOOK_S)):
        now_s = from_s + look * LOOK_S
        if (
            scaler.target(PoolObservation(now_s, executors, opening, work * LOOK_S, 0.0, 0.01, 2.0))
            < executors + opening
        ):
            return now_s
    return from_s + for_s


def test_one_that_crashes_after_another_went_is_not_the_one_that_is_missed() -> None:
    scaler = Scaler(ScalingLimits(1, 8, latency_s=0.1))
    went_s = look_on(scaler, 0.0, 3, 0, work=0.9, for_s=60.0)
    assert went_s == pytest.approx(30.0, abs=2.0)
    back_s = look_on(scaler, went_s + LOOK_S, 1, 0, work=0.9, for_s=2.0)
    assert look_on(scaler, back_s, 2, 0, work=0.3, for_s=90.0) - back_s == pytest.approx(30.0, abs=5.0)


def test_none_goes_while_one_is_loaded_in_the_place_of_a_worn_one() -> None:
    scaler = Scaler(ScalingLimits(1, 8, latency_s=0.1))
    assert look_on(scaler, 0.0, 2, 1, work=0.3, for_s=90.0) == 90.0
    assert look_on(scaler, 90.0, 2, 0, work=0.3, for_s=90.0) < 125.0


def test_an_executor_wears_out_by_requests_age_or_memory() -> None:
    wear = Wear(requests=100, age_s=60.0, growth=0.5)
    assert wear
    assert not wear.reason(99, 59.0, 0.49)
    assert "100 requests" in wear.reason(100, 0.0, 0.0)
    assert "60 s old" in wear.reason(0, 60.0, 0.0)
    assert "50%" in wear.reason(0, 0.0, 0.5)
    assert not Wear()
    assert not Wear().reason(10**9, 1e9, 1e9)
