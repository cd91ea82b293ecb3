"""Non-inferiority of per-row correctness on the same rows: Tango's score test at the margin.

Sources: Tango 1998, "Equivalence test and confidence interval for the difference in proportions for the paired-sample
design", Statistics in Medicine 17:891-908: the statistic, its restricted maximum-likelihood estimate, the limits by
inversion. While few rows differ, the statistic's distribution is summed over all tables at that estimate instead of
taken as normal (the "estimated p-value" of Lloyd 2008, Aust. N. Z. J. Stat. 50:329-345): the normal one passes up to
6.5 % and refuses up to 9 % of variants that stand exactly at the margin, where 5 % was promised.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.gate.distributions import crossing, normal_below, normal_quantile

Floats = npt.NDArray[np.float64]

EXACT_ROWS = 40.0
"""Tables are summed while at most so many rows are expected to differ at the margin; the normal is right beyond."""

_ROUNDING = 1e-9


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that both models judged, and those on which only one was right.

    Args:
        lost: rows that the source had right and the variant has wrong.
        won: rows that the source had wrong and the variant has right.
        rows: all rows, at least 1.
    """

    lost: int
    won: int
    rows: int

    @property
    def drop(self) -> float:
        """Fall of the share of right rows."""
        return (self.lost - self.won) / self.rows

    @property
    def discordance(self) -> float:
        """Share of rows on which one model is right and the other wrong, half a row added: none seen is not none."""
        return (self.lost + self.won + 0.5) / (self.rows + 1.0)

    @property
    def se(self) -> float:
        """Standard error of the drop, never 0."""
        return math.sqrt(max(self.discordance - self.drop**2, 0.25 / self.rows) / self.rows)

    @property
    def swapped(self) -> Pairs:
        """The same, the models changed over."""
        return Pairs(lost=self.won, won=self.lost, rows=self.rows)

    def p_below(self, margin: float) -> float:
        """P-value of "the drop is ``margin`` or more": small where it is shown to be less.

        At least (1 - margin) ** rows, the chance of seeing none of the rows of a fault that strikes a share ``margin``
        of them, and just that where no row differs: 200 rows show nothing about 4 in 1,000, however well they went.
        """
        if self.drop >= margin or margin <= 0.0:
            return 1.0
        return max(_p(self, margin), (1.0 - margin) ** self.rows)

    def p_above(self, margin: float) -> float:
        """P-value of "the drop is ``margin`` or less": small where harm beyond it is shown."""
        return 1.0 if self.drop <= margin else _p(self.swapped, -margin)

    def upper(self, alpha: float) -> float:
        """One-sided upper limit of the drop at confidence 1 - ``alpha``: the least margin that ``p_below`` allows."""
        return max(self._limit(alpha), -math.expm1(math.log(alpha) / self.rows))

    def lower(self, alpha: float) -> float:
        """One-sided lower limit of the drop at confidence 1 - ``alpha``."""
        return -self.swapped._limit(alpha)

    def rows_needed(self, drop: float, budget: float, alpha: float, power: float = 0.8) -> int | None:
        """Rows that would decide it were the true drop ``drop``; None where it stands at the budget."""
        return rows_needed(self.discordance, drop, budget, 1.0 - alpha, power)

    def _limit(self, alpha: float) -> float:
        """Least margin that Tango's test accepts."""
        if self.drop >= 1.0:
            return 1.0
        return crossing(lambda margin: _p(self, margin), alpha, self.drop, 1.0 - 1e-12)


def count(source_right: npt.ArrayLike, variant_right: npt.ArrayLike) -> Pairs:
    """Count pairs from two (n,) arrays that are true where a model's class is the label.

    Raises:
        ValueError: no rows, or different numbers of them.
    """
    source, variant = np.asarray(source_right, dtype=np.bool_), np.asarray(variant_right, dtype=np.bool_)
    if source.shape != variant.shape or source.ndim != 1 or not source.size:
        raise ValueError(f"pairs need two (n,) arrays of the same rows, got {source.shape} and {variant.shape}")
    return Pairs(lost=int(np.sum(source & ~variant)), won=int(np.sum(~source & variant)), rows=source.size)


