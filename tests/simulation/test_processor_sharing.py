"""Batches that share cores with the event loop: nothing is lost, and nothing is done faster than it can be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.scheduler.simulation import ProcessorSharing, Scenario, SimulatedOutcomes, simulate

MS = 1_000_000


def play(**settings: object) -> SimulatedOutcomes:
    given: dict[str, object] = {"service": lambda rows: 2.0 * MS, "known": {1: 2.0 * MS}, "merge": False, **settings}
    return simulate(Scenario(**given))  # type: ignore[arg-type]


def test_a_lone_request_takes_the_loop_and_its_batch() -> None:
    outcome = play(arrivals_ns=np.arange(20) * 200 * MS, loop_ns=1.0 * MS)
    np.testing.assert_allclose(outcome.latency_ns / MS, 1.0 + 2.0)
    assert outcome.loop_ns == pytest.approx(20 * MS)
    assert outcome.busy_ns == pytest.approx(20 * 2 * MS)


def test_on_one_core_batches_wait_for_the_loop_and_for_each_other() -> None:
    pair = play(arrivals_ns=[0, 0], executors=2, loop_ns=0.0)
    np.testing.assert_allclose(pair.latency_ns / MS, 2.0)
    pair = play(arrivals_ns=[0, 0], executors=2, loop_ns=0.0, cores=1)
    np.testing.assert_allclose(pair.latency_ns / MS, 4.0)
    beside = play(arrivals_ns=[0, 1 * MS], loop_ns=1.0 * MS, cores=1)
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
