"""Rows that hang together: those of one group, such as one patient's or one session's, are no independent witnesses.

A fault that strikes a patient strikes all of that patient's rows. Taken as independent they would make every limit too
narrow, so the group is what is counted: variances are those between groups, groups are drawn by the bootstrap, and
what was never seen is what no group showed.

Sources: the variance of a difference of paired proportions between clusters of unequal size from Obuchowski 1998, "On
the comparison of correlated proportions for clustered data", Statistics in Medicine 17:1495-1507 (Durkalski et al.
2003, ibid. 22:2417-2428, compare such tests); of AUC from Obuchowski 1997, Biometrics 53:567-578, which like all
metrics here is linear in what each row adds. Freedom of a variance after Satterthwaite 1946, with the groups' own
kurtosis: where few groups differ at all, their spread is hardly known. Shares: effective rows in the limits of Clopper
and Pearson, Korn and Graubard 1998, Survey Methodology 24:193-201.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.common.tensors import Array
from tailcut.gate.distributions import crossing, normal_quantile, student_below
from tailcut.gate.influence import InfluenceParts
from tailcut.gate.paired import Pairs, count, p_value, rows_to_see

Floats = npt.NDArray[np.float64]
Clusters = npt.NDArray[np.intp]

LEAST_GROUPS = 10
"""A slice of rows from fewer groups is not judged: the spread between so few is hardly known."""

UNSEEN_GROUPS = 2
"""Groups as bad as the worst one seen that the variance of correctness reckons with. Where a fault strikes few groups,
the samples that happen to miss them show both a small drop and a small spread; simulated with 100 groups of 12 rows
and an intra-group correlation of 0.3, 7 % of variants at the budget passed without them, and 4 % with them."""

_LEAST, _MOST = 1e-300, 1.0 - 1e-12


class ClusteredPairs(msgspec.Struct, frozen=True, kw_only=True):
    """Tango's test on rows in groups: as if there were only as many rows as the groups are worth.

    Args:
        pairs: all rows, as if they were independent.
        groups: how many there are, at least 2.
        effect: the design effect, at least 1: how many times the variance of the drop is that of independent rows.
        freedom: degrees of freedom of that variance.
    """

    pairs: Pairs
    groups: int
    effect: float
    freedom: float

    @property
    def drop(self) -> float:
        """Fall of the share of right rows."""
        return self.pairs.drop

    @property
    def se(self) -> float:
        """Standard error of the drop, never 0."""
        return self.pairs.se * math.sqrt(self.effect)

    def p_below(self, margin: float) -> float:
        """P-value of "the drop is ``margin`` or more": small where it is shown to be less.

        At least the chance that no group shows a fault that strikes a share ``margin`` of the groups.
        """
        if self.drop >= margin or margin <= 0.0:
            return 1.0
        return max(self._p(self.pairs, margin), (1.0 - margin) ** self.groups)

    def p_above(self, margin: float) -> float:
        """P-value of "the drop is ``margin`` or less": small where harm beyond it is shown."""
        return 1.0 if self.drop <= margin else self._p(self.pairs.swapped, -margin)

    def upper(self, alpha: float) -> float:
        """One-sided upper limit of the drop at confidence 1 - ``alpha``."""
        return max(self._limit(self.pairs, alpha), -math.expm1(math.log(alpha) / self.groups))

    def lower(self, alpha: float) -> float:
        """One-sided lower limit of the drop at confidence 1 - ``alpha``."""
        return -self._limit(self.pairs.swapped, alpha)

    def rows_needed(self, drop: float, budget: float, alpha: float, power: float = 0.8) -> int | None:
        """GROUPS that would decide it were the true drop ``drop``; None where it stands at the budget."""
        gap = budget - drop
        if gap == 0.0:
            return None
        z = normal_quantile(1.0 - alpha) + normal_quantile(power)
        needed = self.groups * (z * self.se / gap) ** 2
        return math.ceil(max(needed, rows_to_see(budget, alpha) if gap > 0 else 1.0))

    def _limit(self, pairs: Pairs, alpha: float) -> float:
        if pairs.drop >= 1.0:
            return 1.0
        return crossing(lambda margin: self._p(pairs, margin), alpha, pairs.drop, 1.0 - 1e-12)

    def _p(self, pairs: Pairs, margin: float) -> float:
        """Tango's p on the effective rows, its normal value read in Student's distribution."""
        rows = max(int(pairs.rows / self.effect), 1)
        p = p_value(pairs.lost * rows / pairs.rows, pairs.won * rows / pairs.rows, rows, margin)
        return student_below(normal_quantile(min(max(p, _LEAST), _MOST)), self.freedom)


def clustered_pairs(source_right: npt.ArrayLike, variant_right: npt.ArrayLike, clusters: Clusters) -> ClusteredPairs:
    """Count pairs of rows in groups.

    Args:
        source_right, variant_right: (n,), true where a model's class is the label.
        clusters: (n,) the group of each row, numbered from 0, none left out.

    Raises:
        ValueError: fewer than 2 groups.
    """
    pairs = count(source_right, variant_right)
    groups = _groups(clusters)
    worse = np.asarray(source_right, dtype=np.float64) - np.asarray(variant_right, dtype=np.float64)
    # Of each group, what it adds to the drop above what its rows would at the mean; Obuchowski 1998, section 2.
    added = np.bincount(clusters, worse - pairs.drop, groups) / pairs.rows
    between = groups / (groups - 1.0) * float(added @ added) + UNSEEN_GROUPS * float((added * added).max())
    within = max((pairs.lost + pairs.won) / pairs.rows - pairs.drop**2, 0.0) / pairs.rows
    effect = between / within if within > 0.0 else 1.0
    return ClusteredPairs(pairs=pairs, groups=groups, effect=max(effect, 1.0), freedom=_freedom(added))


def clustered(parts: InfluenceParts, clusters: Clusters) -> InfluenceParts:
    """Parts of groups from parts of rows: one group of values, one value for each cluster, whose mean is the drop.

    Of AUC the groups that have a positive row count, or those that have a negative one, whichever are fewer: a fault of
    the positive rows is not seen in a thousand groups that have none.

    Args:
        parts: of the rows, whose numbers are places in ``clusters``.
        clusters: (n,) the group of each row, numbered from 0; those without a row in ``parts`` do not count.

    Raises:
        ValueError: fewer than 2 groups have a row of each kind.
    """
    present, places = np.unique(np.concatenate([clusters[rows] for rows in parts.rows]), return_inverse=True)
    if present.size < 2:
        raise ValueError(f"{_of(present.size)}: there is no spread between groups")
    fewest = min(np.unique(clusters[rows]).size for rows in parts.rows)
    if fewest < 2:
        raise ValueError(f"the rows of one class belong to {fewest} group: there is no spread between groups")
    added = np.concatenate([(values - values.mean()) / values.size for values in parts.values])
    totals = np.asarray(np.bincount(places, added, present.size) * present.size + parts.drop, dtype=np.float64)
    return InfluenceParts(
        values=(totals,),
        rows=(np.arange(present.size),),
        damage=parts.damage,
        drop=parts.drop,
        fewest=fewest,
    )


def effective(hits: npt.NDArray[np.bool_], clusters: Clusters) -> tuple[float, float]:
    """Hits and rows that rows in groups are worth, for the limits of a share."""
    groups, share = _groups(clusters), float(hits.mean())
    added = np.bincount(clusters, hits - share, groups) / hits.size
    between = groups / (groups - 1.0) * float(added @ added)
    alone = share * (1.0 - share) / hits.size
    rows = hits.size / max(between / alone, 1.0) if alone else float(groups)
    return share * rows, rows


def number(values: Array) -> Clusters:
    """Number the groups of a column, (n,), from 0."""
    _, places = np.unique(values.astype(np.str_) if values.dtype.kind == "O" else values, return_inverse=True)
    return np.asarray(places, dtype=np.intp)


def _groups(clusters: Clusters) -> int:
    found = int(clusters.max()) + 1 if clusters.size else 0
    if found < 2:
        raise ValueError(f"{_of(found)}: there is no spread between groups")
    return found


def _of(groups: int) -> str:
    return f"the rows belong to {groups} group{'' if groups == 1 else 's'}"


def _freedom(added: Floats) -> float:
    """Satterthwaite's degrees of freedom of a sum of squares: 2 / its relative variance, at most groups - 1."""
    squares = added * added
    total, fourth = float(squares.sum()), float((squares * squares).sum())
    if not total:
        return float(added.size - 1)
    spread = added.size * fourth / total**2 - 1.0
    return max(1.0, min(added.size - 1.0, 2.0 * added.size / spread if spread > 0.0 else math.inf))
