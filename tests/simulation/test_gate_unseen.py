"""The gate's level against a fault that most holdouts do not show: see test_gate_level.

A source that separates the classes, or is sure of them, says by its own rows nothing of how much a wrong one costs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.simulation.gate_trials import most

from tailcut.gate import judge, metrics

TRIALS = 300
FAULTY = 0.01
Trial = tuple[np.ndarray, np.ndarray, np.ndarray]


def separating(rng: np.random.Generator, rows: int) -> Trial:
    """A source that is right and sure on every row; the variant turns the faulty ones over."""
    labels = np.arange(rows) % 2
    sure = 1 - rng.uniform(0.0005, 0.002, rows)
    source = np.where(labels == 1, sure, 1 - sure)
    return labels, source, np.where(rng.random(rows) < FAULTY, 1 - source, source)


def rare(rng: np.random.Generator, rows: int) -> Trial:
    """A calibrated source of 2 % positives; the variant calls the faulty rows positive."""
    source = rng.beta(0.5, 24.5, rows).clip(1e-4, 0.999)
    labels = (rng.random(rows) < source).astype(int)
    labels[:2] = 1
    return labels, source, np.where(rng.random(rows) < FAULTY, 0.99, source)


def classes(rng: np.random.Generator, rows: int) -> Trial:
    """A source that is right and sure of one of 4 classes; the variant names the next one on faulty rows."""
    labels = rng.integers(0, 4, rows)
    source = np.full((rows, 4), 0.001)
    source[np.arange(rows), labels] = 0.997
    return labels, source, np.where(rng.random(rows)[:, None] < FAULTY, np.roll(source, 1, axis=1), source)


@pytest.mark.parametrize(
    ("kind", "metric", "budget", "rows"),
    [
        (separating, "auc", 0.004, 100),
        (separating, "auc", 0.004, 200),
        (separating, "log_loss", 0.01, 100),
        (separating, "log_loss", 0.01, 200),
        (rare, "log_loss", 0.01, 100),
        (rare, "log_loss", 0.01, 200),
        (classes, "log_loss", 0.01, 200),
    ],
)
def test_a_fault_of_one_row_in_a_hundred_passes_at_most_5_in_100(
    kind: Callable[[np.random.Generator, int], Trial], metric: str, budget: float, rows: int
) -> None:
    rng = np.random.default_rng(1)
    whole = kind(rng, 50_000)
    drop = metrics.drop(metric, *(metrics.METRICS[metric](whole[0], scores) for scores in whole[1:]))
    assert drop > 2 * budget
    passed = 0
    for number in range(TRIALS):
        labels, source, variant = kind(rng, rows)
        found = judge({"v": variant}, source, labels, {}, {metric: budget}, seed=number, resamples=150)["v"]
        passed += found.outcome == "pass"
    assert passed <= most(TRIALS)


@pytest.mark.parametrize(
    ("metric", "budget", "rows"), [("auc", 0.01, 1000), ("auc", 0.004, 2000), ("log_loss", 0.02, 1500)]
)
def test_a_variant_without_a_fault_passes_where_the_rows_can_show_it(metric: str, budget: float, rows: int) -> None:
    """Three rows of the smaller class for each part of the budget, times what one of them costs."""
    rng = np.random.default_rng(2)
    for number in range(20):
        labels, source, _ = separating(rng, rows)
        variant = source * (1 + 1e-5 * rng.normal(size=rows))
        found = judge({"v": variant}, source, labels, {}, {metric: budget}, seed=number, resamples=150)["v"]
        assert found.outcome == "pass", found.reason
