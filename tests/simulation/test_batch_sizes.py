"""Which batch sizes run under load on a machine that has slow spells and hiccups: those that pay, and not by luck."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tailcut.models.runtimes.bucketed import sizes
from tailcut.scheduler.cost import BatchCost, CostModel

NS_PER_MS = 1e6
LARGEST = 8
PAYS = {1: 5.45, 2: 10.6, 4: 20.6, 8: 39.1}
"""Milliseconds by rows: a batch of eight takes a tenth less than eight rows alone."""
COSTS = {1: 4.5, 2: 9.2, 4: 19.5, 8: 42.0}
"""A batch of eight takes a sixth more."""


class Machine:
    """Runs batches of one shape: noise of five percent, spells of 1.3 times the time, a hiccup every 250 batches."""

    def __init__(self, shape: dict[int, float], seed: int) -> None:
        self.shape = shape
        self.draw = np.random.default_rng(seed)
        self.now_ms = self.useful_ms = 0.0
        self._slow, self._until_ms = False, self.draw.exponential(5000.0)

    def run(self, rows: int) -> float:
        """Return how long a batch takes, in milliseconds."""
        if self.now_ms > self._until_ms:
            self._slow = not self._slow
            self._until_ms = self.now_ms + self.draw.exponential(1500.0 if self._slow else 5000.0)
        took_ms = self.shape[rows] * np.exp(self.draw.normal(0.0, 0.05))
        if self.draw.random() < 0.004:
            took_ms *= self.draw.uniform(2.0, 6.0)
        speed = 1.3 if self._slow else 1.0
        self.now_ms += took_ms * speed
        self.useful_ms += took_ms
        return float(took_ms * speed)


def saturated(shape: dict[int, float], seed: int, seconds: float = 40.0) -> tuple[float, Counter[int]]:
    """Play a queue that always holds a full batch; return rows per millisecond of the best size's, and rows by size."""
    machine, model = Machine(shape, seed), CostModel()
    model.seed({rows: shape[rows] * machine.draw.normal(1.0, 0.05) * NS_PER_MS for rows in (1, LARGEST)})
    ran: Counter[int] = Counter()
    while machine.now_ms < 1000 * seconds:
        rows = model.cost.worth_rows(LARGEST)
        model.observe(rows, machine.run(rows) * NS_PER_MS)
        ran[rows] += rows
    best = max(rows / took_ms for rows, took_ms in shape.items())
    return ran.total() / machine.useful_ms / best, ran


@pytest.mark.parametrize("seed", range(6))
def test_where_batches_pay_they_are_large(seed: int) -> None:
    share, ran = saturated(PAYS, seed)
    assert share > 0.95  # hiccups cost more than one percent
    assert ran[LARGEST] + ran[LARGEST // 2] > 0.8 * ran.total()


@pytest.mark.parametrize("seed", range(6))
def test_where_batches_cost_they_are_small(seed: int) -> None:
    share, ran = saturated(COSTS, seed)
    assert share > 0.95
    assert ran[LARGEST] < 0.1 * ran.total()


def test_a_size_that_a_hiccup_made_look_dear_is_tried_again() -> None:
    """Of full batches the first ever takes twice as long as it should; within five hundred batches it is forgiven."""
    model = CostModel()
    model.seed({rows: PAYS[rows] * NS_PER_MS for rows in (1, 2, 4)})
    model.observe(LARGEST, 2 * PAYS[LARGEST] * NS_PER_MS)
    assert model.cost.worth_rows(LARGEST) < LARGEST
    tried = []
    for _ in range(1000):
        tried.append(model.cost.worth_rows(LARGEST))
        model.observe(tried[-1], PAYS[tried[-1]] * NS_PER_MS)
    assert LARGEST in tried
    assert tried[-100:].count(LARGEST) > 90


@pytest.mark.parametrize("waiting", [16, 20])
def test_sizes_that_are_filled_up_to_prepared_ones_are_not_tried_for_ever(waiting: int) -> None:
    """Of 1, 2, 4, 8, 32 twenty rows are filled up to 32, which costs more than three batches of eight."""
    steps = sizes(256)
    model = CostModel(steps)
    model.seed({size: (8 + 4 * size) * NS_PER_MS for size in steps})
    ran: Counter[int] = Counter()
    for _ in range(2000):
        rows = model.cost.worth_rows(waiting)
        model.observe(rows, (8 + 4 * BatchCost(0.0, 0.0, steps=steps).padded(rows)) * NS_PER_MS)
        ran[rows] += 1
    assert ran[8] > 1900


def test_sizes_that_cannot_be_formed_are_not_tried() -> None:
    """Where the first request brings five rows, that nothing is known of batches of one or two helps nobody."""
    cost = BatchCost(
        0.0, 0.0, tuple(took_ms * NS_PER_MS for took_ms in PAYS.values()), shaped=True, doubts=(0.5, 0.5, 0, 0)
    )
    assert cost.worth_rows(LARGEST) < 5
    assert cost.worth_rows(LARGEST, 5) == LARGEST
    assert cost.full_rows(LARGEST, 5, tried=True) == LARGEST


@pytest.mark.parametrize("start_ms", [40.0, 120.0])
def test_what_one_size_takes_is_learned_anew_also_where_sizes_take_turns(start_ms: float) -> None:
    """Of two sizes that run in turns one becomes dearer, or was measured cold: no error of one spoils the other."""
    model = CostModel()
    truth_ms = 80.0 if start_ms == 40.0 else 40.0
    for eight_ms, times in ((start_ms, 200 if start_ms == 40.0 else 1), (truth_ms, 40)):
        for _ in range(times):
            model.observe(1, 10.0 * NS_PER_MS)
            model.observe(LARGEST, eight_ms * NS_PER_MS)
    assert model.cost.batch_ns(1) / NS_PER_MS == pytest.approx(10.0, rel=0.07)
    assert model.cost.batch_ns(LARGEST) / NS_PER_MS == pytest.approx(truth_ms, rel=0.07)


def test_a_spell_moves_what_is_known_of_all_sizes() -> None:
    """A machine at half its speed shows with one size; the others are expected to take twice as long as well."""
    model = CostModel()
    for _ in range(30):
        for rows, took_ms in PAYS.items():
            model.observe(rows, took_ms * NS_PER_MS)
    for _ in range(40):
        model.observe(LARGEST, 2 * PAYS[LARGEST] * NS_PER_MS)
    for rows, took_ms in PAYS.items():
        assert model.cost.batch_ns(rows) / NS_PER_MS == pytest.approx(2 * took_ms, rel=0.15)
