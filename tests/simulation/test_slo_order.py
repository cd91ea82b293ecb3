"""What can still meet the SLO goes first, and a backlog that stands is not added to: on the scheduler of serving."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from tailcut.load.arrivals import bursts_ns, offsets_ns, steady
from tailcut.scheduler.admission import Admission, AdmissionRequest, Executors
from tailcut.scheduler.batching_delay import Fixed
from tailcut.scheduler.cost import BatchCost, LatencyLearner
from tailcut.scheduler.overload_detector import LatencyTarget, OverloadDetector
from tailcut.scheduler.scheduler import QueueEntry, Scheduler
from tailcut.scheduler.simulation import Scenario, SimulatedOutcomes, noisy, simulate

MS = 1_000_000
COST = BatchCost(0.1 * MS, 4.6 * MS)
"""Batches gain next to nothing, as in a compute-bound model on one core."""
LARGE, MEDIUM = BatchCost(3.5 * MS, 0.45 * MS), BatchCost(5.0 * MS, 1.5 * MS)
"""Batches of 32 and of 16 rows pay."""
CAPACITY = 8e9 / COST.batch_ns(8)
LIMIT_NS = 62 * MS
SECONDS = 20.0


def scenario(arrivals_ns: npt.NDArray[np.int64], cost: BatchCost = COST, **more: object) -> Scenario:
    known = {rows: cost.batch_ns(rows) for rows in (1, 2, 4, 8)}
    usual = Scenario(
        arrivals_ns=arrivals_ns,
        service=noisy(cost, 1, sigma=0.05),
        known=known,
        timeout_ns=500 * MS,
        limit_ns=LIMIT_NS,
        max_rows=8,
        loop_ns=60_000.0,
    )
    return replace(usual, **more)  # type: ignore[arg-type]


def within(outcome: SimulatedOutcomes, limit_ns: float = LIMIT_NS) -> int:
    return int((np.nan_to_num(outcome.latency_ns, nan=np.inf) <= limit_ns).sum())


def test_in_bursts_two_thirds_meet_the_slo_where_one_third_did_and_nobody_is_refused() -> None:
    arrivals = bursts_ns(0.8 * CAPACITY, SECONDS, 1)
    slo, deadline = simulate(scenario(arrivals)), simulate(scenario(arrivals, limit_ns=0))
    assert within(slo) >= 0.66 * len(arrivals)
    assert within(deadline) <= 0.4 * len(arrivals)
    assert not slo.shed.any()
    assert slo.in_time.all()


def test_in_bursts_as_many_meet_the_slo_that_is_counted_from_before_they_were_seen() -> None:
    """A millisecond and a half pass on the way: answers that end a batch at the limit would all be late by as much."""
    sent = bursts_ns(0.8 * CAPACITY, SECONDS, 1)
    away_ns = np.random.default_rng(1).exponential(1.5 * MS, sent.size)
    order = np.argsort(sent + away_ns)
    seen = simulate(scenario((sent + away_ns)[order].astype(np.int64)))
    latency_ns = np.nan_to_num(seen.latency_ns, nan=np.inf) + away_ns[order]
    assert (latency_ns <= LIMIT_NS).sum() >= 0.68 * len(sent)


def test_batches_are_to_end_a_little_before_the_limit_but_where_that_helps_nobody() -> None:
    scheduler: Scheduler[QueueEntry] = Scheduler(
        max_rows=8, max_queue_rows=100, target=LatencyTarget(50 * MS, 500 * MS)
    )
    assert scheduler.target_ns(0, 500 * MS) == 47 * MS
    assert scheduler.target_ns(0, 90 * MS) == 50 * MS, "late for it, there would be no time for another batch"
    assert scheduler.overload is not None
    scheduler.overload.stands = True
    assert scheduler.target_ns(0, 500 * MS) == 50 * MS, "admission left time for full batches, not for cut ones"
    slow: Scheduler[QueueEntry] = Scheduler(max_rows=8, max_queue_rows=100, target=LatencyTarget(1000 * MS, 5000 * MS))
    assert slow.target_ns(0, 5000 * MS) == 996 * MS
    quick: Scheduler[QueueEntry] = Scheduler(max_rows=8, max_queue_rows=100, target=LatencyTarget(5 * MS, 500 * MS))
    assert quick.target_ns(0, 500 * MS) == 5 * MS


def test_beyond_the_capacity_batches_that_gain_stay_full() -> None:
    cost = BatchCost(2.0 * MS, 1.0 * MS)
    arrivals = offsets_ns(steady(2 * 8e9 / cost.batch_ns(8), 10.0), 1)
    outcome = simulate(scenario(arrivals, cost, limit_ns=40 * MS))
    assert outcome.mean_rows >= 7.5
    assert within(outcome, 40 * MS) >= 0.44 * len(arrivals)


def test_a_deadline_just_behind_the_slo_is_kept() -> None:
    """Nobody who was let in is late because a batch size was tried out, or because he made way."""
    arrivals = offsets_ns(steady(1.3 * CAPACITY, 10.0), 1)
    assert simulate(scenario(arrivals, timeout_ns=64 * MS)).broken <= 0.002


@pytest.mark.parametrize(("arrived_ms", "first"), [(0, "sure"), (50, "expected")])
def test_who_is_in_time_only_if_all_goes_well_makes_way_unless_he_came_so_late(arrived_ms: int, first: str) -> None:
    cost = BatchCost(0.0, 5.0 * MS, late=1.2)
    scheduler: Scheduler[QueueEntry] = Scheduler(
        max_rows=1, max_queue_rows=100, target=LatencyTarget(60 * MS, 500 * MS)
    )
    expected = QueueEntry(1, 500 * MS, arrived_ns=arrived_ms * MS, target_ns=int(60.5 * MS))
    scheduler.offer(expected)
    scheduler.offer(sure := QueueEntry(1, 500 * MS, arrived_ns=40 * MS, target_ns=90 * MS))
    [[ran]] = scheduler.plan(55 * MS, 1, cost).batches
    assert ran is (sure if first == "sure" else expected)
    [[next_ran]] = scheduler.plan(61 * MS, 1, cost).batches
    assert {ran, next_ran} == {sure, expected}


def test_below_the_capacity_the_percentile_is_no_worse() -> None:
    arrivals = offsets_ns(steady(0.85 * CAPACITY, SECONDS), 3)
    slo, deadline = simulate(scenario(arrivals)), simulate(scenario(arrivals, limit_ns=0))
    assert within(slo) >= within(deadline)
    assert not slo.shed.any()
    assert slo.in_time.all()


@pytest.mark.parametrize(
    ("cost", "rows", "limit_ms", "load"),
    [
        (COST, 8, 62, 1.5),
        (COST, 8, 62, 3.0),
        (COST, 8, 62, 10.0),
        (LARGE, 32, 40, 1.5),
        pytest.param(LARGE, 32, 40, 3.0, marks=pytest.mark.whole),
        pytest.param(LARGE, 32, 40, 10.0, marks=pytest.mark.whole),
        (MEDIUM, 16, 60, 3.0),
        pytest.param(MEDIUM, 16, 60, 1.5, marks=pytest.mark.whole),
        pytest.param(MEDIUM, 16, 60, 10.0, marks=pytest.mark.whole),
    ],
)
def test_far_beyond_the_capacity_it_is_used_up_and_what_is_accepted_meets_the_slo(
    cost: BatchCost, rows: int, limit_ms: int, load: float
) -> None:
    capacity = rows * 1e9 / cost.batch_ns(rows)
    arrivals = offsets_ns(steady(load * capacity, SECONDS), 2)
    known = {1 << power: cost.batch_ns(1 << power) for power in range(rows.bit_length())}
    outcome = simulate(scenario(arrivals, cost, loop_ns=20_000.0, max_rows=rows, limit_ns=limit_ms * MS, known=known))
    later = arrivals > 2e9  # once it was seen that the backlog stands, and it was worked off
    met = np.nan_to_num(outcome.latency_ns, nan=np.inf) <= limit_ms * MS
    assert (met & later).sum() >= 0.94 * capacity * (SECONDS - 2)
    assert (met | outcome.shed)[later].mean() >= 0.995
    assert outcome.broken <= 0.001


@pytest.mark.parametrize("load", [1.5, 3.0])
@pytest.mark.parametrize(
    ("cost", "rows", "limit_ms", "timeout_ms"), [(COST, 8, 62, 70), (BatchCost(0.3 * MS, 11.7 * MS), 32, 449, 500)]
)
def test_a_backlog_is_seen_by_those_who_would_miss_a_deadline_that_is_close_to_the_slo(
    load: float, cost: BatchCost, rows: int, limit_ms: int, timeout_ms: int
) -> None:
    """Hardly anybody waits late then: who would, is refused for the deadline, and the others come after the SLO."""
    capacity = rows * 1e9 / cost.batch_ns(rows)
    arrivals = offsets_ns(steady(load * capacity, SECONDS), 2)
    known = {1 << power: cost.batch_ns(1 << power) for power in range(rows.bit_length())}
    limits = {"limit_ns": limit_ms * MS, "timeout_ns": timeout_ms * MS}
    outcome = simulate(scenario(arrivals, cost, max_rows=rows, known=known, **limits))
    later = arrivals > 4e9
    met = np.nan_to_num(outcome.latency_ns, nan=np.inf) <= limit_ms * MS
    assert (met & later).sum() >= 0.96 * capacity * (SECONDS - 4)
    assert (met | outcome.shed)[later].mean() >= 0.99


BUSY = Executors(usable=1, idle=0, left_ns=1e12, ends_ns=(1e12,))


@pytest.mark.parametrize(
    ("request_", "stands"),
    [
        (AdmissionRequest(1, 500 * MS), True),
        (AdmissionRequest(1, 2000 * MS), True),
        (AdmissionRequest(1, 20 * MS), False),  # a tight deadline of its own
        (AdmissionRequest(6, 500 * MS), False),  # the SLO is out of its reach
        (AdmissionRequest(1, 500 * MS, level=3), False),
    ],
)
def test_who_is_refused_for_the_deadline_is_a_sign_of_a_backlog(request_: AdmissionRequest, stands: bool) -> None:
    admission, overload = asking()
    for at_ms in range(0, 2000, 50):
        request = request_._replace(deadline_ns=request_.deadline_ns + at_ms * MS)
        refusal = admission.check(at_ms * MS, request, BUSY)
        assert refusal is not None
        assert refusal.why == "late"
        overload.see((at_ms + 25) * MS, late=False)
        if overload.stands:
            break
    assert overload.stands is stands


def asking(known: dict[int, float] | None = None) -> tuple[Admission[QueueEntry], OverloadDetector]:
    scheduler: Scheduler[QueueEntry] = Scheduler(
        max_rows=8, max_queue_rows=100, target=LatencyTarget(60 * MS, 500 * MS)
    )
    costs = LatencyLearner()
    costs.seed(known or {1: 10.0 * MS, 8: 80.0 * MS})
    assert scheduler.overload is not None
    return Admission(scheduler, costs), scheduler.overload


def test_who_is_refused_for_his_rate_is_no_load() -> None:
    scheduler: Scheduler[QueueEntry] = Scheduler(
        max_rows=8, max_queue_rows=100, target=LatencyTarget(60 * MS, 500 * MS)
    )
    admission = Admission(scheduler, LatencyLearner(), tenant_rows_per_s=1.0)
    overload = scheduler.overload
    assert overload is not None
    overload.stands = True
    came = []
    overload.arrived = lambda now_ns, rows, row_ns=0.0: came.append(now_ns)  # type: ignore[method-assign]
    for at_ms in range(5):
        admission.check(at_ms * MS, AdmissionRequest(1, (500 + at_ms) * MS, tenant="a"), Executors(1, 0, 0.0, (0.0,)))
    assert came == [0]


def test_refusals_with_a_break_between_them_are_no_sign() -> None:
    overload = OverloadDetector(LatencyTarget(449 * MS, 500 * MS))
    overload.missed(0, 500 * MS, 10.0 * MS)
    overload.see(1 * MS, late=False)
    overload.missed(900 * MS, 500 * MS, 10.0 * MS)  # no plan in between: a batch hung
    overload.see(901 * MS, late=False)
    assert not overload.stands


def test_refusals_are_a_sign_for_as_long_as_they_last() -> None:
    """Two that are refused within the limit, and nobody later, are no backlog, whatever time passes."""
    overload = OverloadDetector(LatencyTarget(449 * MS, 500 * MS))
    for at_ms in (0, 300):
        overload.missed(at_ms * MS, 500 * MS, 10.0 * MS)
        overload.see((at_ms + 1) * MS, late=False)
    for at_ms in range(310, 1500, 10):
        overload.see(at_ms * MS, late=False)
    assert not overload.stands


def test_bursts_that_a_deadline_close_to_the_slo_cannot_take_in_are_no_backlog() -> None:
    """A quarter of a second on and off: what a backlog refuses more than them would have been answered."""
    arrivals = bursts_ns(0.8 * CAPACITY, 30.0, 3)
    outcome = simulate(scenario(arrivals, timeout_ns=70 * MS))
    assert outcome.shed.mean() <= 0.26


@pytest.mark.parametrize("executors", [1, 2])
def test_below_the_capacity_a_deadline_close_to_the_slo_makes_no_backlog(executors: int) -> None:
    cost = BatchCost(0.3 * MS, 11.7 * MS)
    arrivals = offsets_ns(steady(0.85 * executors * 32e9 / cost.batch_ns(32), SECONDS), 4)
    known = {1 << power: cost.batch_ns(1 << power) for power in range(6)}
    limits = {"limit_ns": 449 * MS, "timeout_ns": 500 * MS, "executors": executors}
    outcome = simulate(scenario(arrivals, cost, max_rows=32, known=known, **limits))
    assert within(outcome, 449 * MS) >= 0.99 * len(arrivals)


def test_once_the_load_is_gone_nobody_is_refused() -> None:
    heavy, light = offsets_ns(steady(3 * CAPACITY, 3.0), 1), offsets_ns(steady(0.7 * CAPACITY, 10.0), 2)
    outcome = simulate(scenario(np.concatenate([heavy, light + int(4e9)])))
    assert outcome.shed[: len(heavy)].any()
    assert not outcome.shed[len(heavy) :].any()


def test_an_slo_that_no_request_can_meet_changes_nothing() -> None:
    arrivals = offsets_ns(steady(2 * CAPACITY, SECONDS), 1)
    hopeless, deadline = simulate(scenario(arrivals, limit_ns=4 * MS)), simulate(scenario(arrivals, limit_ns=0))
    assert hopeless.in_time.sum() == pytest.approx(deadline.in_time.sum(), rel=0.02)
    assert hopeless.broken <= 0.001


def test_late_requests_share_the_batches_of_those_on_time_where_that_costs_little() -> None:
    """A batch of one takes almost as long as one of eight: a burst's rest must not go one by one, nor never."""
    cost = BatchCost(20.0 * MS, 0.1 * MS)
    arrivals = np.sort(np.concatenate([np.zeros(40, dtype=np.int64), np.arange(1, 40, dtype=np.int64) * 15 * MS]))
    outcome = simulate(scenario(arrivals, cost))
    assert outcome.in_time.all()
    assert float(np.nanmax(outcome.latency_ns)) <= 200 * MS, "they would wait for 400 ms, and then drive others out"


