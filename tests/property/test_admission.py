"""Admission refuses what cannot be in time, keeps its limits, and is fair between tenants."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailcut.scheduler.admission import Admission, AdmissionRequest, Executors
from tailcut.scheduler.batching_delay import Fixed
from tailcut.scheduler.cost import LatencyLearner, kind_of
from tailcut.scheduler.request_queue import DEFAULT_LEVEL
from tailcut.scheduler.scheduler import QueueEntry, Scheduler
from tailcut.scheduler.simulation import Scenario, simulate

MS = 1_000_000
BUSY = Executors(1, 0, 0.0)


def made(
    max_queue_rows: int = 100, max_queue_bytes: int = 1 << 40, **limits: float
) -> tuple[Scheduler[QueueEntry], Admission[QueueEntry]]:
    scheduler: Scheduler[QueueEntry] = Scheduler(
        max_rows=8, max_queue_rows=max_queue_rows, max_queue_bytes=max_queue_bytes
    )
    costs = LatencyLearner()
    costs.seed({1: 10.0 * MS, 8: 80.0 * MS})
    for _ in range(20):
        costs.observe(8, 80.0 * MS)
    return scheduler, Admission(scheduler, costs, **limits)


OFFERS = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 2000), st.integers(0, 300)), max_size=60)


@given(OFFERS)
def test_rows_and_bytes_that_wait_never_exceed_their_limits(offers: list[tuple[int, int, int]]) -> None:
    scheduler, admission = made(max_queue_rows=40, max_queue_bytes=3000)
    for rows, size_bytes, left_ms in offers:
        request = AdmissionRequest(rows, 10**12 + left_ms * MS, size_bytes=size_bytes)
        refusal = admission.check(10**12, request, BUSY)
        accepted = (
            scheduler.offer(QueueEntry(rows, request.deadline_ns, size_bytes=size_bytes)) if refusal is None else False
        )
        assert accepted is (refusal is None)
        assert scheduler.waiting.rows <= 40
        assert scheduler.waiting.size_bytes <= 3000
        if refusal is not None:
            assert refusal.retry_ns > 0


def test_what_could_never_wait_is_too_large_and_not_shed() -> None:
    _, admission = made(max_queue_rows=10)
    refusal = admission.check(0, AdmissionRequest(11, 10**12), BUSY)
    assert refusal is not None
    assert (refusal.why, refusal.never) == ("rows", True)


@given(st.integers(1, 2000))
def test_who_is_let_in_is_expected_in_time(left_ms: int) -> None:
    scheduler, admission = made()
    deadline_ns = 10**12 + left_ms * MS
    while len(scheduler.waiting.lanes) == 0 or scheduler.waiting.rows < 90:
        if admission.check(10**12, AdmissionRequest(1, deadline_ns), BUSY) is not None:
            break
        scheduler.offer(QueueEntry(1, deadline_ns))
    assert scheduler.waiting.rows * 10 <= left_ms or scheduler.waiting.rows == 0


def test_a_hasty_request_is_refused_where_it_would_make_a_patient_one_late() -> None:
    scheduler, admission = made()
    for _ in range(16):
        scheduler.offer(QueueEntry(1, 250 * MS))
    refusal = admission.check(0, AdmissionRequest(8, 100 * MS), BUSY)
    assert refusal is not None
    assert refusal.why in {"crowds", "late"}
    assert admission.check(0, AdmissionRequest(1, 900 * MS), BUSY) is None


def test_a_higher_priority_is_let_in_where_others_are_refused() -> None:
    scheduler, admission = made()
    for _ in range(40):
        scheduler.offer(QueueEntry(1, 290 * MS))
    assert admission.check(0, AdmissionRequest(1, 300 * MS), BUSY) is not None
    assert admission.check(0, AdmissionRequest(1, 300 * MS, level=1), BUSY) is None
    assert admission.check(0, AdmissionRequest(1, 300 * MS, level=DEFAULT_LEVEL + 1), BUSY) is not None


def test_a_tenant_holds_no_more_than_its_share_of_the_queue() -> None:
    scheduler, admission = made(max_queue_rows=20, tenant_share=0.5)
    for _ in range(10):
        assert admission.check(0, AdmissionRequest(1, 10**12, tenant="a"), BUSY) is None
        scheduler.offer(QueueEntry(1, 10**12, tenant="a"))
    refusal = admission.check(0, AdmissionRequest(1, 10**12, tenant="a"), BUSY)
    assert refusal is not None
    assert refusal.why == "tenant"
    assert admission.check(0, AdmissionRequest(1, 10**12, tenant="b"), BUSY) is None


def test_a_tenants_rate_is_kept_and_retry_after_says_when() -> None:
    _, admission = made(tenant_rows_per_s=10.0)
    free = Executors(1, 1, 0.0)
    assert all(admission.check(0, AdmissionRequest(1, 10**12, tenant="a"), free) is None for _ in range(10))
    refusal = admission.check(0, AdmissionRequest(1, 10**12, tenant="a"), free)
    assert refusal is not None
    assert refusal.why == "rate"
    assert refusal.retry_ns == 10**8
    assert admission.check(0, AdmissionRequest(1, 10**12, tenant="b"), free) is None
    assert admission.check(int(refusal.retry_ns), AdmissionRequest(1, 10**12, tenant="a"), free) is None


def test_a_tenant_pays_only_for_what_is_let_in() -> None:
    scheduler, admission = made(tenant_rows_per_s=5.0)
    for _ in range(40):
        scheduler.offer(QueueEntry(1, 40 * MS))
    for _ in range(20):
        late = admission.check(0, AdmissionRequest(1, 50 * MS, tenant="a"), BUSY)
        assert late is not None
        assert late.why == "late"
    assert [admission.check(0, AdmissionRequest(1, 10**12, tenant="a"), BUSY) for _ in range(5)] == [None] * 5
    refusal = admission.check(0, AdmissionRequest(1, 10**12, tenant="a"), BUSY)
    assert refusal is not None
    assert refusal.why == "rate"


@given(st.lists(st.tuples(st.integers(0, 400), st.booleans(), st.integers(1, 3)), max_size=80))
def test_a_tenants_rate_is_what_it_is_given_and_no_less(asked: list[tuple[int, bool, int]]) -> None:
    """Second looks cost nothing, and take nothing of what comes back with time."""
    rate, free = 2.0, Executors(1, 1, 0.0)
    _, admission = made(tenant_rows_per_s=rate)
    now_ns, tokens, last_ns = 10**12, rate, 10**12
    for pause_ms, counted, rows in asked:
        now_ns += pause_ms * MS
        refusal = admission.check(now_ns, AdmissionRequest(rows, 2 * 10**12, tenant="a"), free, counted=counted)
        tokens, last_ns = min(tokens + rate * (now_ns - last_ns) / 1e9, rate), now_ns
        if counted:
            assert refusal is None
            continue
        short = min(rows, rate) - tokens
        assert abs(short) < 1e-6 or (refusal is not None) == (short > 0)
        if refusal is None:
            tokens -= rows


def test_under_overload_a_modest_tenant_gets_what_it_asks_for() -> None:
    """One tenant asks nine times as much as the other; together they ask for three times the capacity."""
    capacity = 32 / 0.069
    arrivals = [int(number * 1e9 / (3 * capacity)) for number in range(int(3 * capacity * 10))]
    outcome = simulate(
        Scenario(
            arrivals_ns=arrivals,
            service=lambda rows: (5.0 + 2.0 * rows) * MS,
            known={1: 7.0 * MS, 32: 69.0 * MS},
            tenants=("modest", *["greedy"] * 9),
        )
    )
    modest = outcome.in_time[200::10]
    assert modest.mean() >= 0.9
    assert outcome.broken <= 0.001
    assert outcome.in_time.sum() / 10 >= 0.9 * capacity


@given(st.integers(1, 10**6))
def test_length_classes_are_coarse_and_never_below_the_length(elements: int) -> None:
    kind = kind_of(elements)
    assert elements <= kind <= max(1.5 * elements, 2)


def test_a_batch_of_short_rows_is_not_predicted_by_long_ones() -> None:
    costs = LatencyLearner()
    for _ in range(30):
        costs.observe(8, 10.0 * MS, kind_of(16))
        costs.observe(8, 80.0 * MS, kind_of(128))
    assert abs(costs.of(kind_of(16)).batch_ns(8) - 10 * MS) < MS
    assert abs(costs.of(kind_of(128)).batch_ns(8) - 80 * MS) < 8 * MS
    assert costs.of(kind_of(64)).batch_ns(8) > 20 * MS, "an unknown class is guessed from the nearest one"


def test_a_slow_spell_is_noticed_within_twenty_batches_and_one_hiccup_is_not_believed() -> None:
    costs = LatencyLearner()
    costs.seed({1: 10.0 * MS, 8: 40.0 * MS})
    for _ in range(50):
        costs.observe(8, 40.0 * MS)
    costs.observe(8, 400.0 * MS)
    assert costs.cost.batch_ns(8) < 50 * MS
    for _ in range(20):
        costs.observe(8, 80.0 * MS)
    assert costs.cost.batch_ns(8) > 72 * MS
    assert costs.cost.batch_ns(1) > 14 * MS, "the other sizes follow"


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 30)), min_size=1, max_size=30), st.integers(1, 20))
def test_the_fixed_mode_is_its_definition(items: list[tuple[int, int]], now_ms: int) -> None:
    """A batch starts if it is full, or a preferred size is there, or the oldest has waited; never otherwise."""
    delay_ms, preferred, max_rows = 10, 6, 12
    window = Fixed(delay_ms * MS, (preferred,))
    scheduler: Scheduler[QueueEntry] = Scheduler(max_rows=max_rows, max_queue_rows=1000, window=window)
    for rows, age_ms in items:
        scheduler.offer(QueueEntry(rows, 10**15, arrived_ns=(100 + now_ms - age_ms) * MS))
    rows = sum(size for size, _ in items)
    oldest_ms = max(age for _, age in items)
    batches, expired, again_ns = scheduler.plan((100 + now_ms) * MS, 1)
    assert not expired
    if rows >= preferred or oldest_ms >= delay_ms:
        assert batches
        assert again_ns == 0
    else:
        assert not batches
        assert again_ns == (100 + now_ms - oldest_ms + delay_ms) * MS
