"""Overload and bursts on the scheduler, admission and costs of serving, with service times as machines have them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest

from tailcut.load.arrivals import bursts_ns, offsets_ns, steady
from tailcut.scheduler.batching_delay import Fixed, Gain
from tailcut.scheduler.cost import BatchCost
from tailcut.scheduler.simulation import Scenario, SimulatedOutcomes, noisy, simulate

MS = 1_000_000
COST = BatchCost(5.0 * MS, 2.0 * MS)
"""5 ms a batch and 2 ms a row: 464 rows/s in full batches of 32."""
MAX_ROWS = 32
KNOWN = {rows: COST.batch_ns(rows) for rows in (1, 2, 4, 8, 16, 32)}
HICCUPS = 0.002
SECONDS = 20.0


def capacity(hiccups: float = 0.0) -> float:
    """Rows a second in full batches, hiccups of five times included."""
    return MAX_ROWS / (COST.batch_ns(MAX_ROWS) / 1e9 * (1 + 4 * hiccups))


def scenario(load: float, *, seed: int = 1, sigma: float = 0.2, hiccups: float = 0.0, **more: object) -> Scenario:
    arrivals = more.pop("arrivals_ns", None)
    if arrivals is None:
        arrivals = offsets_ns(steady(load * capacity(), SECONDS), seed)
    settings: dict[str, object] = {
        "arrivals_ns": arrivals,
        "service": noisy(COST, seed, sigma=sigma, hiccups=hiccups),
        "known": KNOWN,
        "timeout_ns": 500 * MS,
        "loop_ns": 60_000.0,
        **more,
    }
    return Scenario(**settings)  # type: ignore[arg-type]


def goodput(outcome: SimulatedOutcomes, seconds: float = SECONDS) -> float:
    """Answers in time a second while the load lasts."""
    return float(outcome.in_time.sum()) / max(seconds, outcome.end_ns / 1e9)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("hiccups", [0.0, HICCUPS])
def test_at_three_times_the_capacity_nine_tenths_are_answered_and_what_is_accepted_is_kept(
    seed: int, hiccups: float
) -> None:
    outcome = simulate(scenario(3.0, seed=seed, hiccups=hiccups, timeout_ns=1000 * MS if hiccups else 500 * MS))
    assert goodput(outcome) >= 0.9 * capacity(hiccups)
    assert outcome.broken <= 0.001
    assert outcome.shed.mean() == pytest.approx(2 / 3, abs=0.05)


def test_at_ten_times_the_capacity_as_well_although_refusing_costs_time() -> None:
    arrivals = offsets_ns(steady(10 * capacity(), 8.0), 1)
    outcome = simulate(scenario(10.0, arrivals_ns=arrivals, hiccups=HICCUPS, timeout_ns=1000 * MS))
    assert goodput(outcome, 8.0) >= 0.9 * capacity(HICCUPS)
    assert outcome.broken <= 0.001


def test_a_machine_that_slows_down_to_half_its_speed_keeps_its_promises_after_twenty_batches() -> None:
    fast, slow = noisy(COST, 1, sigma=0.1), noisy(BatchCost(10.0 * MS, 4.0 * MS), 2, sigma=0.1)
    ran = Counter[str]()

    def service(rows: int) -> float:
        ran["batches"] += 1
        return fast(rows) if ran["batches"] < 100 else slow(rows)

    outcome = simulate(scenario(3.0, service=service))
    broken = (~outcome.shed & ~outcome.in_time).astype(float)
    changed = np.searchsorted(np.asarray(scenario(3.0).arrivals_ns), 100 * COST.batch_ns(MAX_ROWS))
    settled = np.searchsorted(np.asarray(scenario(3.0).arrivals_ns), 125 * COST.batch_ns(MAX_ROWS))
    assert broken[:changed].mean() <= 0.001
    assert broken[settled:].mean() <= 0.001


def test_two_executors_serve_twice_as_much() -> None:
    outcome = simulate(scenario(6.0, executors=2, hiccups=HICCUPS, timeout_ns=1000 * MS))
    assert goodput(outcome) >= 0.9 * 2 * capacity(HICCUPS)
    assert outcome.broken <= 0.001


def test_one_who_brings_large_requests_does_not_break_the_promises() -> None:
    outcome = simulate(scenario(1.0, rows=(1, 4, 16, 2, 9), sigma=0.2))
    assert outcome.broken <= 0.001
    rows = sum(size * times for size, times in outcome.batches.items())
    assert rows / (outcome.end_ns / 1e9) >= 0.9 * capacity()


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_below_the_capacity_nobody_is_refused(load: float) -> None:
    outcome = simulate(scenario(load))
    assert not outcome.shed.any()
    assert outcome.in_time.all()


def test_windows_never_cost_the_idle_path_anything() -> None:
    """Requests that come one by one are answered as fast as with batching off, to the nanosecond."""
    arrivals = np.arange(400, dtype=np.int64) * 40 * MS
    plain = simulate(scenario(0, arrivals_ns=arrivals, merge=False))
    auto = simulate(scenario(0, arrivals_ns=arrivals, window=lambda: Gain(100 * MS)))
    np.testing.assert_array_equal(plain.latency_ns, auto.latency_ns)


@pytest.mark.parametrize("load", [0.05, 0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("cost", [COST, BatchCost(20.0 * MS, 0.2 * MS), BatchCost(0.5 * MS, 3.0 * MS)])
def test_a_window_never_takes_the_p95_beyond_the_slo_nor_makes_it_worse(load: float, cost: BatchCost) -> None:
    rate = load * MAX_ROWS / (cost.batch_ns(MAX_ROWS) / 1e9)
    arrivals = offsets_ns(steady(rate, max(min(4000 / rate, 60.0), 5.0)), 3)
    known = {rows: cost.batch_ns(rows) for rows in (1, 8, 32)}
    found = [
        simulate(scenario(load, arrivals_ns=arrivals, service=noisy(cost, 3), known=known, window=window))
        for window in (None, lambda: Gain(100 * MS))
    ]
    without, window = [each.percentile_ms(0.95) for each in found]
    assert window <= max(1.05 * without, without + 0.5)


def test_where_requests_come_in_clumps_a_window_serves_them_together() -> None:
    """A page asks thirty questions within two milliseconds: waiting for them beats starting with the first.

    The median of seven servers: what the first clumps teach of a batch of two keeps some of them from waiting.
    """
    cost = BatchCost(20.0 * MS, 0.5 * MS)
    clumps = np.concatenate([start * 200 * MS + np.linspace(0, 1.8 * MS, 30) for start in range(100)]).astype(np.int64)
    known = {rows: cost.batch_ns(rows) for rows in (1, 8, 32)}
    alone, p50, p95 = [], [], []
    for seed in range(1, 8):
        without, window = [
            simulate(scenario(0, arrivals_ns=clumps, service=noisy(cost, seed), known=known, window=form))
            for form in (None, lambda: Gain(100 * MS))
        ]
        # The first twenty clumps are learned from.
        for share, found in ((0.5, p50), (0.95, p95)):
            late = [np.quantile(each.latency_ns[20 * 30 :], share) for each in (without, window)]
            found.append(late[1] / late[0])
        assert without.batches[1] > 15
        alone.append(window.batches[1])
    assert np.median(alone) <= 15, "alone only while it is being learned"
    assert np.median(p50) < 0.8
    assert np.median(p95) < 1.0
    assert max(p95) < 1.1


def test_the_fixed_mode_waits_for_its_delay_and_no_longer() -> None:
    """One request every 100 ms: each waits for the whole delay, as with Triton."""
    arrivals = np.arange(50, dtype=np.int64) * 100 * MS
    outcome = simulate(scenario(0, arrivals_ns=arrivals, sigma=0.0, loop_ns=0.0, window=lambda: Fixed(10 * MS, (8,))))
    np.testing.assert_allclose(outcome.latency_ns, 10 * MS + COST.batch_ns(1), rtol=1e-6)


def test_in_bursts_as_much_is_answered_in_time_as_any_server_could() -> None:
    """Bursts of a quarter second at twice the mean of four fifths of the capacity bring 0.15 s of work too much.

    With 25 ms and one batch to answer in, no server can answer all of it: what cannot be in time is refused.
    """
    cost = BatchCost(1.0 * MS, 7.6 * MS)
    full_ns = cost.batch_ns(8)
    rate = 0.8 * 8 / (full_ns / 1e9)
    limit_ns = 25 * MS + full_ns
    known = {rows: cost.batch_ns(rows) for rows in (1, 2, 4, 8)}
    arrivals = bursts_ns(rate, 60.0, 1)
    assert len(arrivals) == pytest.approx(60.0 * rate, rel=0.05)
    outcome = simulate(
        scenario(0, arrivals_ns=arrivals, service=noisy(cost, 1), known=known, max_rows=8, timeout_ns=int(limit_ns))
    )
    assert outcome.broken <= 0.1, "so tight a deadline leaves no room for noise"
    possible = most_in_time(arrivals, full_ns / 8, limit_ns)
    assert outcome.in_time.sum() >= 0.85 * possible


def most_in_time(arrivals: npt.NDArray[np.int64], row_ns: float, limit_ns: float) -> int:
    """Count what a server answers in time that refuses what it cannot, and is always as efficient as with full batches.

    For equal deadlines in order of arrival, first come first served without what is late is the best there is.
    """
    free_ns, found = 0.0, 0
    for at in arrivals:
        end_ns = max(free_ns, float(at)) + row_ns
        if end_ns - float(at) <= limit_ns:
            free_ns = end_ns
            found += 1
    return found


def test_requests_of_more_rows_than_a_batch_are_cut_and_answered_when_their_last_part_ends() -> None:
    arrivals = np.arange(5) * 1000 * MS
    outcome = simulate(
        Scenario(
            arrivals_ns=arrivals, service=lambda rows: rows * 10.0 * MS, known={1: 10.0 * MS}, max_rows=1, rows=(3,),
            loop_ns=0.0, timeout_ns=500 * MS,
        )
    )  # fmt: skip
    assert outcome.batches == {1: 15}
    np.testing.assert_allclose(outcome.latency_ns / MS, 30.0)


def test_a_request_of_which_a_part_was_too_late_has_no_answer() -> None:
    """The first part takes longer than foreseen, so that the others cannot be in time."""
    outcome = simulate(
        Scenario(
            arrivals_ns=[0, 1000 * MS], service=lambda rows: 60.0 * MS, known={1: 10.0 * MS}, max_rows=1, rows=(6,),
            loop_ns=0.0, timeout_ns=100 * MS,
        )
    )  # fmt: skip
    assert np.isnan(outcome.latency_ns).all()
    assert 0 < sum(outcome.batches.values()) < 12