def test_a_target_follows_the_clients_own_deadline() -> None:
    target = LatencyTarget(60, 500)
    assert target.of(1000, 1500) == 1060
    assert target.of(1000, 1030) == 1030, "it is never after the deadline"
    assert target.of(1000, 1100) == 1060
    assert target.of(1000, 2500) == 2060, "who can wait a second longer is in time a second later"


def test_a_backlog_stands_once_it_outlasts_bursts_and_until_less_comes_than_can_be_answered() -> None:
    overload = OverloadDetector(LatencyTarget(limit_ns=10, timeout_ns=1000))
    for now in (0, 150, 200):
        overload.see(now, late=True)
    assert not overload.stands
    overload.see(201, late=False)
    overload.see(300, late=True)
    overload.see(500, late=True)
    assert not overload.stands, "it counts from when some were late without a break"
    overload.see(501, late=True)
    assert overload.stands
    overload.see(502, late=False)
    assert overload.stands, "else it would be let in again what has just been worked off"
    overload.rest()
    assert overload.stands, "a server that refuses what it has no time for has moments of rest"
    for now in range(511, 912, 10):
        overload.arrived(now, rows=1, row_ns=10)
        assert overload.stands, "as much comes as can be answered"
    assert overload.gap_ns == pytest.approx(10, abs=0.5)
    for now in range(922, 1113, 11):
        assert overload.stands, "it is judged by a while"
        overload.arrived(now, rows=1, row_ns=10)
    overload.arrived(1124, rows=1, row_ns=10)
    assert not overload.stands
    overload.see(1125, late=True)
    assert not overload.stands


