"""The gate's level for losses: see test_gate_level."""

from __future__ import annotations

from tests.simulation.gate_trials import most, population
from tests.simulation.test_gate_level import TRIALS, passes

from tailcut.gate import metrics


def test_log_loss_at_the_budget_passes_at_most_5_in_100() -> None:
    whole = population(noise=0.5)
    budget = -whole.drop(metrics.log_loss)
    assert 0.01 < budget < 0.05
    passed = passes(whole, "log_loss", budget, rows=600)
    assert passed <= most(TRIALS)
    assert passed >= 0.02 * TRIALS, "a gate that passes nothing keeps its level for nothing"


def test_f1_at_the_budget_passes_at_most_5_in_100() -> None:
    whole = population(noise=0.6, base=-0.5)
    budget = whole.drop(metrics.f1)
    assert 0.005 < budget < 0.05
    assert passes(whole, "f1", budget, rows=600) <= most(TRIALS)
