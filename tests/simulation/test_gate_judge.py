"""gate.judge: the three outcomes, slices, repeated use, missing labels, what it refuses."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import pytest
from tests.simulation.gate_trials import Population, most, population

from tailcut.errors import BuildError
from tailcut.gate import OwnRows, QualityVerdict, compare, judge, metrics

CLOSE = population(noise=0.02)
WORSE = population(noise=1.5)
BUDGET = {"accuracy": 0.004}


def rows_of(whole: Population, rows: int, seed: int = 0) -> Population:
    return next(whole.holdouts(rows, 1, seed))


def judge_one(one: Population, budget: dict[str, float] | None = None, **more: object) -> QualityVerdict:
    slices = more.pop("slices", {})
    found = judge({"v": one.variant}, one.source, one.labels, slices, budget or BUDGET, resamples=400, **more)  # type: ignore[arg-type]
    return found["v"]


@pytest.mark.parametrize("metric", ["accuracy", "auc", "log_loss", "f1"])
def test_an_equal_variant_mostly_passes_with_enough_rows_and_a_bad_one_fails(metric: str) -> None:
    budget = {metric: 0.01}
    close = [judge_one(one, budget).outcome for one in CLOSE.holdouts(4000, 20, seed=1)]
    assert close.count("pass") >= 18
    worse = [judge_one(one, budget).outcome for one in WORSE.holdouts(4000, 20, seed=1)]
    assert worse.count("fail") == 20


def test_200_rows_decide_nothing_and_say_how_many_would() -> None:
    for seed in range(20):
        verdict = judge_one(rows_of(CLOSE, 200, seed), {"accuracy": 0.004, "auc": 0.004})
        assert verdict.outcome == "inconclusive"
        assert all(one.rows_needed and one.rows_needed > 200 for one in verdict.metrics)
    assert re.search(r"200 rows can exclude drops above .* budget 0\.004: [\d,]+ would decide it$", verdict.reason)


def test_the_rows_said_to_be_needed_decide_it() -> None:
    """With the number that 200 rows ask for, four in five verdicts are a pass."""
    one = rows_of(CLOSE, 200, seed=3)
    needed = judge_one(one).metrics[0].rows_needed
    assert needed is not None
    outcomes = [judge_one(more).outcome for more in CLOSE.holdouts(needed, 20, seed=4)]
    assert outcomes.count("pass") >= 14


def test_one_class_hurt_only_is_refused_by_its_slice() -> None:
    """One class of ten loses 10 % of its rows, the others win as many: the whole shows nothing, its slice does."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 20_000)
    source = np.eye(10)[labels] * 0.5 + rng.random((20_000, 10)) * 0.55
    variant = source.copy()
    hurt = np.flatnonzero((labels == 7) & metrics.right_rows(labels, source) & (rng.random(20_000) < 0.1))
    variant[hurt] = np.roll(source[hurt], 1, axis=1)
    healed = np.flatnonzero((labels != 7) & ~metrics.right_rows(labels, source))[: hurt.size]
    variant[healed] = np.eye(10)[labels[healed]]
    slices = {"class": labels, "day": rng.integers(0, 7, 20_000)}
    found = judge({"v": variant}, source, labels, slices, BUDGET)["v"]
    assert found.metrics[0].outcome == "pass"
    assert found.outcome == "fail"
    assert found.worst_slice is not None
    assert (found.worst_slice.slice, found.worst_slice.value) == ("class", "7")
    assert [one.value for one in found.slices if one.outcome == "fail"] == ["7"]
    assert "slice class=7: accuracy fell" in found.reason