def test_a_backlog_that_nobody_comes_to_is_not_told_of_for_ever() -> None:
    overload = OverloadDetector(LatencyTarget(limit_ns=10, timeout_ns=1000))
    overload.see(0, late=True)
    overload.see(300, late=True)
    assert overload.is_seen(450)
    assert not overload.is_seen(501)
    overload.arrived(600, rows=1, row_ns=10)
    assert not overload.stands, "nor does who comes next have to make it end"


def test_a_late_request_is_not_made_to_miss_its_deadline_by_another_that_fills_up_the_batch() -> None:
    scheduler: Scheduler[QueueEntry] = Scheduler(
        max_rows=8, max_queue_rows=100, target=LatencyTarget(60 * MS, 500 * MS)
    )
    first = QueueEntry(1, 500 * MS, target_ns=200 * MS)
    tight, patient = QueueEntry(1, 31 * MS, priority=3, target_ns=1), QueueEntry(1, 400 * MS, priority=3, target_ns=1)
    for entry in (first, tight, patient):
        scheduler.offer(entry)
    assert scheduler.plan(0, 1, BatchCost(20.0 * MS, 5.0 * MS)).batches == [[first, tight]], "three take 35 ms"


@pytest.mark.parametrize(("on_time", "late"), [(8, 3), (5, 6)])
def test_a_preferred_size_counts_what_is_late_and_is_not_exceeded_by_it(on_time: int, late: int) -> None:
    window = Fixed(50 * MS, preferred=(8,))
    scheduler: Scheduler[QueueEntry] = Scheduler(
        max_rows=16, max_queue_rows=100, window=window, target=LatencyTarget(200 * MS, 500 * MS)
    )
    for number in range(on_time + late):
        target_ns = 200 * MS if number < on_time else 1
        scheduler.offer(QueueEntry(1, 500 * MS, target_ns=target_ns))
    [batch] = scheduler.plan(0, 1, BatchCost(20.0 * MS, 0.1 * MS)).batches
    assert len(batch) == 8
    assert sum(entry.late for entry in batch) == 8 - on_time


