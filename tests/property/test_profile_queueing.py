"""Requests through queues: against queueing theory, and laws that hold whatever the load."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailcut.common.statistics import percentile, rank
from tailcut.profiler.forecast.queueing import keeps_within, play
from tailcut.profiler.forecast.service_model import At, Phase, ServiceModel

_MS = 1e6


def poisson_ns(rate: float, count: int, seed: int = 0) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).exponential(1e9 / rate, count))


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_one_server_with_equal_work_waits_as_pollaczek_and_khinchine_say(load: float) -> None:
    """M/D/1: the mean wait is load / (2 (1 - load)) services; below the quantum turns are whole."""
    service_ns = 0.8 * _MS
    arrivals = poisson_ns(load / service_ns * 1e9, 40_000)
    found = play(ServiceModel(), arrivals, [[(At.PYTHON, service_ns)]] * len(arrivals))
    wait = (found.latency_ns - service_ns).mean() / service_ns
    assert wait == pytest.approx(load / (2 * (1 - load)), rel=0.1)
    assert found.busy_share == pytest.approx(load, rel=0.03)


def test_turns_share_the_core_where_work_is_long() -> None:
    """A short request does not wait for a long one to end: two of 1 and 100 ms at once."""
    jobs: list[list[Phase]] = [[(At.PYTHON, 100 * _MS)], [(At.PYTHON, 1 * _MS)]]
    found = play(ServiceModel(), np.array([0.0, 1.0]), jobs)
    assert found.latency_ns[1] == pytest.approx(2 * _MS, abs=10)
    assert found.latency_ns[0] == pytest.approx(101 * _MS, abs=10)


def test_waiting_takes_no_core() -> None:
    """A hundred wait at once for as long as one; a database with one core serves them in turn."""
    jobs: list[list[Phase]] = [[(At.NOWHERE, 5 * _MS)]] * 100
    assert play(ServiceModel(), np.zeros(100), jobs).latency_ns.max() == 5 * _MS
    queries: list[list[Phase]] = [[(At.DATABASE, 5 * _MS)]] * 100
    assert play(ServiceModel(), np.zeros(100), queries).latency_ns.max() == 5 * _MS
    assert play(ServiceModel(database=1), np.zeros(100), queries).latency_ns.max() == 500 * _MS


def test_a_database_beside_the_server_takes_the_core_that_is_free_first() -> None:
    """Its own, then the interpreter's; where it has none, it takes turns with what the interpreter does."""
    query: list[Phase] = [(At.DATABASE, 0.9 * _MS)]
    alone = play(ServiceModel(database=1), np.arange(2.0), [query] * 2)
    assert alone.latency_ns / _MS == pytest.approx([0.9, 1.8], abs=0.001)
    beside = play(ServiceModel(database=1, beside=True), np.arange(3.0), [query] * 3)
    assert beside.latency_ns / _MS == pytest.approx([0.9, 0.9, 1.8], abs=0.001)
    assert beside.busy_share == 0.0
    jobs = [[(At.PYTHON, 0.9 * _MS)], query]
    assert play(ServiceModel(beside=True), np.arange(2.0), jobs).latency_ns / _MS == pytest.approx(
        [0.9, 1.8], abs=0.001
    )
    assert play(ServiceModel(database=1, beside=True), np.arange(2.0), jobs).latency_ns.max() / _MS == pytest.approx(
        0.9
    )


def test_a_pool_of_threads_lets_so_many_in() -> None:
    """Two threads: the third request waits for one of the first two."""
    job: list[Phase] = [(At.TAKE, 0.0), (At.NOWHERE, 10 * _MS), (At.GIVE, 0.0)]
    found = play(ServiceModel(threads=2), np.zeros(3), [job] * 3)
    assert sorted(found.latency_ns / _MS) == [10, 10, 20]


def test_of_what_is_held_so_many_have_it_at_once() -> None:
    """Each of its own: one of the first, two of the second; who waits does so first come first served."""
    service = ServiceModel(held=(1, 2))
    for what, ends in ((1.0, [10, 20, 30]), (2.0, [10, 10, 20])):
        job: list[Phase] = [(At.TAKE, what), (At.NOWHERE, 10 * _MS), (At.GIVE, what)]
        assert (play(service, np.zeros(3), [job] * 3).latency_ns / _MS).tolist() == ends


def test_what_is_held_beside_a_request_keeps_others_waiting_but_not_itself() -> None:
    """Answered after 10 ms, it holds what it took for 10 more: the next one begins no earlier."""
    take, wait, give = (At.TAKE, 1.0), (At.NOWHERE, 10 * _MS), (At.GIVE, 1.0)
    job: list[Phase] = [take, wait, (At.ANSWERED, 0.0), wait, give]
    assert (play(ServiceModel(held=(1,)), np.zeros(3), [job] * 3).latency_ns / _MS).tolist() == [10, 30, 50]


