"""gate.metrics against scikit-learn on small data, and against the definitions."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics as oracle
from hypothesis import given
from hypothesis import strategies as st

from tailcut.gate import metrics

# Few distinct scores, so that ties are common.
ties = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.5000001, 0.75, 1.0])
pairs = st.lists(st.tuples(st.integers(0, 1), st.one_of(ties, st.floats(0, 1, width=32))), min_size=1, max_size=60)
both_classes = pairs.filter(lambda rows: len({label for label, _ in rows}) == 2)


def split(rows: list[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([label for label, _ in rows]), np.array([score for _, score in rows], dtype=np.float32)


@given(both_classes)
def test_auc_is_sklearns(rows: list[tuple[int, float]]) -> None:
    labels, scores = split(rows)
    assert metrics.auc(labels, scores) == pytest.approx(oracle.roc_auc_score(labels, scores), abs=1e-12)


@given(both_classes)
def test_auc_is_the_share_of_ordered_pairs(rows: list[tuple[int, float]]) -> None:
    labels, scores = split(rows)
    difference = scores[labels == 1][:, None] - scores[labels == 0][None, :]
    assert metrics.auc(labels, scores) == pytest.approx(np.mean((difference > 0) + 0.5 * (difference == 0)), abs=1e-12)


@given(both_classes)
def test_auc_of_turned_round_scores_is_its_complement(rows: list[tuple[int, float]]) -> None:
    labels, scores = split(rows)
    assert metrics.auc(labels, -scores) == pytest.approx(1.0 - metrics.auc(labels, scores), abs=1e-12)


@given(both_classes)
def test_log_loss_is_sklearns(rows: list[tuple[int, float]]) -> None:
    labels, scores = split(rows)
    for dtype, rel in ((np.float32, 1e-5), (np.float64, 1e-9)):
        given = scores.astype(dtype)
        assert metrics.log_loss(labels, given) == pytest.approx(oracle.log_loss(labels, given), rel=rel, abs=1e-7)
    assert np.isfinite(metrics.log_loss(labels, scores))


@given(pairs)
def test_accuracy_and_f1_are_sklearns(rows: list[tuple[int, float]]) -> None:
    labels, scores = split(rows)
    found = (scores > 0.5).astype(int)
    assert metrics.accuracy(labels, scores) == pytest.approx(oracle.accuracy_score(labels, found))
    assert metrics.f1(labels, scores) == pytest.approx(oracle.f1_score(labels, found, zero_division=0))


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=40))
def test_mae_is_sklearns(rows: list[tuple[float, float]]) -> None:
    labels, scores = np.array([a for a, _ in rows]), np.array([b for _, b in rows])
    assert metrics.mae(labels, scores) == pytest.approx(oracle.mean_absolute_error(labels, scores))


@given(st.integers(1, 6), st.integers(2, 8), st.floats(0.01, 100.0), st.integers(0, 2**32 - 1))
def test_cosine_ignores_length_and_sees_direction(rows: int, width: int, scale: float, seed: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(rows, width))
    assert metrics.cosine(vectors, vectors * scale) == pytest.approx(1.0)
    assert metrics.cosine(vectors, -vectors) == pytest.approx(-1.0)


@given(st.sampled_from(sorted(metrics.METRICS)), st.floats(-1, 1), st.floats(-1, 1))
def test_drop_is_positive_exactly_where_the_variant_is_worse(metric: str, source: float, variant: float) -> None:
    worse = variant > source if metric in metrics.RISES else variant < source
    assert (metrics.drop(metric, source, variant) > 0) == worse