def test_by_a_fixed_rule_company_is_waited_for_although_the_slo_is_out_of_reach() -> None:
    scheduler: Scheduler[QueueEntry] = Scheduler(
        max_rows=8, max_queue_rows=100, window=Fixed(5 * MS), target=LatencyTarget(15 * MS, 500 * MS)
    )
    cost = BatchCost(20.0 * MS, 0.1 * MS)
    one, two = [QueueEntry(1, at + 500 * MS, arrived_ns=at, target_ns=at + 15 * MS) for at in (0, 4 * MS)]
    scheduler.offer(one)
    assert scheduler.plan(0, 1, cost) == ([], [], 5 * MS)
    scheduler.offer(two)
    assert scheduler.plan(4 * MS, 1, cost) == ([], [], 5 * MS)
    assert scheduler.plan(5 * MS, 1, cost).batches == [[one, two]]


def test_who_is_on_time_is_not_held_back_for_company_while_late_ones_run() -> None:
    scheduler: Scheduler[QueueEntry] = Scheduler(
        max_rows=8, max_queue_rows=100, window=Fixed(50 * MS), target=LatencyTarget(100 * MS, 500 * MS)
    )
    cost = BatchCost(1.0 * MS, 20.0 * MS)
    late = QueueEntry(1, 500 * MS, target_ns=100 * MS)
    first, new = [QueueEntry(1, at + 500 * MS, arrived_ns=at, target_ns=at + 100 * MS) for at in (110 * MS, 150 * MS)]
    scheduler.offer(late)
    scheduler.offer(first)
    assert scheduler.plan(110 * MS, 1, cost).batches == [[first]]
    scheduler.offer(new)
    assert scheduler.plan(150 * MS, 1, cost).batches == [[new]], "the oldest has waited for longer than the delay"