def test_interpreters_and_executors_have_no_more_cores_than_there_are() -> None:
    """Two of each on two cores: what four would do at once takes twice as long."""
    jobs: list[list[Phase]] = [[(at, 0.9 * _MS)] for at in (At.PYTHON, At.PYTHON, At.MODEL, At.MODEL)]
    ends = {cores: play(ServiceModel(processes=2, executors=2, cores=cores), np.zeros(4), jobs).latency_ns.max() / _MS
            for cores in (0, 2, 4)}  # fmt: skip
    assert ends == pytest.approx({0: 0.9, 2: 1.8, 4: 0.9})


def test_a_long_batch_does_not_keep_the_cores() -> None:
    """Two batches of 20 ms on both cores: half a millisecond of Python has its turn after some milliseconds."""
    jobs: list[list[Phase]] = [[(At.MODEL, 20 * _MS)], [(At.MODEL, 20 * _MS)], [(At.PYTHON, 0.5 * _MS)]]
    found = play(ServiceModel(executors=2, cores=2), np.array([0.0, 0.0, 1.0 * _MS]), jobs)
    assert found.latency_ns[2] <= 4.5 * _MS
    assert found.latency_ns.max() == pytest.approx(20.5 * _MS)


@pytest.mark.parametrize("executors", [0, 1])
def test_batches_share_what_a_batch_takes_once(executors: int) -> None:
    """Ten at once: the first runs alone, the other nine as one batch, on an executor and on the interpreter alike."""
    service = ServiceModel(executors=executors, batch_share=0.5)
    found = play(service, np.arange(10.0), [[(At.MODEL, 0.5 * _MS)]] * 10)
    assert found.latency_ns.max() / _MS == pytest.approx(0.5 + 0.5 * (0.5 + 0.5 * 9), abs=0.001)
    alone = play(ServiceModel(executors=executors), np.arange(10.0), [[(At.MODEL, 0.5 * _MS)]] * 10)
    assert alone.latency_ns.max() / _MS == pytest.approx(5.0, abs=0.001)


_JOBS = st.lists(
    st.lists(
        st.tuples(st.sampled_from([At.NOWHERE, At.PYTHON, At.MODEL, At.DATABASE]), st.integers(1, 3_000_000)),
        max_size=5,
    ),
    min_size=1,
    max_size=15,
)


def _with_locks(job: list[tuple[At, int]], number: int) -> list[Phase]:
    """Nothing, a thread, a thread with a lock in it, or two locks of which one is in the other."""
    held = ((), (0.0,), (0.0, 1.0), (1.0, 2.0))[number % 4]
    return [*((At.TAKE, what) for what in held), *job, *((At.GIVE, what) for what in reversed(held))]


@given(
    _JOBS, st.integers(1, 3), st.integers(0, 2), st.integers(0, 3), st.integers(0, 2), st.booleans(), st.integers(0, 3),
    st.integers(0, 2),
)  # fmt: skip
@settings(deadline=None)
def test_every_request_ends_and_none_before_its_work_is_done(
    jobs: list[list[tuple[At, int]]],
    processes: int,
    executors: int,
    cores: int,
    database: int,
    beside: bool,
    threads: int,
    gap: int,
) -> None:
    """Whatever there is of cores, executors and threads; more of them never take longer in all."""
    laid = [_with_locks(job, number) for number, job in enumerate(jobs)]
    arrivals = np.arange(len(jobs), dtype=np.float64) * (gap * 700_000.0)
    service = ServiceModel(
        processes=processes, executors=executors, cores=cores, threads=threads, database=database, beside=beside,
        held=(1, 2),
    )  # fmt: skip
    found = play(service, arrivals, laid)
    work = np.array([sum(length for _, length in job) for job in jobs], dtype=float)
    assert (found.latency_ns >= work - 1).all()
    free = play(ServiceModel(processes=100, executors=100, held=(100, 100)), arrivals, laid)
    assert free.latency_ns == pytest.approx(work, abs=1)
    assert found.latency_ns.max() <= arrivals[-1] + work.sum() + 1


@given(
    load=st.floats(0.1, 3.0),
    limit_ms=st.floats(0.1, 50.0),
    share=st.sampled_from([0.5, 0.95, 0.99]),
    count=st.integers(1, 200),
)
@settings(max_examples=100, deadline=None)
def test_a_limit_is_kept_as_the_percentile_of_all_says(load: float, limit_ms: float, share: float, count: int) -> None:
    """It may end before all are answered, and still says what all of them would."""
    arrivals = poisson_ns(load * 500.0, count, seed=count)
    jobs = [[(At.PYTHON, 2 * _MS)], [(At.PYTHON, 1 * _MS), (At.NOWHERE, 3 * _MS)]] * count
    whole = percentile(play(ServiceModel(), arrivals, jobs[:count]).latency_ns, share)
    late = count - 1 - rank(count, share)
    found = keeps_within(ServiceModel(), arrivals, jobs[:count], limit_ns=limit_ms * _MS, late=late)
    assert found == (whole <= limit_ms * _MS)
