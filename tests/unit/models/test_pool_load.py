"""What a pool sees of batches that take longer than the time between two looks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tailcut.models.pool_load import PoolLoad
from tailcut.scheduler.pool_scaling import Limits, Scaler


def load() -> PoolLoad:
    dispatcher: Any = SimpleNamespace(admission=SimpleNamespace(queued_ns=lambda: 0.0))
    recorder: Any = SimpleNamespace(answered={})
    return PoolLoad(dispatcher, recorder)


def test_a_long_batch_is_never_more_work_than_its_executor_can_have_done() -> None:
    found = load()
    found.seen(10.0, 1, 0, 1.0)
    found.busy_ns += int(1e9)  # a batch of a second ended
    assert [found.seen(10.0 + 0.25 * look, 1, 0, 1.0).busy_s for look in range(1, 7)] == [0.25] * 4 + [0.0] * 2


def test_long_batches_at_half_load_want_no_third_executor() -> None:
    found, scaler, most = load(), Scaler(Limits(1, 8, 5.0)), 0
    for look in range(240):
        if look % 8 == 4:
            found.busy_ns += int(1e9)  # a second of work every two seconds
        most = max(most, scaler.target(found.seen(look * 0.25, 1, 0, 1.0)))
    assert most <= 2
