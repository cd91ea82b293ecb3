"""What a pool sees of batches that take longer than the time between two looks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.observe_kit import record

from tailcut.common.slo import LatencyObjective
from tailcut.common.timings import Stage, Timings
from tailcut.models.pool import PoolLoad
from tailcut.observe.recorder import Recorder
from tailcut.scheduler.pool_scaling import Scaler, ScalingLimits


def load() -> PoolLoad:
    dispatcher: Any = SimpleNamespace(admission=SimpleNamespace(queued_ns=lambda: 0.0))
    recorder: Any = SimpleNamespace(answered={})
    return PoolLoad(dispatcher, recorder)


def test_a_long_batch_is_never_more_work_than_its_executor_can_have_done() -> None:
    found = load()
    found.seen(10.0, 1, 0, 1.0)
    found.busy_ns += int(1e9)  # a batch of a second ended
    assert [found.seen(10.0 + 0.25 * look, 1, 0, 1.0).busy_s for look in range(1, 7)] == [0.25] * 4 + [0.0] * 2


def test_p95_is_read_by_the_bounds_that_it_was_counted_by() -> None:
    """The limits of the SLO are bounds, too: with one of 30 ms, 28 ms look like 50 ms by the others."""
    recorder = Recorder()
    recorder.expect("infer")
    recorder.set_objectives([LatencyObjective(share=0.95, limit_s=0.03)], errors=0.001)
    dispatcher: Any = SimpleNamespace(admission=SimpleNamespace(queued_ns=lambda: 0.0))
    found = PoolLoad(dispatcher, recorder)

    def answer(count: int, milliseconds: int) -> float:
        for _ in range(count):
            timings = Timings(0)
            timings.lap(Stage.INFER, milliseconds * 1_000_000)
            record(recorder, timings, "infer", "onnx", "ok", "off")
        return found.seen(1.0, 1, 0, 1.0).p95_s

    assert [answer(100, 28), answer(10, 40), answer(0, 0), answer(10, 28)] == [0.03, 0.05, 0.0, 0.03]
    recorder.set_objectives([LatencyObjective(share=0.95, limit_s=0.045)], errors=0.001)
    assert [answer(10, 44), answer(0, 0)] == [0.045, 0.0], "the histograms began again"


def test_long_batches_at_half_load_want_no_third_executor() -> None:
    found, scaler, most = load(), Scaler(ScalingLimits(1, 8, 5.0)), 0
    for look in range(240):
        if look % 8 == 4:
            found.busy_ns += int(1e9)  # a second of work every two seconds
        most = max(most, scaler.target(found.seen(look * 0.25, 1, 0, 1.0)))
    assert most <= 2