def rows_needed(
    discordance: float, drop_estimate: float, budget: float, confidence: float, power: float = 0.8
) -> int | None:
    """Compute the rows with which the test at ``budget`` decides with chance ``power``.

    The normal approximation, (z_confidence + z_power)^2 (discordance - drop^2) / (budget - drop)^2, and at least the
    rows with which it can decide at all: those where seeing no row differ is rarer than 1 - ``confidence``.

    Args:
        discordance: share of rows on which exactly one of both models is right.
        drop_estimate: the true drop that is assumed; beyond the budget, the rows that would show that.
        budget: largest drop allowed, above 0.
        confidence: one-sided, such as 0.95.
        power: chance of a decision.

    Returns:
        Rows, or None where the assumed drop is the budget: no number of rows decides that.
    """
    gap = budget - drop_estimate
    if gap == 0.0:
        return None
    z = normal_quantile(confidence) + normal_quantile(power)
    needed = z * z * max(discordance - drop_estimate**2, 0.0) / gap**2
    return math.ceil(max(needed, rows_to_see(budget, 1.0 - confidence) if gap > 0 else 1.0))


def rows_to_see(share: float, alpha: float) -> float:
    """Rows with which a fault that strikes ``share`` of them stays unseen with chance ``alpha``."""
    return math.log(alpha) / math.log1p(-share) if share < 1.0 else 1.0


def statistic(lost: Floats, won: Floats, rows: int, margin: float) -> tuple[Floats, Floats]:
    """Compute Tango's statistic, and the share of won rows estimated under drop = ``margin``.

    Args:
        lost, won: counts that broadcast with one another.
        rows: all rows.
        margin: the drop of the hypothesis, -1 < margin < 1.
    """
    linear = -lost - won + (2.0 * rows - lost + won) * margin
    constant = -won * margin * (1.0 - margin)
    root = np.sqrt(np.maximum(linear * linear - 8.0 * rows * constant, 0.0))
    # Its range: both shares stay probabilities. Rounding alone would leave it.
    share = np.clip((root - linear) / (4.0 * rows), max(0.0, -margin), (1.0 - margin) / 2.0)
    variance = rows * (2.0 * share + margin * (1.0 - margin))
    distance = lost - won - rows * margin
    score = np.divide(distance, np.sqrt(np.maximum(variance, 0.0)), out=np.zeros_like(share), where=variance > 0.0)
    return score, share


def p_value(lost: float, won: float, rows: int, margin: float) -> float:
    """Chance, were the drop ``margin``, of a statistic as low as that of these counts, which need not be whole."""
    one = statistic(np.array([lost], dtype=np.float64), np.array([won], dtype=np.float64), rows, margin)
    seen, share = float(one[0][0]), float(one[1][0])
    if rows * (2.0 * share + margin) > EXACT_ROWS:
        return normal_below(seen)
    all_lost, all_won = _range(rows, share + margin), _range(rows, share)
    scores, _ = statistic(all_lost[:, None], all_won[None, :], rows, margin)
    chances = _chances(all_lost, all_won, rows, share + margin, share)
    return min(float(chances[scores <= seen + _ROUNDING].sum()), 1.0)


def _p(pairs: Pairs, margin: float) -> float:
    return p_value(pairs.lost, pairs.won, pairs.rows, margin)


def _range(rows: int, share: float) -> Floats:
    """Counts that may occur: up to nine standard deviations above the mean, and a few more for the smallest means."""
    mean = rows * share
    return np.arange(min(rows, int(mean + 9.0 * math.sqrt(mean + 1.0) + 10.0)) + 1, dtype=np.float64)


def _chances(lost: Floats, won: Floats, rows: int, lost_share: float, won_share: float) -> Floats:
    """Trinomial probability of every (lost, won) pair, (len(lost), len(won)); those of more than ``rows`` are 0."""
    same = rows - lost[:, None] - won[None, :]
    log_same = math.log(max(1.0 - lost_share - won_share, 1e-300))
    logs = math.lgamma(rows + 1.0) - _log_factorials(np.maximum(same, 0.0)) + same * log_same
    logs = logs + _log_terms(lost, lost_share)[:, None] + _log_terms(won, won_share)[None, :]
    return np.where(same >= 0.0, np.exp(np.minimum(logs, 0.0)), 0.0)


def _log_terms(counts: Floats, share: float) -> Floats:
    powers = np.where(counts > 0, counts * math.log(max(share, 1e-300)), 0.0)
    return powers - _log_factorials(counts)


def _log_factorials(counts: Floats) -> Floats:
    """Logarithms of n! of a few distinct whole numbers."""
    low, high = int(counts.min()), int(counts.max())
    table = math.lgamma(low + 1.0) + np.concatenate(([0.0], np.cumsum(np.log(np.arange(low + 1.0, high + 1.0)))))
    return table[(counts - low).astype(np.intp)]
