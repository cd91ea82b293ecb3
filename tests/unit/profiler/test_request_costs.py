"""Figures of one load: what the client saw and what server and kernel counted, per request and resource."""

from __future__ import annotations

import numpy as np
import pytest

from tailcut.load import Samples
from tailcut.profiler.deployments.request_costs import LoadFigures
from tailcut.profiler.deployments.server_counters import Counted, Counters
from tailcut.scheduler.simulation.request_steps import Kind

COUNT, MS = 200, 1_000_000
WORKER, HOOK, CHILD = 10, 11, 20


def samples(outside_ms: float = 0.5) -> Samples:
    """Half of the requests are answered by a cache; the others wait 5 ms for features, 4 ms for a hook and a batch."""
    at_ns = np.arange(COUNT, dtype=np.int64) * 10 * MS
    misses = np.arange(COUNT) % 2 == 1
    stages = {
        "receive": np.full(COUNT, 0.1),
        "features": np.where(misses, 5.0, np.nan),
        "preprocess": np.where(misses, 4.0, np.nan),
        "queue": np.where(misses, 0.2, np.nan),
        "infer": np.where(misses, 2.0, np.nan),
        "encode": np.full(COUNT, 0.1),
    }
    total = np.nansum(np.array(list(stages.values())), axis=0)
    return Samples(
        intended_ns=at_ns,
        sent_ns=at_ns,
        done_ns=at_ns + ((total + outside_ms) * MS).astype(np.int64),
        status=np.full(COUNT, 200, np.int16),
        cache=np.zeros(COUNT, np.int8),
        cache_names=("",),
        stages_ms={name: column.astype(np.float32) for name, column in {**stages, "total": total}.items()},
        measured_from_ns=0,
    )


def counted(executor: str = "process", waited_ms: float = 0.0) -> Counted:
    """100 batches of a row, 2 ms each, of which the executor's process waited so long for a core."""
    metrics = {
        f'tailcut_executors{{model="m",kind="{executor}"}}': 1.0,
        'tailcut_hook_thread_calls_total{model="m",hook="preprocess"}': 100.0,
        'tailcut_feature_cache_lookups_total{model="m",group="g",entity_type="id",result="hit"}': 30.0,
        'tailcut_feature_cache_lookups_total{model="m",group="g",entity_type="id",result="miss"}': 70.0,
        'tailcut_feature_source_calls_total{model="m",group="g",entity_type="id"}': 50.0,
        'tailcut_feature_source_seconds_total{model="m",group="g",entity_type="id"}': 0.25,
    }
    threads = {WORKER: {WORKER: (60 * MS, 0), HOOK: (100 * MS, 0), CHILD: (150 * MS, int(waited_ms * 100 * MS))}}
    before = Counters({}, {}, {WORKER: {}}, {WORKER: {WORKER}})
    return Counted(before, Counters(metrics, {1: (100.0, 200.0 * MS)}, threads, {WORKER: {WORKER, HOOK}}))


def stalled_samples(stalls: int) -> Samples:
    """So many requests met 300 ms in their preprocess, and the next thirty of each waited for the event loop."""
    found = samples()
    for place in range(41, 41 + 50 * stalls, 50):
        found.stages_ms["preprocess"][place] += 300.0
        found.done_ns[place] += 300 * MS
        found.done_ns[place + 1 : place + 30] = found.done_ns[place]
    return found


def figures(cores: float = 1.0, outside_ms: float = 0.5, took_s: float = 2.0, **more: float) -> LoadFigures:
    return LoadFigures(100.0, samples(outside_ms), counted(**more), took_s, cores)  # type: ignore[arg-type]


def test_what_a_load_shows_of_each_resource() -> None:
    costs = figures().costs()
    assert costs.loop_ms == pytest.approx(0.3), "60 ms of the loop's thread in 200 requests"
    assert costs.outside_ms == pytest.approx(0.5, rel=0.01)
    assert (costs.cached, costs.fetched) == (0.5, 0.5)
    assert costs.fetch_ms == pytest.approx(5.0)
    assert (costs.preprocess_ms, costs.preprocess_threads) == (pytest.approx(4.0), 1.0)
    assert (costs.postprocess_ms, costs.postprocess_threads) == (0.0, 0.0)
    assert costs.handover_ms == pytest.approx(0.2)
    assert (costs.batch_ms, costs.batches) == ({1: pytest.approx(2.0)}, {1: 100})
    (group,) = costs.groups
    assert (group.name, group.hits, group.call_ms) == ("g", pytest.approx(0.3), pytest.approx(5.0))


def test_a_stall_that_was_met_once_is_left_out_with_what_waited_behind_it_and_one_that_comes_again_is_not() -> None:
    once = LoadFigures(100.0, stalled_samples(1), counted(), 2.0, 1.0)
    assert once.costs().preprocess_ms == pytest.approx(4.0)
    replies = [step.amount / MS for steps in once.steps(0.0) for step in steps if step.kind is Kind.REPLY]
    assert len(replies) < COUNT
    assert max(replies) < 1.0
    again = LoadFigures(100.0, stalled_samples(3), counted(), 2.0, 1.0)
    assert again.costs().preprocess_ms == pytest.approx(4.0 + 900.0 / 100)


def test_what_batches_waited_for_a_core_is_no_part_of_their_time() -> None:
    assert figures(waited_ms=0.5).costs().batch_ms == {1: pytest.approx(1.5)}


def test_hooks_that_compute_a_quarter_of_their_time_wait_for_the_rest() -> None:
    assert figures().hook_wait == pytest.approx(0.75)


def test_the_busiest_resource_says_the_capacity() -> None:
    """310 ms of the one core in two seconds at 100 requests/s; with two cores it is the executor, 200 ms."""
    assert figures().capacity() == pytest.approx(100.0 / (0.31 / 2.0))
    assert figures(cores=4.0).capacity() == pytest.approx(100.0 / (0.2 / 2.0))


def test_the_steps_of_a_request_that_missed_everything() -> None:
    found = figures()
    cached, whole = found.steps(found.handover_ns)[:2]
    kinds = [one.kind for one in whole]
    assert kinds == [
        Kind.LOOP, Kind.WAIT, Kind.THREAD, Kind.MODEL, Kind.WAIT, Kind.LOOP, Kind.REPLY,
    ]  # fmt: skip
    assert [one.kind for one in cached] == [Kind.LOOP, Kind.REPLY]


@pytest.mark.parametrize(("low_ms", "expected_ms"), [(0.5, 0.5), (0.1, 0.1), (1.5, 0.5)])
def test_waits_before_the_server_reads_are_not_counted_twice(low_ms: float, expected_ms: float) -> None:
    """Network and client are those of the low load, or this one's own where they are shorter."""
    found = figures(outside_ms=0.5).steps(0.0, figures(outside_ms=low_ms))
    (reply,) = [one for one in found[0] if one.kind is Kind.REPLY]
    rest_ms = figures().costs().loop_ms - 0.2
    assert reply.amount / MS == pytest.approx(max(expected_ms - rest_ms, 0.0), abs=0.01)


def test_the_wait_for_a_busy_event_loop_is_no_part_of_network_and_client() -> None:
    """60 ms of 200 requests within 80 ms: three quarters busy, and so a request waits one and a half times 0.3 ms."""
    found = figures(outside_ms=0.8, took_s=0.08)
    (reply,) = [one for one in found.steps(0.0)[0] if one.kind is Kind.REPLY]
    assert reply.amount / MS == pytest.approx(0.8 - 1.5 * 0.3 - 0.1, abs=0.01)
