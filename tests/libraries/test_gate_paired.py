"""gate.paired and .distributions: published figures, exact edges, and SciPy as judge of special functions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from tailcut.gate import paired
from tailcut.gate.distributions import incomplete_beta, normal_below, share_upper, student_below
from tailcut.gate.paired import Pairs, count, rows_needed, statistic


def test_the_statistic_is_tangos_of_the_contact_lens_trial() -> None:
    """Tango 1998: 43, 0, 1, 0 of 44 patients; at a margin of 0.1, Z = 1.709 and p = 0.044."""
    score, _ = statistic(np.array([1.0]), np.array([0.0]), 44, 0.1)
    assert -score[0] == pytest.approx(1.709, abs=5e-4)
    assert normal_below(float(score[0])) == pytest.approx(0.044, abs=5e-4)


@pytest.mark.parametrize(
    ("lost", "won", "rows", "alpha", "low", "high"),
    [
        (7, 1, 21, 0.025, 0.026, 0.517),  # Bentur 2009 as in Fagerland, Lydersen and Laake 2014, Tango's interval
        (28, 25, 618, 0.05, -0.0148, 0.0247),  # PropCIs::scoreci.mp(25, 28, 618) in R, 90 %
    ],
)
def test_limits_of_the_normal_form_are_the_published_ones(
    lost: int, won: int, rows: int, alpha: float, low: float, high: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paired, "EXACT_ROWS", 0.0)
    pairs = Pairs(lost=lost, won=won, rows=rows)
    digits = 5e-4 if rows == 21 else 5e-5
    assert pairs.lower(alpha) == pytest.approx(low, abs=digits)
    assert pairs.upper(alpha) == pytest.approx(high, abs=digits)


@pytest.mark.parametrize("rows", [1, 20, 748, 5000])
def test_without_a_differing_row_the_test_is_exact(rows: int) -> None:
    """The chance of seeing no lost row is (1 - margin) ** rows, and the limit follows from it."""
    pairs = Pairs(lost=0, won=0, rows=rows)
    assert pairs.p_below(0.004) == pytest.approx(0.996**rows, rel=1e-6)
    assert pairs.upper(0.05) == pytest.approx(1 - 0.05 ** (1 / rows), rel=1e-6)


def test_747_equal_rows_do_not_decide_a_budget_of_0_004_and_748_do() -> None:
    assert Pairs(lost=0, won=0, rows=747).p_below(0.004) > 0.05 > Pairs(lost=0, won=0, rows=748).p_below(0.004)


def test_summed_and_normal_p_meet_where_many_rows_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = Pairs(lost=13, won=11, rows=4000)
    summed = pairs.p_below(0.004)
    monkeypatch.setattr(paired, "EXACT_ROWS", 0.0)
    assert summed == pytest.approx(pairs.p_below(0.004), abs=0.01)
    assert summed != pairs.p_below(0.004)


@pytest.mark.parametrize("margin", [0.002, 0.01, 0.2])
def test_the_summed_p_is_that_of_the_trinomial(margin: float) -> None:
    """Against SciPy's multinomial over every table of 60 rows."""
    rows, pairs = 60, Pairs(lost=1, won=2, rows=60)
    seen, share = statistic(np.array([1.0]), np.array([2.0]), rows, margin)
    total = 0.0
    law = scipy.stats.multinomial(rows, [share[0] + margin, share[0], 1 - 2 * share[0] - margin])
    for lost in range(rows + 1):
        for won in range(rows + 1 - lost):
            score, _ = statistic(np.array([float(lost)]), np.array([float(won)]), rows, margin)
            if score[0] <= seen[0] + 1e-9:
                total += law.pmf([lost, won, rows - lost - won])
    assert pairs.p_below(margin) == pytest.approx(max(total, (1 - margin) ** rows), rel=1e-6)


def test_rows_needed_are_those_of_the_normal_formula() -> None:
    """6.18 d / budget^2 at 95 % and 80 % power: 1 % of rows differing need 3,865."""
    assert rows_needed(0.01, 0.0, 0.004, 0.95) == 3865
    assert rows_needed(0.05, 0.0, 0.004, 0.95) == 19321
    assert rows_needed(0.0, 0.0, 0.004, 0.95) == 748
    assert rows_needed(0.01, 0.004, 0.004, 0.95) is None


def test_counting_pairs() -> None:
    pairs = count(np.array([1, 1, 0, 0, 1]), np.array([1, 0, 1, 0, 0]))
    assert (pairs.lost, pairs.won, pairs.rows, pairs.drop) == (2, 1, 5, pytest.approx(0.2))
    with pytest.raises(ValueError, match="same rows"):
        count(np.ones(3), np.ones(4))
    with pytest.raises(ValueError, match="same rows"):
        count(np.ones(0), np.ones(0))


@pytest.mark.parametrize("x", [0.0, 1e-9, 0.01, 0.3, 0.5, 0.9, 0.99999, 1.0])
@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (3.5, 0.5), (2.0, 40.0), (997.0, 4.0), (30000.0, 20001.0)])
def test_the_incomplete_beta_is_scipys(x: float, a: float, b: float) -> None:
    assert incomplete_beta(x, a, b) == pytest.approx(float(scipy.stats.beta.cdf(x, a, b)), rel=1e-8, abs=1e-14)


def test_students_t_is_scipys() -> None:
    for t in (-40.0, -2.5, -0.1, 0.0, 1.7, 9.0):
        for freedom in (1, 9, 300, 50_000):
            assert student_below(t, freedom) == pytest.approx(float(scipy.stats.t.cdf(t, freedom)), rel=1e-8, abs=1e-14)
    assert student_below(-math.inf, 3) == 0.0
    assert student_below(math.inf, 3) == 1.0


def test_the_limit_of_a_share_is_clopper_and_pearsons() -> None:
    for hits, rows in ((0, 200), (3, 1000), (499, 500), (20_000, 50_000)):
        expected = float(scipy.stats.beta.ppf(0.95, hits + 1, rows - hits))
        assert share_upper(hits, rows, 0.05) == pytest.approx(expected, rel=1e-6)
    assert share_upper(7, 7, 0.05) == 1.0