@pytest.mark.parametrize("metric", ["accuracy", "auc", "log_loss", "f1"])
def test_slices_at_their_limit_are_refused_as_rarely_as_promised(metric: str) -> None:
    """100 trials, 12 slices whose true drop is the limit: about 5 % of the trials refuse at all."""
    whole = population(noise=0.7, seed=2)
    limit = abs(whole.drop(metrics.METRICS[metric]))
    refused = 0
    for number, one in enumerate(whole.holdouts(1500, 100, seed=5)):
        slices = {"group": np.random.default_rng(number).integers(0, 12, 1500)}
        found = judge_one(one, {metric: limit}, slice_budget=1.0, slices=slices)
        refused += any(one.outcome == "fail" for one in found.slices)
    assert refused <= most(100)


def test_small_slices_are_reported_and_not_judged() -> None:
    one = rows_of(CLOSE, 3000)
    found = judge_one(one, slices={"id": np.arange(3000), "half": np.arange(3000) < 5})
    few = [each for each in found.slices if each.note == "too few rows for a decision"]
    assert [(each.slice, each.value, each.rows) for each in few] == [
        ("id", "3000 values of fewer than 10 rows", 3000),
        ("half", "1 values of fewer than 10 rows", 5),
    ]
    assert all(each.outcome == "inconclusive" and each.drop is None for each in few)


def test_variants_judged_together_share_the_error() -> None:
    """Twenty copies that each would pass alone by a hair do not pass together."""
    one = rows_of(CLOSE, 760, seed=2)
    alone = judge({"v0": one.source}, one.source, one.labels, {}, BUDGET)
    assert alone["v0"].outcome == "pass"
    many = judge({f"v{i}": one.source for i in range(20)}, one.source, one.labels, {}, BUDGET)
    assert {found.outcome for found in many.values()} == {"inconclusive"}
    assert all(found.metrics[0].p_adjusted > 0.05 for found in many.values())


def test_used_rows_need_more_and_say_so() -> None:
    one = rows_of(CLOSE, 760, seed=2)
    fresh, used = (judge({"v": one.source}, one.source, one.labels, {}, BUDGET, uses=uses)["v"] for uses in (0, 3))
    assert (fresh.outcome, fresh.warning) == ("pass", "")
    assert used.outcome == "inconclusive"
    assert used.alpha == pytest.approx(0.05 / 20)
    assert "already gave a verdict 3 times" in used.warning
    assert used.metrics[0].rows_needed is not None
    assert used.metrics[0].rows_needed > 760


def test_a_limit_agrees_with_the_outcome() -> None:
    for seed in range(30):
        one = rows_of(CLOSE, 1200, seed)
        found = judge_one(one, {"accuracy": 0.004, "log_loss": 0.01}, uses=seed % 2)
        for each in found.metrics:
            assert each.upper is not None
            assert (each.upper <= each.budget + 1e-9) == (each.outcome == "pass")


def test_without_labels_it_speaks_of_agreement_and_does_not_pass() -> None:
    one = rows_of(CLOSE, 5000)
    found = judge({"v": one.variant}, one.source, None, {}, BUDGET)["v"]
    assert found.outcome == "inconclusive"
    assert "agreement with the source model" in found.reason
    assert "quality" not in found.reason
    assert found.flip_rate == pytest.approx(np.mean(metrics.decide(one.source) != metrics.decide(one.variant)))


def test_vectors_are_judged_by_their_cosine_without_labels() -> None:
    rng = np.random.default_rng(0)
    source = rng.normal(size=(2000, 16))
    near, far = source + 0.02 * rng.normal(size=source.shape), source + rng.normal(size=source.shape)
    found = judge({"near": near, "far": far}, source, None, {}, {"cosine": 0.01})
    assert (found["near"].outcome, found["far"].outcome) == ("pass", "fail")
    assert found["near"].agreement.divergence == "cosine-distance"
    assert found["near"].flip_rate is None


