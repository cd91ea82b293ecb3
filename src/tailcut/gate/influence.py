"""What every row adds to the drop of a metric: the drop is a sum of means of such values, so that its error is known.

For means over rows these are the paired differences themselves. AUC: the structural components of DeLong, DeLong and
Clarke-Pearson 1988, Biometrics 44:837-845 (each positive row's share of negatives below it, and the other way round).
Spearman and F1: their influence functions (the delta method), of the mid-rank form for ties.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.common.tensors import Array
from tailcut.gate.metrics import log_loss_rows, mid_ranks

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]


class InfluenceParts(msgspec.Struct, frozen=True, kw_only=True):
    """A drop as a sum of means over groups of rows: one group, or two where a metric has two kinds of rows.

    Args:
        values: per group, what each of its rows adds, (rows of the group,).
        rows: per group, which rows these are, (rows of the group,).
        damage: what a row adds that goes from a good answer to a bad one, in the metric's unit: what a fault is taken
            to cost that none of these rows shows.
        drop: the metric's own drop; the sum of the means but for rounding.
        fewest: rows, or groups of rows, of the rarest kind: those in which a fault may hide. None: those of the
            smallest group of values.
    """

    values: tuple[Floats, ...]
    rows: tuple[Rows, ...]
    damage: float
    drop: float
    fewest: int | None = None


def mean_parts(source: Floats, variant: Floats, *, rises: bool, damage: float | None = None) -> InfluenceParts:
    """Parts of the drop of a mean over rows.

    Args:
        source, variant: (n,) per-row values of both models.
        rises: whether less is better.
        damage: see ``InfluenceParts``; the spread of the source's own rows where None.
    """
    worse = variant - source if rises else source - variant
    scale = _spread(source) if damage is None else damage
    return InfluenceParts(values=(worse,), rows=(np.arange(worse.size),), damage=scale, drop=float(np.mean(worse)))


def log_loss_parts(labels: Array, source: Array, variant: Array) -> InfluenceParts:
    """Parts of the rise of the log loss.

    A row is damaged by what it costs on average to turn the source's answer over: the label gets what the other class
    had, or an equal part of what all others had; or by the spread of the source's own rows, where that is more. Alone
    the spread would not do: a source that separates the classes has no row of a large loss, and positives of 2 % lie
    beyond the 95th percentile.

    Args:
        labels: (n,) of 0 and 1, or of class numbers.
        source, variant: (n,) probabilities of class 1, or (n, classes) of each.
    """
    before, after = log_loss_rows(labels, source), log_loss_rows(labels, variant)
    others = max(source.shape[1] - 1, 1) if source.ndim == 2 else 1
    # -log((1 - p) / others) with p = exp(-loss), finite as p is clipped below 1.
    turned = -np.log(-np.expm1(-before) / others)
    cost = float(np.mean(turned - before))
    return mean_parts(before, after, rises=True, damage=max(_spread(before), cost))


def auc_parts(labels: Array, source: Array, variant: Array) -> InfluenceParts:
    """Parts of the fall of the AUC: a group of positive rows and one of negative rows.

    Each group's mean is the whole fall, so each counts by half of it, and the other half stands as a constant: a
    slice's parts then say how far its positive rows fell behind all negative ones, and its negative ones rose. A row is
    damaged by what it costs on average to turn the source's answer over, or by the spread of the source's own rows.

    Raises:
        ValueError: one class only.
    """
    positive = np.asarray(labels).astype(bool)
    if positive.all() or not positive.any():
        raise ValueError("AUC needs both classes")
    before, after = placements(positive, source), placements(positive, variant)
    worse = before - after
    rows = tuple(np.flatnonzero(group) for group in (positive, ~positive))
    drop = float(worse[positive].mean())
    # mean(positive) = mean(negative) = drop; their errors add: DeLong's variance is var/n1 + var/n0 of whole values.
    values = tuple(worse[group] - drop / 2.0 for group in rows)
    # Turned over, a row that was on the right side of a share p is on that of 1 - p. The spread of the source's own
    # rows does not know that: where the source separates the classes, all of them stand at 1.
    turned = float(np.mean(2.0 * before[positive] - 1.0))
    damage = max(turned, *(_spread(before[group]) for group in rows))
    return InfluenceParts(values=values, rows=rows, damage=damage, drop=drop)


def placements(positive: npt.NDArray[np.bool_], scores: Array) -> Floats:
    """Share of the other class's rows that each row is on the right side of, ties counting half; (n,)."""
    everywhere, inside = mid_ranks(scores), np.empty(positive.size)
    for group in (positive, ~positive):
        inside[group] = mid_ranks(np.asarray(scores)[group])
    below: Floats = everywhere - inside
    n_positive = int(positive.sum())
    return np.where(positive, below / (positive.size - n_positive), 1.0 - below / n_positive)


