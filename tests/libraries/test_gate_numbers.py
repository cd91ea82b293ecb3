"""gate: properties that hold of all data, and the pieces against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailcut.gate import holm, metrics
from tailcut.gate.bootstrap import estimate
from tailcut.gate.influence import (
    auc_parts,
    f1_parts,
    log_loss_parts,
    mean_parts,
    placements,
    spearman_parts,
    within,
)
from tailcut.gate.paired import Pairs

tables = st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 3000)).filter(lambda t: sum(t) > 0)
seeds = st.integers(0, 2**32 - 1)
chances = st.lists(st.floats(0, 1), max_size=12)


def pairs_of(table: tuple[int, int, int]) -> Pairs:
    return Pairs(lost=table[0], won=table[1], rows=sum(table))


def scored(seed: int, rows: int, *, coarse: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels of both classes, and two models' scores with ties."""
    rng = np.random.default_rng(seed)
    labels = np.append(rng.integers(0, 2, rows - 2), (0, 1))
    source, variant = rng.random((2, rows))
    return (labels, np.round(source, 1), np.round(variant, 1)) if coarse else (labels, source, variant)


@settings(max_examples=40, deadline=None)
@given(tables, st.sampled_from([0.05, 0.01]))
def test_a_limit_is_where_the_p_value_crosses(table: tuple[int, int, int], alpha: float) -> None:
    pairs = pairs_of(table)
    upper, lower = pairs.upper(alpha), pairs.lower(alpha)
    assert lower <= pairs.drop <= upper
    assert upper >= 1 - 1e-6 or pairs.p_below(min(upper + 1e-6, 1.0)) <= alpha + 1e-4
    assert pairs.p_below(max(upper - 1e-6, pairs.drop)) >= alpha - 1e-4


@settings(max_examples=40, deadline=None)
@given(tables, st.floats(0.001, 0.3), st.sampled_from([0.05, 0.01]))
def test_harm_is_shown_where_the_lower_limit_is_beyond_the_margin(
    table: tuple[int, int, int], margin: float, alpha: float
) -> None:
    pairs = pairs_of(table)
    lower = pairs.lower(alpha)
    assume(abs(lower - margin) > 1e-3)
    assert (pairs.p_above(margin) <= alpha) == (lower > margin)
    assert min(pairs.p_above(margin), pairs.p_below(margin)) >= 0.0
    assert max(pairs.p_above(margin), pairs.p_below(margin)) == 1.0


@given(chances)
def test_holm_rejects_what_the_procedure_rejects(ps: list[float]) -> None:
    rejected = [False] * len(ps)
    for done, place in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        if ps[place] * (len(ps) - done) > 0.05:
            break
        rejected[place] = True
    assert [p <= 0.05 for p in holm.adjust(ps)] == rejected


@given(chances)
def test_holm_never_lowers_a_p_and_keeps_their_order(ps: list[float]) -> None:
    adjusted = holm.adjust(ps)
    assert all(after >= before for before, after in zip(ps, adjusted, strict=True))
    assert [adjusted[i] for i in np.argsort(ps, kind="stable")] == sorted(adjusted)


@given(st.floats(0.001, 0.4), st.integers(1, 2000))
def test_all_verdicts_from_the_same_rows_spend_half_as_much_again(alpha: float, looks: int) -> None:
    spent = [holm.alpha_of_use(alpha, uses) for uses in range(looks)]
    assert spent[0] == alpha
    assert sum(spent) < 1.5 * alpha + 1e-12
    assert spent == sorted(spent, reverse=True)


@given(seeds, st.integers(4, 60))
def test_auc_parts_average_to_its_fall(seed: int, rows: int) -> None:
    labels, source, variant = scored(seed, rows)
    parts = auc_parts(labels, source, variant)
    expected = metrics.auc(labels, source) - metrics.auc(labels, variant)
    assert sum(values.mean() for values in parts.values) == pytest.approx(expected, abs=1e-12)
    assert placements(labels == 1, source)[labels == 1].mean() == pytest.approx(metrics.auc(labels, source), abs=1e-12)


@given(seeds, st.integers(4, 60))
def test_f1_and_spearman_parts_average_to_their_fall(seed: int, rows: int) -> None:
    labels, source, variant = scored(seed, rows)
    f1 = metrics.f1(labels, source) - metrics.f1(labels, variant)
    assert f1_parts(labels == 1, source > 0.5, variant > 0.5).drop == pytest.approx(f1, abs=1e-12)
    rank = metrics.spearman(labels, source) - metrics.spearman(labels, variant)
    assert spearman_parts(labels, source, variant).drop == pytest.approx(rank, abs=1e-12)


@pytest.mark.parametrize("metric", ["auc", "f1", "spearman"])
def test_the_error_of_a_metric_is_that_of_the_jackknife(metric: str) -> None:
    """The influence functions against leaving out one row at a time."""
    labels, source, variant = scored(5, 300, coarse=False)
    source, variant = np.round(source * 0.6 + labels * 0.4, 2), np.round(variant * 0.7 + labels * 0.3, 2)
    measure = metrics.METRICS[metric]
    left = [np.delete(np.arange(300), row) for row in range(300)]
    falls = np.array([measure(labels[k], source[k]) - measure(labels[k], variant[k]) for k in left])
    jackknife = np.sqrt(299 / 300 * np.sum((falls - falls.mean()) ** 2))
    parts = (
        auc_parts(labels, source, variant)
        if metric == "auc"
        else spearman_parts(labels, source, variant)
        if metric == "spearman"
        else f1_parts(labels == 1, source > 0.5, variant > 0.5)
    )
    assert estimate(parts, seed=None).se == pytest.approx(jackknife, rel=0.03)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=3, max_size=30))