@pytest.mark.parametrize("hiccup_ms", [0.0, 100.0, 1000.0])
def test_late_requests_wait_for_the_batch_that_is_next_not_for_the_largest_there_could_be(hiccup_ms: float) -> None:
    cost = BatchCost(0.0, 6.5 * MS, hiccup_ns=hiccup_ms * MS)
    scheduler: Scheduler[QueueEntry] = Scheduler(
        max_rows=32, max_queue_rows=100, target=LatencyTarget(260 * MS, 500 * MS)
    )
    scheduler.offer(QueueEntry(1, 500 * MS, "late", target_ns=256 * MS))
    for _ in range(16):
        scheduler.offer(QueueEntry(1, 800 * MS, arrived_ns=60 * MS, target_ns=320 * MS))
    [batch] = scheduler.plan(300 * MS, 1, cost).batches
    assert [entry.target_ns // MS for entry in batch] == [320] * 3, "all that are in time; with 32 rows none would be"


class Lengths:
    """Rows of kind 2 take twenty times as long as those of kind 1."""

    def of(self, kind: int) -> BatchCost:
        return BatchCost(1.0 * MS, 20.0 * MS if kind == 2 else 0.0, hiccup_ns=5.0 * MS)


def test_long_late_requests_behind_a_short_one_run_before_their_deadline() -> None:
    scheduler: Scheduler[QueueEntry] = Scheduler(
        max_rows=4, max_queue_rows=100, target=LatencyTarget(60 * MS, 500 * MS)
    )
    scheduler.offer(QueueEntry(1, 400 * MS, "short", kind=1, target_ns=1))
    for _ in range(16):
        scheduler.offer(QueueEntry(1, 410 * MS, "long", kind=2, target_ns=1))
    given_up, now_ns = 0, 0
    while now_ns < 500 * MS:
        scheduler.offer(QueueEntry(1, now_ns + 500 * MS, "on time", kind=1, target_ns=now_ns + 60 * MS))
        plan = scheduler.plan(now_ns, 1, Lengths())
        given_up += len(plan.expired)
        [batch] = plan.batches
        now_ns += int(Lengths().of(batch[0].kind).batch_ns(len(batch))) + 1
    assert not given_up


@pytest.mark.parametrize(
    "more", [{"rows": (5,)}, {"rows": (5,), "merge": False}, {"max_rows": 32, "window": lambda: Fixed(2 * MS, (5,))}]
)
def test_batches_that_cannot_be_filled_up_do_not_end_a_backlog(more: dict[str, object]) -> None:
    """A batch of five does no more than five, whatever could be in one."""
    cost = BatchCost(5.0 * MS, 1.5 * MS)
    capacity = 5e9 / cost.batch_ns(5) / more.get("rows", (1,))[0]  # type: ignore[index]
    arrivals = offsets_ns(steady(1.1 * capacity, 8.0), 2)
    outcome = simulate(scenario(arrivals, cost, **more))
    later = arrivals > 2e9
    met = np.nan_to_num(outcome.latency_ns, nan=np.inf) <= LIMIT_NS
    assert (met & later).sum() >= 0.94 * capacity * 6.0
    assert (met | outcome.shed)[later].mean() >= 0.99


@pytest.mark.parametrize(("every_ms", "stands"), [(5, True), (7, False)])
def test_how_long_those_are_that_come_is_told_by_those_that_wait(every_ms: int, stands: bool) -> None:
    """At the door each counts as one of the shortest, which take a millisecond; of those that wait half take eleven."""
    scheduler: Scheduler[QueueEntry] = Scheduler(
        max_rows=8, max_queue_rows=100, target=LatencyTarget(60 * MS, 500 * MS)
    )
    overload, costs = scheduler.overload, LatencyLearner()
    assert overload is not None
    for kind, row_ms in ((4, 1.0), (48, 11.0)):
        costs.seed({rows: rows * row_ms * MS for rows in (1, 2, 4, 8)}, kind)
        scheduler.offer(QueueEntry(1, 100_000 * MS, kind, kind=kind))
    overload.see(0, late=True)
    overload.see(501 * MS, late=True)
    admission, busy = Admission(scheduler, costs), Executors(1, 0, 0.0)
    for now_ns in range(501 * MS, 2501 * MS, every_ms * MS):
        admission.check(now_ns, AdmissionRequest(1, now_ns + 500 * MS, kind=4), busy)
    assert overload.stands == stands


def crowded(deadlines_ms: tuple[int, ...]) -> tuple[Scheduler[QueueEntry], Admission[QueueEntry], OverloadDetector]:
    """A backlog stands at 600 ms, batches of 8 take 16 ms, and one runs; the limit is 60 ms, the usual time-out 500."""
    scheduler: Scheduler[QueueEntry] = Scheduler(
        max_rows=8, max_queue_rows=10_000, target=LatencyTarget(60 * MS, 500 * MS)
    )
    overload, costs = scheduler.overload, LatencyLearner()
    assert overload is not None
    costs.seed({rows: (8.0 + rows) * MS for rows in (1, 2, 4, 8)})
    overload.see(0, late=True)
    overload.see(600 * MS, late=True)
    for deadline_ms in deadlines_ms:
        deadline_ns = (600 + deadline_ms) * MS
        scheduler.offer(QueueEntry(1, deadline_ns, target_ns=scheduler.target_ns(600 * MS, deadline_ns)))
    return scheduler, Admission(scheduler, costs), overload


def asked(admission: Admission[QueueEntry], deadline_ms: int) -> bool:
    request = AdmissionRequest(1, (600 + deadline_ms) * MS)
    return admission.check(600 * MS, request, Executors(1, 0, 8.0 * MS, [8.0 * MS])) is None


def test_those_who_can_wait_for_longer_keep_nobody_out_who_cannot() -> None:
    _, admission, _ = crowded((5_000,) * 100)
    assert asked(admission, 500)
    assert asked(admission, 5_000)
    _, admission, _ = crowded((5_000,) * 100 + (500,) * 16)
    assert not asked(admission, 500), "behind two batches of its own kind"
    assert not asked(admission, 100), "nor does a short deadline go first"


def test_nobody_is_refused_unread_for_a_deadline_that_is_not_the_usual_one() -> None:
    for waiting, deadline_ms, full in (
        ((500,) * 16, 500, True),
        ((500,) * 16, 56, False),
        ((5_000,) * 3000, 5_000, False),
    ):
        scheduler, admission, overload = crowded(waiting)
        assert not asked(admission, deadline_ms)
        assert overload.is_full(600 * MS, scheduler.waiting.rows) is full


def test_batches_that_differ_by_a_fifth_in_time_are_not_cut_short() -> None:
    """Who boards leaves those who boarded before time for a batch that takes long: the scheduler asks for it too."""
    cost = BatchCost(5.0 * MS, 1.5 * MS)
    capacity, known = 16e9 / cost.batch_ns(16), {1 << power: cost.batch_ns(1 << power) for power in range(5)}
    more = {"max_rows": 16, "limit_ns": 60 * MS, "known": known, "loop_ns": 5_000.0}
    good, told = [], []
    for seed in range(1, 5):
        arrivals = offsets_ns(steady(2.0 * capacity, 6.0), seed)
        outcome = simulate(scenario(arrivals, cost, service=noisy(cost, seed, sigma=0.2), **more))
        later = arrivals > 2e9
        met = np.nan_to_num(outcome.latency_ns, nan=np.inf) <= 60 * MS
        good.append((met & later).sum() / (capacity * 4.0))
        told.append((met | outcome.shed)[later].mean())
    assert np.mean(good) >= 0.85, good
    assert np.mean(told) >= 0.985, told


def test_batches_grow_while_nobody_is_idle_only_where_those_in_them_have_time() -> None:
    """Large ones are two percent cheaper by the row: after a thousand rows without a rest they are worth it."""
    cost = BatchCost(0.0, 6.8 * MS, points=(6.8 * MS, 13.2 * MS, 25.6 * MS, 50.4 * MS, 99.5 * MS), shaped=True)

    def rows(slack_ms: int, busy: int) -> int:
        scheduler: Scheduler[QueueEntry] = Scheduler(max_rows=16, max_queue_rows=4096)
        now_ns = 0
        while True:
            while scheduler.waiting.rows < 16:
                scheduler.offer(QueueEntry(1, now_ns + slack_ms * MS, "x"))
            [batch] = scheduler.plan(now_ns, 1, cost).batches
            if busy <= 0:
                return len(batch)
            busy -= len(batch)
            now_ns += int(cost.batch_ns(len(batch)))

    assert rows(2_000, 0) <= 8
    assert rows(2_000, 5_000) == 16
    assert rows(150, 5_000) <= 8, "a batch of sixteen takes 100 ms"