def spearman_parts(labels: Array, source: Array, variant: Array) -> InfluenceParts:
    """Parts of the fall of Spearman's correlation with the labels."""
    before, after = _spearman_rows(labels, source), _spearman_rows(labels, variant)
    worse = before - after
    return InfluenceParts(values=(worse,), rows=(np.arange(worse.size),), damage=1.0, drop=float(np.mean(worse)))


def f1_parts(
    truth: npt.NDArray[np.bool_], source: npt.NDArray[np.bool_], variant: npt.NDArray[np.bool_]
) -> InfluenceParts:
    """Parts of the fall of F1 between two models' decisions."""
    worse = _f1_rows(truth, source) - _f1_rows(truth, variant)
    size = float(truth.mean() + source.mean())
    # One positive row missed costs 1 / (positive rows): much, where few are positive.
    damage = 2.0 / size if size else 1.0
    return InfluenceParts(values=(worse,), rows=(np.arange(worse.size),), damage=damage, drop=float(np.mean(worse)))


def within(parts: InfluenceParts, chosen: npt.NDArray[np.bool_]) -> InfluenceParts | None:
    """Parts of the rows that are ``chosen``, for means over rows and AUC; None where there is no such row.

    A group without such a row is left out. AUC: against the rows of the other class in the whole holdout, not in the
    slice alone, as Borkan et al. 2019 (arXiv 1903.04561) compare a subgroup with its background; so that a slice of
    one class can be judged too.
    """
    picks = [chosen[rows] for rows in parts.rows]
    groups = [(values[pick], rows[pick]) for values, rows, pick in zip(parts.values, parts.rows, picks, strict=True)]
    groups = [group for group in groups if group[0].size]
    if not groups:
        return None
    constant = parts.drop / 2.0 if len(parts.values) == 2 else 0.0
    share = 1.0 / len(groups) if len(parts.values) == 2 else 1.0
    values = tuple((group[0] + constant) * share for group in groups)
    drop = float(sum(float(value.mean()) for value in values))
    return InfluenceParts(values=values, rows=tuple(group[1] for group in groups), damage=parts.damage, drop=drop)


def _spearman_rows(labels: Array, scores: Array) -> Floats:
    """Per-row values whose mean is the correlation and whose deviations are its influence function, (n,)."""
    n = np.asarray(scores).size
    a, b = (mid_ranks(values) - (n + 1) / 2.0 for values in (labels, scores))
    a, b = a / n, b / n
    product, a_square, b_square = float(a @ b) / n, float(a @ a) / n, float(b @ b) / n
    if not a_square or not b_square:
        return np.zeros(n)
    of_product = a * b + _moved(labels, b) + _moved(scores, a) - 3.0 * product
    of_a = a * a + 2.0 * _moved(labels, a) - 3.0 * a_square
    of_b = b * b + 2.0 * _moved(scores, b) - 3.0 * b_square
    scale = float(np.sqrt(a_square * b_square))
    value = product / scale
    found: Floats = value + of_product / scale - value / 2.0 * (of_a / a_square + of_b / b_square)
    return found


def _moved(values: Array, weights: Floats) -> Floats:
    """Per row i, the mean over rows k of weights[k] * sign(values[k] - values[i]) / 2: how row i moves the ranks."""
    _, place = np.unique(np.asarray(values), return_inverse=True)
    sums = np.bincount(place, weights=weights)
    upto = np.cumsum(sums)
    above_less_below = (upto[-1] - upto) - (upto - sums)
    found: Floats = above_less_below[place] / (2.0 * weights.size)
    return found


def _f1_rows(truth: npt.NDArray[np.bool_], found: npt.NDArray[np.bool_]) -> Floats:
    both = 2.0 * (truth & found).astype(np.float64)
    size = truth.astype(np.float64) + found.astype(np.float64)
    if not size.any():
        return np.zeros(truth.size)
    value = float(both.mean() / size.mean())
    return value + (both - value * size) / float(size.mean())


def _spread(values: Floats) -> float:
    """Distance between a good and a bad row of the source: the 5th and 95th percentile, the range where those meet."""
    low, high = np.quantile(values, (0.05, 0.95))
    return float(high - low) or float(np.ptp(values))
