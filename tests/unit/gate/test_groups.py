"""Rows that hang together: the group is what counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.builder import Holdout
from tailcut.errors import BuildError
from tailcut.gate import QualityVerdict, compare, judge
from tailcut.gate.bootstrap import estimate
from tailcut.gate.clustered import clustered, clustered_pairs, effective
from tailcut.gate.influence import auc_parts, mean_parts
from tailcut.gate.paired import count
from tailcut.gate.verdict import MetricVerdict

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 2, 4000)
SOURCE = np.where(LABELS == 1, 0.9, 0.1)


def spoiled(places: np.ndarray) -> np.ndarray:
    variant = SOURCE.copy()
    variant[places] = 1.0 - variant[places]
    return variant


def accuracy(variant: np.ndarray, groups: np.ndarray | None, budget: float = 0.02, **more: object) -> QualityVerdict:
    return judge({"v": variant}, SOURCE, LABELS, {}, {"accuracy": budget}, groups=groups, **more)["v"]  # type: ignore[arg-type]


def test_forty_wrong_rows_of_two_patients_show_less_than_forty_of_forty() -> None:
    patients = np.repeat(np.arange(200), 20)
    together, apart = spoiled(np.arange(40)), spoiled(np.arange(0, 4000, 100))
    assert accuracy(together, None).outcome == accuracy(apart, None).outcome == "pass"
    assert accuracy(apart, patients).outcome == "pass"
    found = accuracy(together, patients)
    assert found.outcome == "inconclusive"
    assert found.groups == 200
    (metric,) = found.metrics
    assert metric.groups_needed is not None
    assert metric.groups_needed > 200
    assert metric.rows_needed == 20 * metric.groups_needed
    seen = f"accuracy fell {metric.drop:.4g}; 4,000 rows in 200 groups can exclude drops above {metric.upper:.4g}, "
    assert found.reason.startswith(f"{seen}budget ")
    assert found.reason.endswith(" rows) would decide it")


def test_text_names_groups_as_well_as_numbers_do() -> None:
    patients = np.repeat(np.arange(200), 20)
    named = np.array([f"patient {each}" for each in patients], dtype=object)
    variant = spoiled(np.arange(40))
    assert accuracy(variant, named).metrics == accuracy(variant, patients).metrics


def test_a_group_for_each_row_is_about_no_group_at_all() -> None:
    variant = spoiled(np.arange(30))
    alone, rows = accuracy(variant, np.arange(4000)).metrics[0], accuracy(variant, None).metrics[0]
    assert alone.drop == rows.drop
    assert alone.upper == pytest.approx(rows.upper, rel=0.05)


def test_what_no_group_showed_is_not_shown_to_be_absent() -> None:
    """4,000 rows of 40 patients, and none differs: a fault of one patient in fifty may well be there."""
    assert accuracy(SOURCE, None, budget=0.02).outcome == "pass"
    found = accuracy(SOURCE, np.repeat(np.arange(40), 100), budget=0.02)
    assert found.outcome == "inconclusive"
    assert found.metrics[0].groups_needed == 149  # 0.98 ** 149 < 0.05


def test_harm_that_one_patient_suffers_is_not_shown_for_all() -> None:
    variant = spoiled(np.arange(400))
    assert accuracy(variant, None, budget=0.02).outcome == "fail"
    assert accuracy(variant, np.repeat(np.arange(10), 400), budget=0.02).outcome == "inconclusive"


def test_a_slice_of_few_patients_is_not_judged() -> None:
    patients = np.repeat(np.arange(200), 20)
    slices = {"kind": np.where(patients < 5, "few", "many")}
    found = judge({"v": spoiled(np.arange(100))}, SOURCE, LABELS, slices, {"accuracy": 0.1}, groups=patients)["v"]
    few = next(one for one in found.slices if one.value == "few")
    assert (few.outcome, few.note) == ("inconclusive", "its rows belong to 5 groups; at least 10 are needed")
    assert next(one for one in found.slices if one.value == "many").outcome == "pass"


@given(st.integers(2, 40), st.integers(0, 2**32 - 1))
def test_a_design_effect_is_never_below_one_and_keeps_the_drop(groups: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    places = np.concatenate([np.arange(groups), rng.integers(0, groups, 100)])
    source, variant = rng.random((2, places.size)) < 0.7
    found = clustered_pairs(source, variant, places)
    plain = count(source, variant)
    assert found.effect >= 1.0
    assert found.drop == plain.drop
    assert found.upper(0.05) >= plain.upper(0.05) - 1e-9
    assert found.lower(0.05) <= plain.lower(0.05) + 1e-9
    assert found.p_below(0.2) >= plain.p_below(0.2) - 1e-9


def test_equal_rows_of_a_group_count_as_one() -> None:
    """Each row ten times over, its ten copies one group: the error is that of the rows once."""
    rng = np.random.default_rng(3)
    source, variant = rng.normal(size=(2, 300))
    once = estimate(mean_parts(source, variant, rises=False), seed=None)
    ten = mean_parts(np.repeat(source, 10), np.repeat(variant, 10), rises=False)
    assert estimate(clustered(ten, np.repeat(np.arange(300), 10)), seed=None).se == pytest.approx(once.se)
    labels = rng.integers(0, 2, 300)
    once = estimate(auc_parts(labels, source, variant), seed=None)
    ten = auc_parts(np.repeat(labels, 10), np.repeat(source, 10), np.repeat(variant, 10))
    found = estimate(clustered(ten, np.repeat(np.arange(300), 10)), seed=None)
    assert found.se == pytest.approx(once.se, rel=0.02)
    assert found.drop == pytest.approx(once.drop)


def rare(positives: int, rows: int = 1500) -> tuple[np.ndarray, np.ndarray]:
    """Labels of few positive rows, and a source of an AUC of about 0.96."""
    labels = np.arange(rows) < positives
    return labels.astype(int), 2.5 * labels + np.random.default_rng(5).normal(size=rows)


def auc(labels: np.ndarray, source: np.ndarray, groups: np.ndarray | None) -> MetricVerdict:
    return judge({"v": source}, source, labels, {}, {"auc": 0.01}, groups=groups)["v"].metrics[0]


def test_of_rare_positives_the_groups_that_have_one_count() -> None:
    """6 positive rows show nothing of a fault that strikes a quarter of them, however many groups there are."""
    labels, source = rare(6)
    alone, grouped = auc(labels, source, None), auc(labels, source, np.arange(1500))
    assert alone.outcome == grouped.outcome == "inconclusive"
    assert grouped.upper == alone.upper > 0.25
    assert grouped.groups_needed == alone.rows_needed
    assert auc(*rare(600), np.arange(1500)).outcome == "pass"
    pairs = np.arange(1500) // 2
    assert auc(*rare(600), pairs).upper > auc(*rare(600), np.arange(1500)).upper, "of 300 groups, two rows each"


def test_positives_of_one_group_are_not_judged() -> None:
    labels, source = rare(6)
    found = auc(labels, source, np.arange(1500) // 10)
    assert (found.outcome, found.upper) == ("inconclusive", None)
    assert found.note == "the rows of one class belong to 1 group: there is no spread between groups"


def test_agreement_is_of_groups_too() -> None:
    variant = spoiled(np.arange(40))
    patients = np.repeat(np.arange(200), 20)
    rows, groups = (compare(SOURCE, variant, confidence=0.95, clusters=each) for each in (None, patients))
    assert rows.flips == groups.flips == 40
    assert groups.disagree_upper > 1.5 * rows.disagree_upper
    assert groups.divergence_upper > rows.divergence_upper
    assert effective(np.zeros(100, dtype=np.bool_), np.repeat(np.arange(5), 20)) == (0.0, 5.0)


def test_one_group_says_nothing_and_a_column_of_another_length_is_refused() -> None:
    with pytest.raises(BuildError, match="all 4000 confirmation rows belong to one group"):
        accuracy(SOURCE, np.zeros(4000))
    with pytest.raises(BuildError, match="the groups have 5 rows, the scores have 4000"):
        accuracy(SOURCE, np.arange(5))


# -- The split -------------------------------------------------------------------------------------------------------


def test_a_split_keeps_groups_whole() -> None:
    patients = np.array([f"patient {each}" for each in RNG.integers(0, 50, 1000)], dtype=object)
    holdout = Holdout(inputs={"x": np.arange(1000.0)}, labels=RNG.integers(0, 2, 1000), slices={"patient": patients})
    parts = holdout.split(0.3, group="patient")
    assert sum(part.rows for part in parts) == 1000
    first, second = (set(part.slices["patient"]) for part in parts)
    assert not first & second
    assert first | second == set(patients)
    assert 270 <= parts[0].rows <= 350
    again = holdout.split(0.3, group="patient")
    np.testing.assert_array_equal(again[0].inputs["x"], parts[0].inputs["x"])


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_of_two_groups_each_part_has_one(share: float) -> None:
    holdout = Holdout(inputs={"x": np.arange(20.0)}, slices={"patient": np.repeat([0, 1], 10)})
    assert [part.rows for part in holdout.split(share, group="patient")] == [10, 10]


def test_a_group_that_is_not_there_or_the_only_one_is_refused() -> None:
    holdout = Holdout(inputs={"x": np.arange(20.0)}, slices={"patient": np.zeros(20)})
    with pytest.raises(BuildError, match=r"holdout.group is 'session', the holdout's slices are \['patient'\]"):
        holdout.split(0.3, group="session")
    with pytest.raises(BuildError, match=r"every row of the holdout has patient 0\.0"):
        holdout.split(0.3, group="patient")
