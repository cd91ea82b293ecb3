"""Quality metrics of a model's scores on labelled rows, in NumPy alone.

Sources: AUC as the Mann-Whitney statistic with mid-ranks for ties (Hanley and McNeil 1982, Radiology 143:29-36);
log loss is the mean negative Bernoulli log-likelihood; F1 after van Rijsbergen 1979.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tailcut.common.tensors import Array

Floats = npt.NDArray[np.float64]


def auc(labels: Array, scores: Array) -> float:
    """Area under the ROC curve: the chance that a positive row scores above a negative one, ties counting half.

    Args:
        labels: (n,) of 0 and 1, both present.
        scores: (n,) of anything that orders.

    Raises:
        ValueError: one class only.
    """
    positive = np.asarray(labels).astype(bool)
    n_positive = int(positive.sum())
    n_negative = positive.size - n_positive
    if not n_positive or not n_negative:
        raise ValueError(f"AUC needs both classes, the labels are {n_positive} positive and {n_negative} negative rows")
    rank_sum = float(mid_ranks(scores)[positive].sum())
    return (rank_sum - n_positive * (n_positive + 1) / 2.0) / (float(n_positive) * n_negative)


def log_loss_rows(labels: Array, scores: Array) -> Floats:
    """Negative log-likelihood per row in nats, clipped to be finite.

    Args:
        labels: (n,) of 0 and 1, or of class numbers.
        scores: (n,) probabilities of class 1, or (n, classes) probabilities of each. They keep the resolution of
            their dtype away from 0 and 1, as in scikit-learn's log_loss.
    """
    given = np.asarray(scores)
    dtype: Any = given.dtype if given.dtype.kind == "f" else np.float64
    clip = float(np.finfo(dtype).eps)
    p: Floats = np.clip(given.astype(np.float64), clip, 1.0 - clip)
    if p.ndim == 2:
        return -np.log(p[np.arange(len(p)), np.asarray(labels).astype(np.intp)])
    y = np.asarray(labels).astype(np.float64)
    return -(y * np.log(p) + (1.0 - y) * np.log1p(-p))


def log_loss(labels: Array, scores: Array) -> float:
    """Mean of ``log_loss_rows``."""
    return float(np.mean(log_loss_rows(labels, scores)))


def are_probabilities(scores: Array) -> bool:
    """Tell whether scores of any shape lie in [0, 1], but for what rounding in float32 adds; NaN does not."""
    return float(np.min(scores)) >= -_ROUNDING and float(np.max(scores)) <= 1.0 + _ROUNDING


def are_distributions(scores: Array, tolerance: float) -> bool:
    """Tell whether scores are probabilities of class 1, or of every class: rows that sum to 1 but for ``tolerance``."""
    if scores.ndim > 2 or not are_probabilities(scores):
        return False
    return scores.ndim == 1 or bool(np.allclose(scores.sum(axis=1), 1.0, atol=tolerance))


def decide(scores: Array) -> Array:
    """Class per row: 1 above a probability of 0.5 for (n,) scores, the largest column for (n, classes).

    A tie is the first class, as in the libraries' own predict.
    """
    values = np.asarray(scores, dtype=np.float64)
    classes: Array = np.argmax(values, axis=1) if values.ndim == 2 else (values > 0.5).astype(np.int64)
    return classes


def right_rows(labels: Array, scores: Array) -> npt.NDArray[np.bool_]:
    """Whether each row's class (see ``decide``) is the (n,) label."""
    right: npt.NDArray[np.bool_] = decide(scores) == np.asarray(labels)
    return right


def accuracy(labels: Array, scores: Array) -> float:
    """Share of rows whose class (see ``decide``) is the (n,) label."""
    return float(np.mean(right_rows(labels, scores)))


def f1(labels: Array, scores: Array) -> float:
    """Harmonic mean of precision and recall of class 1 at 0.5; 0 where nothing is positive and nothing found."""
    truth, found = np.asarray(labels).astype(bool), decide(scores).astype(bool)
    both = 2.0 * float(np.sum(truth & found))
    return both / (both + float(np.sum(truth != found))) if both else 0.0


def absolute_error_rows(labels: Array, scores: Array) -> Floats:
    """Absolute error per row, in the label's unit: the mean over what a row holds, where that is several values."""
    error: Floats = np.abs(np.asarray(scores, dtype=np.float64) - np.asarray(labels, dtype=np.float64))
    return error if error.ndim == 1 else error.reshape(len(error), -1).mean(axis=1)


def mae(labels: Array, scores: Array) -> float:
    """Mean absolute error, in the label's unit."""
    return float(np.mean(absolute_error_rows(labels, scores)))


def mid_ranks(values: Array) -> Floats:
    """Rank of each of (n,) values from 1 on, those of equal values averaged."""
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    found: Floats = (ends - (counts - 1) / 2.0)[place]
    return found


def spearman(labels: Array, scores: Array) -> float:
    """Spearman's rank correlation of (n,) scores with (n,) labels: Pearson's of the mid-ranks, ties and all.

    0 where the scores are constant: they order nothing.

    Raises:
        ValueError: constant labels.
    """
    a, b = mid_ranks(labels), mid_ranks(scores)
    a, b = a - a.mean(), b - b.mean()
    if not a.any():
        raise ValueError(f"Spearman needs labels that differ, all {a.size} are equal")
    return float((a @ b) / np.sqrt((a @ a) * (b @ b))) if b.any() else 0.0


def cosine_rows(reference: Array, outputs: Array) -> Floats:
    """Cosine per row between (n, d) reference and output vectors; two zero vectors agree (1)."""
    a, b = np.asarray(reference, dtype=np.float64), np.asarray(outputs, dtype=np.float64)
    a, b = a.reshape(a.shape[0], -1), b.reshape(b.shape[0], -1)
    lengths: Floats = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    dots: Floats = np.einsum("ij,ij->i", a, b)
    both_zero = ~a.any(axis=1) & ~b.any(axis=1)
    similarity: Floats = np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths > 0)
    return np.where(both_zero, 1.0, similarity)


def cosine(reference: Array, outputs: Array) -> float:
    """Mean of ``cosine_rows``."""
    return float(np.mean(cosine_rows(reference, outputs)))


METRICS: dict[str, Callable[[Array, Array], float]] = {
    "auc": auc,
    "log_loss": log_loss,
    "accuracy": accuracy,
    "f1": f1,
    "mae": mae,
    "spearman": spearman,
    "cosine": cosine,
}
"""Every metric of ``METRIC_NAMES``. ``cosine`` compares with the source model's outputs, all others with the labels."""

RISES = frozenset({"log_loss", "mae"})
"""Metrics of which less is better: a rise is the drop."""

_ROUNDING = 1e-5
"""A float32 sum over a thousand trees comes this far beyond 0 and 1."""

PROBABILITIES = frozenset({"auc", "log_loss", "accuracy", "f1"})
"""Metrics whose scores must be probabilities in [0, 1]."""

BINARY = frozenset({"auc", "log_loss", "f1"})
"""Metrics that need (n,) scores and labels of 0 and 1."""


def drop(metric: str, source: float, variant: float) -> float:
    """How much worse the variant is than the source, in the metric's own unit; negative where it is better."""
    return variant - source if metric in RISES else source - variant
