"""The promise of the drift detector, in simulated months; ``python -m benchmarks.drift`` plays 500 of them."""

from __future__ import annotations

import pytest
from benchmarks import drift
from benchmarks.drift import POPULATIONS, Entities, found_after, quiet_months


@pytest.mark.parametrize("entities", POPULATIONS.values(), ids=["alike", "uneven"])
def test_months_without_drift_give_no_more_alarms_than_the_budget(entities: Entities) -> None:
    found = [quiet_months(seed, entities, 2) for seed in range(4)]
    assert sum(each.alarms for each in found) <= sum(each.months for each in found)
    assert sum(each.certain for each in found) > 8, "the same bets against the reference as if it were exact"
    assert sum(each.days_alarmed for each in found) > 0.3 * sum(each.days for each in found), "KS tests at 0.05"
    assert all(each.counted < 0.95 for each in found), "entities repeat"


def test_a_reference_of_a_thousand_rows_gives_no_alarm_however_large_the_traffic() -> None:
    """Against an estimate, evidence without a band for its error grows without end."""
    world = drift.World(7, Entities(500_000, 1.0))
    _, sketches = world.reference()
    detector = drift.Detector(sketches, drift.DriftSettings(psi=0.0))  # the evidence alone
    for day in range(60):
        rows, who = world.rows(20_000)
        assert detector.update(list(drift.with_output(rows).T), day * 86_400.0, who) is None


def test_half_a_standard_deviation_in_one_of_forty_columns_is_found_within_two_thousand_rows() -> None:
    delays = [found_after(seed, POPULATIONS[drift.BAR], 0.5) for seed in range(40)]
    assert sum(each is not None for each in delays) >= 38, delays