def test_spearman_is_scipys(rows: list[tuple[int, int]]) -> None:
    labels, scores = np.array(rows).T
    assume(len(set(labels)) > 1 and len(set(scores)) > 1)
    assert metrics.spearman(labels, scores) == pytest.approx(scipy.stats.spearmanr(labels, scores).statistic, abs=1e-12)


@given(seeds, st.integers(8, 60))
def test_the_parts_of_all_slices_make_the_whole(seed: int, rows: int) -> None:
    labels, source, variant = scored(seed, rows)
    parts = mean_parts(metrics.log_loss_rows(labels, source), metrics.log_loss_rows(labels, variant), rises=True)
    chosen = np.random.default_rng(seed).random(rows) < 0.5
    sides = [(within(parts, side), side.sum()) for side in (chosen, ~chosen)]
    assert sum(part.drop * size for part, size in sides if part) / rows == pytest.approx(parts.drop, abs=1e-9)


def test_a_slice_of_one_class_has_an_auc_drop_against_the_rest() -> None:
    labels, source, _ = scored(3, 400, coarse=False)
    source = source + labels
    variant = np.where(labels == 1, source - 1, source)
    part = within(auc_parts(labels, source, variant), labels == 1)
    assert part is not None
    assert len(part.values) == 1
    assert part.drop == pytest.approx(metrics.auc(labels, source) - metrics.auc(labels, variant))


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(20, 200), st.booleans(), st.sampled_from([0.05, 0.001]))
def test_an_estimates_limits_are_where_its_p_values_cross(seed: int, rows: int, drawn: bool, alpha: float) -> None:
    labels, source, variant = scored(seed, rows, coarse=False)
    parts = mean_parts(np.abs(labels - source), np.abs(labels - variant), rises=True)
    found = estimate(parts, seed=seed if drawn else None, resamples=200)
    upper, lower = found.upper(alpha), found.lower(alpha)
    assert lower <= found.drop <= upper
    nudge = found.se * 1e-3
    assert found.p_below(upper + nudge) <= alpha + 1e-9
    assert found.p_above(lower - nudge) <= alpha + 1e-9


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_the_same_seed_gives_the_same_estimate(seed: int) -> None:
    labels, source, variant = scored(seed, 80, coarse=False)
    parts = auc_parts(labels, source, variant)
    one, other = (estimate(parts, seed=seed, resamples=100) for _ in range(2))
    assert np.array_equal(one.drawn, other.drawn)


def test_rows_that_do_not_differ_bound_only_what_they_could_have_shown() -> None:
    """Equal answers on few rows are no proof; a fault in one row in a hundred is absent from 200 rows now and then."""
    values = np.random.default_rng(0).random(200)
    found = estimate(mean_parts(values, values, rises=True, damage=1.0), seed=0)
    assert found.se == 0.0
    assert found.upper(0.05) == pytest.approx(1 - 0.05 ** (1 / 200))
    assert found.p_below(0.004) == pytest.approx(0.996**200)
    assert found.p_above(0.0) == 1.0


def test_an_unseen_fault_costs_what_the_answers_cost_turned_over() -> None:
    labels = np.array([0, 1] * 50)
    sure = np.where(labels == 1, 0.999, 0.001)
    turned = metrics.log_loss(labels, 1 - sure) - metrics.log_loss(labels, sure)
    assert log_loss_parts(labels, sure, sure).damage == pytest.approx(turned)
    columns = np.stack([1 - sure, sure], axis=1)
    assert log_loss_parts(labels, columns, columns).damage == pytest.approx(turned)
    four = np.full((100, 4), 0.001)
    four[np.arange(100), labels] = 0.997
    assert log_loss_parts(labels, four, four).damage == pytest.approx(np.log(997))
    certain = labels.astype(np.float32)
    assert np.isfinite(log_loss_parts(labels, certain, certain).damage), "1 and 0 are clipped"
    unsure = np.full(100, 0.5)
    assert log_loss_parts(labels, unsure, unsure).damage == pytest.approx(0.0)
    assert auc_parts(labels, sure, sure).damage == 1.0, "no row is spread where the source separates the classes"
    mixed = np.random.default_rng(0).random(100) + 2.0 * labels * (np.arange(100) < 90)
    assert auc_parts(labels, mixed, mixed).damage >= 2.0 * metrics.auc(labels, mixed) - 1.0


def test_the_same_rows_in_groups_keep_their_spread_and_skewness() -> None:
    """More rows than are drawn one by one: the studentised drops have the same quantiles."""
    values = np.random.default_rng(1).exponential(size=45_000) ** 2
    parts = mean_parts(np.zeros(45_000), values, rises=True)
    drawn = estimate(parts, seed=2, resamples=1500).drawn
    plain = estimate(mean_parts(np.zeros(15_000), values[:15_000], rises=True), seed=2, resamples=1500).drawn
    assert np.quantile(drawn, (0.1, 0.5, 0.9)) == pytest.approx(np.quantile(plain, (0.1, 0.5, 0.9)), abs=0.15)