def test_regression_and_user_metrics() -> None:
    rng = np.random.default_rng(0)
    labels = rng.normal(size=4000) * 10
    source = labels + rng.normal(size=4000)
    good, bad = source + 0.01 * rng.normal(size=4000), source + 8 * rng.normal(size=4000)
    profit = OwnRows(-np.abs(source - labels), {"good": -np.abs(good - labels), "bad": -np.abs(bad - labels)})
    budget = {"mae": 0.02, "spearman": 0.01, "profit": 0.02}
    found = judge({"good": good, "bad": bad}, source, labels, {}, budget, own_metrics={"profit": profit})
    assert [one.outcome for one in found["good"].metrics] == ["pass"] * 3
    assert [one.outcome for one in found["bad"].metrics] == ["fail"] * 3
    assert found["good"].agreement.divergence == "absolute-difference"


def test_one_class_only_gives_no_auc_and_no_verdict() -> None:
    scores = np.random.default_rng(0).random(500)
    found = judge({"v": scores}, scores, np.ones(500, dtype=np.int64), {"x": np.zeros(500)}, {"auc": 0.004})["v"]
    assert found.outcome == "inconclusive"
    assert "both classes" in found.reason
    assert found.metrics[0].drop is None


def test_verdicts_are_the_same_again_and_survive_json() -> None:
    one = rows_of(CLOSE, 300)
    budget = {"auc": 0.01, "f1": 0.01}
    first, again = (judge_one(one, budget, seed=4, slices={"s": one.labels}) for _ in range(2))
    assert first == again
    assert msgspec.json.decode(msgspec.json.encode(first), type=QualityVerdict) == first


def test_a_verdict_does_not_hang_on_its_neighbours_draws() -> None:
    one = rows_of(CLOSE, 500)
    alone = judge({"v": one.variant}, one.source, one.labels, {}, {"auc": 0.01})
    beside = judge({"a": one.source, "v": one.variant}, one.source, one.labels, {}, {"auc": 0.01})
    assert alone["v"].metrics[0].p == beside["v"].metrics[0].p


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": {"auc": 0.0}}, "budget of auc is 0"),
        ({"budget": {"acuracy": 0.1}}, "no metric 'acuracy'"),
        ({"labels": np.zeros(3)}, "labels have 3 rows"),
        ({"slices": {"s": np.zeros(9)}}, "slice 's' have 9 rows"),
        ({"source": np.zeros((50, 3))}, "those of the source model"),
        ({"candidates": {"v": np.full(50, np.nan)}}, "NaN or infinity"),
        ({"labels": np.full(50, 2)}, "needs labels 0 and 1"),
        ({"confidence": 1.0}, "confidence is 1"),
        ({"budget": {"mine": 0.1}, "own_metrics": {"mine": OwnRows(np.zeros(50))}}, "no values for v"),
        ({"source": np.zeros(0), "candidates": {}}, "no confirmation rows"),
    ],
)
def test_what_cannot_be_judged_is_refused(change: dict[str, object], message: str) -> None:
    given: dict[str, object] = {
        "candidates": {"v": np.zeros(50)},
        "source": np.zeros(50),
        "labels": np.arange(50) % 2,
        "slices": {},
        "budget": {"auc": 0.004},
    }
    with pytest.raises(BuildError, match=re.escape(message)) as caught:
        judge(**(given | change))  # type: ignore[arg-type]
    assert caught.value.hint


def test_agreement_counts_and_divergence() -> None:
    source, variant = np.array([0.9, 0.2, 0.6, 0.4]), np.array([0.9, 0.2, 0.4, 0.4])
    found = compare(source, variant, confidence=0.95)
    assert (found.flips, found.agree) == (1, 0.75)
    assert found.divergence_mean == pytest.approx(0.0201 / 4, abs=1e-4)
    assert compare(source, source, confidence=0.95).divergence_mean == 0.0
    certain = compare(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), confidence=0.95)
    assert certain.divergence_mean == pytest.approx(np.log(2))
    with pytest.raises(ValueError, match="cannot be compared"):
        compare(source, variant[:2], confidence=0.95)
