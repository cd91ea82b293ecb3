"""What each metric's verdict rests on: which test suits it, on all rows and on those of a slice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tailcut.common.metric_names import AGREEMENT
from tailcut.common.tensors import Array
from tailcut.gate.bootstrap import RESAMPLES, estimate
from tailcut.gate.clustered import LEAST_GROUPS, Clusters, clustered, clustered_pairs, number
from tailcut.gate.influence import (
    InfluenceParts,
    auc_parts,
    f1_parts,
    log_loss_parts,
    mean_parts,
    spearman_parts,
    within,
)
from tailcut.gate.metrics import (
    BINARY,
    METRICS,
    absolute_error_rows,
    cosine_rows,
    decide,
    log_loss_rows,
    right_rows,
)
from tailcut.gate.paired import count

Bools = npt.NDArray[np.bool_]


class DropEvidence(Protocol):
    """A drop and what may be said of it; ``paired.Pairs`` and ``bootstrap.Estimate``."""

    @property
    def drop(self) -> float:
        """How much worse the variant is, in the metric's unit."""

    @property
    def se(self) -> float:
        """Standard error of the drop."""

    def p_below(self, margin: float) -> float:
        """P-value of "the drop is ``margin`` or more"."""

    def p_above(self, margin: float) -> float:
        """P-value of "the drop is ``margin`` or less"."""

    def upper(self, alpha: float) -> float:
        """One-sided upper limit of the drop."""

    def lower(self, alpha: float) -> float:
        """One-sided lower limit of the drop."""

    def rows_needed(self, drop: float, budget: float, alpha: float, power: float = 0.8) -> int | None:
        """Rows (where they come in groups: groups) that would decide it were the true drop ``drop``."""


@dataclass(frozen=True)
class OwnRows:
    """Per-row values of a user's metric, more being better.

    Attributes:
        source: (n,) of the source model.
        variants: variant -> (n,).
    """

    source: Array
    variants: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """One metric of one variant and the source model, row by row.

    Attributes:
        metric: its name.
        labels: (n,); not looked at for ``cosine`` and user metrics.
        source, variant: scores as the models give them, or per-row values where ``own``.
        own: whether this is a user's metric.
        clusters: (n,) the group of each row, numbered from 0, where rows of one group hang together.
    """

    metric: str
    labels: Array | None
    source: Array
    variant: Array
    own: bool = False
    clusters: Clusters | None = None

    def values(self) -> tuple[float, float]:
        """The metric of the source and of the variant. Raises ValueError where these rows do not give it."""
        if self.own:
            return float(self.source.astype(np.float64).mean()), float(self.variant.astype(np.float64).mean())
        if self.metric == "cosine":
            return 1.0, METRICS["cosine"](self.source, self.variant)
        if self.metric == "log_loss":
            rows = (float(np.mean(log_loss_rows(self._labels, scores))) for scores in (self.source, self.variant))
            return next(rows), next(rows)
        measure = METRICS[self.metric]
        return measure(self._labels, self._scores(self.source)), measure(self._labels, self._scores(self.variant))

    def whole(self, rng: np.random.Generator, resamples: int = RESAMPLES) -> DropEvidence:
        """Evidence of all rows. Raises ValueError where they are too few to have a spread, or of one class."""
        if self.metric == "accuracy" and not self.own:
            return self._pairs()
        return estimate(self._grouped(self.parts()), seed=rng, resamples=resamples)

    def sliced(self, chosen: Bools, parts: InfluenceParts | None) -> DropEvidence:
        """Evidence of the rows where ``chosen``, without drawing.

        Args:
            chosen: (n,).
            parts: ``parts()`` where the metric has them, computed once for all slices; None for accuracy.

        Raises:
            ValueError: these rows are too few, or give no such metric.
        """
        clusters = None if self.clusters is None else number(self.clusters[chosen])
        if clusters is not None and (found := int(clusters.max(initial=-1)) + 1) < LEAST_GROUPS:
            raise ValueError(f"its rows belong to {found} groups; at least {LEAST_GROUPS} are needed")
        if parts is None or self.metric in ("f1", "spearman"):
            labels = None if self.labels is None else self.labels[chosen]
            part = Comparison(self.metric, labels, self.source[chosen], self.variant[chosen], self.own, clusters)
            return part._pairs() if parts is None else estimate(part._grouped(part.parts()), seed=None)
        inside = within(parts, chosen)
        if inside is None:
            raise ValueError("no rows")
        return estimate(self._grouped(inside), seed=None)

    def _pairs(self) -> DropEvidence:
        right = right_rows(self._labels, self.source), right_rows(self._labels, self.variant)
        return count(*right) if self.clusters is None else clustered_pairs(*right, self.clusters)

    def _grouped(self, parts: InfluenceParts) -> InfluenceParts:
        return parts if self.clusters is None else clustered(parts, self.clusters)

    def parts(self) -> InfluenceParts:
        """What each row adds to the drop. Raises ValueError where these rows do not give the metric."""
        if self.own:
            # The source agrees with itself on every row: that its own rows have no spread says nothing of a fault.
            damage = 1.0 if self.metric == AGREEMENT else None
            return mean_parts(
                self.source.astype(np.float64), self.variant.astype(np.float64), rises=False, damage=damage
            )
        if self.metric == "cosine":
            similar = cosine_rows(self.source, self.variant)
            return mean_parts(np.ones(similar.size), similar, rises=False, damage=1.0)
        if self.metric == "mae":
            errors = (absolute_error_rows(self._labels, scores) for scores in (self.source, self.variant))
            return mean_parts(*errors, rises=True)
        if self.metric == "log_loss":
            return log_loss_parts(self._labels, self.source, self.variant)
        if self.metric in ("auc", "spearman"):
            of = auc_parts if self.metric == "auc" else spearman_parts
            return of(self._labels, self._scores(self.source), self._scores(self.variant))
        truth, before, after = (
            values.astype(np.bool_) for values in (self._labels, decide(self.source), decide(self.variant))
        )
        return f1_parts(truth, before, after)

    @property
    def _labels(self) -> Array:
        if self.labels is None:
            raise ValueError(f"{self.metric} needs labels")
        return self.labels

    def _scores(self, scores: Array) -> Array:
        """Scores of class 1 where a binary model gives a column for each class."""
        return scores[:, 1] if self.metric in BINARY and scores.ndim == 2 and scores.shape[1] == 2 else scores
