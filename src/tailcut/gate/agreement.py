"""How close two models' outputs are, without labels: called agreement, because both may be wrong together.

Source: Jensen-Shannon divergence after Lin 1991, IEEE Trans. Inf. Theory 37:145-151; it stays finite where a
probability is 0, as the Kullback-Leibler divergence does not.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from tailcut.common.tensors import Array
from tailcut.gate.bootstrap import estimate
from tailcut.gate.clustered import Clusters, clustered, effective
from tailcut.gate.distributions import share_upper
from tailcut.gate.influence import mean_parts
from tailcut.gate.metrics import are_distributions, cosine_rows, decide
from tailcut.gate.verdict import Agreement

Floats = npt.NDArray[np.float64]
Kind = Literal["jensen-shannon", "cosine-distance", "absolute-difference"]


def compare(
    source: Array,
    variant: Array,
    *,
    confidence: float,
    decisions: bool | None = None,
    clusters: Clusters | None = None,
) -> Agreement:
    """Compare two models' outputs on the same rows.

    Args:
        source, variant: (n,) or (n, d) outputs.
        confidence: of the one-sided upper limits.
        decisions: whether outputs are decisions (see ``metrics.decide``); None: where they are probabilities.
        clusters: (n,) the group of each row, numbered from 0, where rows of one group hang together.

    Raises:
        ValueError: different shapes, or no rows.
    """
    if source.shape != variant.shape or not source.shape[0]:
        raise ValueError(f"outputs of {list(source.shape)} and {list(variant.shape)} cannot be compared")
    kind, rows = divergence_rows(source, variant)
    decided = kind == "jensen-shannon" if decisions is None else decisions
    flipped = decide(source) != decide(variant) if decided else np.zeros(len(source), dtype=np.bool_)
    flips = int(flipped.sum())
    hits, worth = (flips, len(source)) if clusters is None else effective(flipped, clusters)
    return Agreement(
        rows=len(source),
        flips=flips if decided else None,
        agree=1.0 - flips / len(source) if decided else None,
        disagree_upper=share_upper(hits, worth, 1.0 - confidence) if decided else None,
        divergence=kind,
        divergence_mean=float(rows.mean()),
        divergence_upper=_upper(rows, 1.0 - confidence, clusters),
    )


def divergence_rows(source: Array, variant: Array) -> tuple[Kind, Floats]:
    """Per-row divergence, (n,), and which one: by whether the source's outputs are probabilities, vectors or values."""
    a, b = np.asarray(source, dtype=np.float64), np.asarray(variant, dtype=np.float64)
    if are_distributions(a, 1e-3) and are_distributions(b, 1e-3):
        a, b = np.clip(a, 0.0, 1.0), np.clip(b, 0.0, 1.0)
        if a.ndim == 1:
            a, b = np.stack([1.0 - a, a], axis=1), np.stack([1.0 - b, b], axis=1)
        middle = (a + b) / 2.0
        return "jensen-shannon", np.maximum(_relative(a, middle) + _relative(b, middle), 0.0) / 2.0
    if a.ndim > 1:
        return "cosine-distance", 1.0 - cosine_rows(a, b)
    return "absolute-difference", np.abs(a - b)


def _relative(p: Floats, q: Floats) -> Floats:
    terms = p * np.log(np.divide(p, q, out=np.ones_like(p), where=p > 0.0))
    found: Floats = terms.sum(axis=1)
    return found


def _upper(rows: Floats, alpha: float, clusters: Clusters | None) -> float | None:
    if rows.size < 2:
        return None
    parts = mean_parts(np.zeros(rows.size), rows, rises=True)
    limit = estimate(parts if clusters is None else clustered(parts, clusters), seed=None).upper(alpha)
    return limit if math.isfinite(limit) else None
