"""Features, hooks and executors in the simulation: what each does to latency and capacity."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.common.timings import Stage
from tailcut.load.arrivals import offsets_ns, steady
from tailcut.scheduler.simulation.processor_sharing import ProcessorSharing
from tailcut.scheduler.simulation.request_steps import (
    Kind,
    Overheads,
    Step,
    Steps,
    drawn,
    joined,
    measured_steps,
    nearness,
    plain_steps,
)
from tailcut.scheduler.simulation.simulator import HOOK_THREADS, Outcome, Scenario, simulate

MS = 1_000_000
MODEL = Step(Kind.MODEL, 1)
REPLY = Step(Kind.REPLY, 0)


def loop(ms: float) -> Step:
    return Step(Kind.LOOP, ms * MS)


def play(steps: Steps, rate: float = 1.0, seconds: float = 20.0, **more: object) -> Outcome:
    settings: dict[str, object] = {
        "arrivals_ns": offsets_ns(steady(rate, seconds), 1),
        "service": lambda rows: 2.0 * MS,
        "known": {1: 2.0 * MS},
        "requests": lambda _: steps,
        **more,
    }
    return simulate(Scenario(**settings))  # type: ignore[arg-type]


def test_a_lone_request_takes_the_sum_of_its_steps() -> None:
    steps = (
        loop(0.1), Step(Kind.WAIT, 3 * MS), Step(Kind.THREAD, 1.5 * MS), loop(0.2), MODEL, Step(Kind.WAIT, 0.1 * MS),
        Step(Kind.THREAD, 0.4 * MS), loop(0.3), Step(Kind.REPLY, 0.5 * MS), loop(50.0),
    )  # fmt: skip
    outcome = play(steps, arrivals_ns=np.arange(20) * 200 * MS)
    np.testing.assert_allclose(outcome.latency_ns / MS, 0.1 + 3 + 1.5 + 0.2 + 2 + 0.1 + 0.4 + 0.3 + 0.5)
    assert outcome.hook_ns == pytest.approx(20 * 1.9 * MS)
    assert outcome.loop_ns == pytest.approx(20 * 50.6 * MS), "what follows the reply is work as well"


def test_a_request_that_a_cache_answers_needs_no_executor() -> None:
    outcome = play((loop(0.1), REPLY), rate=500.0)
    assert outcome.batches == Counter()
    assert outcome.percentile_ms(0.5) < 0.2
    assert not outcome.shed.any()


def test_waits_for_features_hold_nobody_else_up() -> None:
    outcome = play((loop(0.1), Step(Kind.WAIT, 50 * MS), loop(0.1), REPLY), rate=1000.0, seconds=5.0)
    assert outcome.percentile_ms(0.5) < 51.0
    assert outcome.in_time.all()


@pytest.mark.parametrize(("wait", "capacity"), [(1.0, 200.0), (0.0, 25.0)], ids=["waiting", "computing"])
def test_threads_of_hooks_bear_what_they_can(wait: float, capacity: float) -> None:
    """40 ms a call: eight threads that wait bear 200 a second, one interpreter that computes 25."""
    steps = (loop(0.01), Step(Kind.THREAD, 40 * MS), loop(0.01), REPLY)
    below, above = (play(steps, rate=share * capacity, hook_wait=wait) for share in (0.8, 1.5))
    assert below.in_time.all()
    assert np.isnan(above.latency_ns).mean() == pytest.approx(1 / 3, abs=0.1), "their turn came after their deadline"
    assert HOOK_THREADS == 8


def test_a_hook_that_computes_keeps_the_event_loop_waiting_for_a_turn() -> None:
    """Cached requests meet a hook of 20 ms that computes a fifth of the time: up to 5 ms late, but not 20."""
    slow = (Step(Kind.THREAD, 20 * MS), REPLY)
    quick = (loop(0.05), REPLY)
    number = Counter[str]()

    def requests(_: int) -> Steps:
        number["all"] += 1
        return slow if number["all"] % 20 == 0 else quick

    outcome = play((), rate=200.0, requests=requests)
    late = outcome.latency_ns[np.arange(len(outcome.latency_ns)) % 20 != 19] / MS
    assert 3.0 < np.quantile(late, 0.99) <= 5.5
    assert np.median(late) < 0.1


def test_on_one_core_batches_wait_for_the_loop_and_for_each_other() -> None:
    pair = play(plain_steps(0, 1), arrivals_ns=[0, 0], executors=2, merge=False)
    np.testing.assert_allclose(pair.latency_ns / MS, 2.0)
    pair = play(plain_steps(0, 1), arrivals_ns=[0, 0], executors=2, merge=False, cores=1)
    np.testing.assert_allclose(pair.latency_ns / MS, 4.0)
    beside = play((MODEL, REPLY, loop(1.0)), arrivals_ns=[0, 1 * MS], requests=None, loop_ns=1.0 * MS, cores=1)
    assert beside.latency_ns[0] == pytest.approx((0.6 + 2.0 + 0.6 + 0.4) * MS)


@pytest.mark.parametrize("cores", [0.0, 1.0])
@pytest.mark.parametrize("days", [7, 7_300])
def test_after_a_long_gap_tasks_still_end(cores: float, days: int) -> None:
    sharing, now = ProcessorSharing(cores), days * 86_400e9
    for task in range(3):
        sharing.start(now + 0.3 * task, 0.0, 1e6 / 3, task)
    ended: list[int] = []
    for _ in range(20):
        ended += sharing.finished(now, 0.0)
        now = max(now, sharing.next_ns() or now)
    assert ended == [0, 1, 2]


@given(
    cores=st.integers(1, 4),
    tasks=st.lists(st.tuples(st.floats(0, 100), st.floats(0.01, 50)), min_size=1, max_size=12),
)
def test_shared_cores_do_all_the_work_and_no_more_than_they_can(cores: int, tasks: list[tuple[float, float]]) -> None:
    sharing = ProcessorSharing(cores)
    starts = sorted((at, work, number) for number, (at, work) in enumerate(tasks))
    ended: dict[int, float] = {}
    now = 0.0
    while starts or sharing.next_ns() is not None:
        upcoming = [starts[0][0]] if starts else []
        ending = sharing.next_ns()
        now = max(now, min([*upcoming, *([ending] if ending is not None else [])]))
        ended.update(dict.fromkeys(sharing.finished(now, 0.0), now))
        while starts and starts[0][0] <= now:
            _, work, number = starts.pop(0)
            sharing.start(now, 0.0, work, number)
    assert ended.keys() == set(range(len(tasks)))
    for number, (at, work) in enumerate(tasks):
        assert ended[number] >= at + work - 0.1
        if len(tasks) <= cores:
            assert ended[number] == pytest.approx(at + work, abs=0.1)
    total = sum(work for _, work in tasks)
    span = max(ended.values()) - min(at for at, _ in tasks)
    assert total <= span * cores + 0.1


@given(
    steps=st.lists(
        st.builds(Step, st.sampled_from([Kind.LOOP, Kind.WAIT, Kind.THREAD, Kind.MODEL]), st.integers(0, 5)), max_size=9
    )
)
def test_joining_steps_keeps_their_time(steps: list[Step]) -> None:
    found = joined(steps)
    for kind in (Kind.LOOP, Kind.WAIT, Kind.THREAD, Kind.MODEL):
        assert sum(one.amount for one in found if one.kind is kind) == sum(
            one.amount for one in steps if one.kind is kind
        )
    assert all(one.amount for one in found)
    assert not any(a.kind is b.kind is Kind.LOOP for a, b in pairwise(found))


def stages(**ms: list[float]) -> dict[Stage, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    return {Stage[name.upper()]: np.array(values) * MS for name, values in ms.items()}


def test_the_steps_of_a_measured_request_say_what_it_needs() -> None:
    """The first is answered by the entity cache, the second waits for features and runs the model."""
    overheads = Overheads(
        loop_ns=0.5 * MS, beside_ns=0.05 * MS, preprocess_threads=1.0, postprocess_threads=0.0, rows={4: 1.0},
        handover_ns=0.2 * MS,
    )  # fmt: skip
    took = stages(
        receive=[0.1, 0.1], entity_cache=[0.1, 0.1], features=[0.0, 5.0], preprocess=[0.0, 2.0], queue=[0.0, 0.3],
        infer=[0.0, 1.0], postprocess=[0.0, 0.1], encode=[0.1, 0.1],
    )  # fmt: skip
    cached, whole = measured_steps(took, np.array([0.4, 0.4]) * MS, overheads)
    on_loop = 0.3 + 0.05
    rest = 0.5 - on_loop
    each = [(one.kind, round(one.amount / MS if one.kind is not Kind.MODEL else one.amount, 6)) for one in whole]
    assert each == [
        (Kind.LOOP, round(0.2 + rest / 2, 6)),
        (Kind.WAIT, 5.0),
        (Kind.THREAD, 2.0),
        (Kind.MODEL, 4),
        (Kind.WAIT, 0.2),
        (Kind.LOOP, round(0.2 + rest / 2, 6)),
        (Kind.REPLY, round(0.4 - rest, 6)),
        (Kind.LOOP, 0.05),
    ]
    assert [one.kind for one in cached] == [Kind.LOOP, Kind.REPLY, Kind.LOOP]
    assert sum(one.amount for one in cached) == pytest.approx((0.3 + 0.4 + 0.05) * MS)


def test_between_two_measured_rates_requests_are_a_mixture_of_both() -> None:
    assert nearness([100.0, 400.0], 200.0) == pytest.approx([0.5, 0.5])
    assert nearness([100.0, 400.0], 10.0) == pytest.approx([1.0, 0.0])
    assert nearness([100.0, 400.0], 4000.0) == pytest.approx([0.0, 1.0])
    low, high = (loop(1.0),), (loop(2.0),)
    draw = drawn([[low], [high]], [0.25, 0.75], seed=1)
    found = Counter(draw(number) for number in range(4000))
    assert found[low] == pytest.approx(1000, rel=0.1)
    assert found[low] + found[high] == 4000


@given(rates=st.lists(st.floats(0.1, 1e5), min_size=2, max_size=2, unique=True), rate=st.floats(0, 1e6))
def test_shares_of_rates_are_shares(rates: list[float], rate: float) -> None:
    found = nearness(sorted(rates), rate)
    assert sum(found) == pytest.approx(1.0)
    assert min(found) >= 0.0
