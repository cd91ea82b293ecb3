"""gate.metrics: worked examples and edges."""

from __future__ import annotations

import numpy as np
import pytest

from tailcut.common.metric_names import METRIC_NAMES
from tailcut.gate import metrics


def test_auc_of_one_class_says_what_the_labels_hold() -> None:
    with pytest.raises(ValueError, match="3 positive and 0 negative"):
        metrics.auc(np.ones(3), np.array([0.1, 0.2, 0.3]))


def test_auc_of_a_constant_answer_is_one_half() -> None:
    assert metrics.auc(np.array([0, 1, 1, 0, 1]), np.full(5, 0.3)) == 0.5


def test_log_loss_of_a_certain_mistake_is_the_clip() -> None:
    """Which is the resolution of the scores' dtype, as in scikit-learn."""
    for dtype, clip in ((np.float32, 2.0**-23), (np.float64, 2.0**-52)):
        assert metrics.log_loss(np.array([1]), np.array([0.0], dtype)) == pytest.approx(-np.log(clip))


def test_accuracy_takes_the_largest_column_of_several_classes() -> None:
    scores = np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    assert metrics.accuracy(np.array([1, 0, 1]), scores) == pytest.approx(2 / 3)


def test_cosine_of_a_zero_vector_with_another_is_zero_and_with_itself_one() -> None:
    assert metrics.cosine(np.array([[0.0, 0.0]]), np.array([[1.0, 0.0]])) == 0.0
    assert metrics.cosine(np.zeros((1, 2)), np.zeros((1, 2))) == 1.0


def test_probabilities_may_leave_zero_and_one_by_rounding() -> None:
    assert metrics.are_probabilities(np.array([[-3.6e-07, 1.0000004]], np.float32))
    assert not metrics.are_probabilities(np.array([-0.001, 0.5]))
    assert not metrics.are_probabilities(np.array([0.5, 1.001]))


def test_drop_of_log_loss_is_its_rise_and_of_auc_its_fall() -> None:
    assert metrics.drop("log_loss", 0.40, 0.41) == pytest.approx(0.01)
    assert metrics.drop("auc", 0.75, 0.74) == pytest.approx(0.01)


def test_every_metric_that_a_manifest_may_name_can_be_computed() -> None:
    assert set(metrics.METRICS) == set(METRIC_NAMES)
    assert set(METRIC_NAMES) >= metrics.RISES | metrics.PROBABILITIES | metrics.BINARY


def test_a_tie_is_the_first_class_in_either_form() -> None:
    second = np.array([0.5, 0.25, 0.75], np.float32)
    assert metrics.decide(second).tolist() == [0, 0, 1]
    assert metrics.decide(np.stack([1 - second, second], axis=1)).tolist() == [0, 0, 1]
