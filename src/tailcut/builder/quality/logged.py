"""Agreement with the source model on logged requests: a check without labels, beside the verdict on the holdout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from tailcut import gate
from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.holdouts.logged import DISTINCT
from tailcut.common.metric_names import AGREEMENT
from tailcut.common.tensors import Array
from tailcut.gate.clustered import effective, number
from tailcut.gate.distributions import share_upper
from tailcut.gate.metrics import decide


def judge(
    scores: Mapping[str, Array],
    rows: Holdout,
    *,
    source: str,
    decisions: bool,
    confidence: float,
    budget: Mapping[str, float],
) -> dict[str, Any]:
    """Compare every variant with the source model on logged rows; plain values by name.

    Args:
        scores: of the judged output, of every variant, the source's included.
        rows: the logged rows.
        decisions: whether outputs stand for classes; else they are compared as values.
        confidence: of the limits, one-sided.
        budget: the build's; where agreement is in it, a variant is refused that is shown to disagree on more.
    """
    own, clusters = scores[source], number(rows.slices[DISTINCT])
    found: dict[str, Any] = {}
    for name, given in scores.items():
        if name == source:
            continue
        if given.shape != own.shape:
            found[name] = {"failed": f"outputs of shape {list(given.shape)}, the source's of {list(own.shape)}"}
            continue
        agreement = gate.compare(own, given, confidence=confidence, decisions=decisions, clusters=clusters)
        plain: dict[str, Any] = msgspec.to_builtins(agreement)
        plain["distinct"] = int(clusters.max()) + 1
        if decisions:
            plain["disagree_lower"] = _lower(decide(own) != decide(given), clusters, 1 - confidence)
            plain["limit"] = budget.get(AGREEMENT)
        found[name] = plain
    return found


def refusal(found: Mapping[str, Any]) -> str:
    """Say why logged rows refuse a variant; empty where they do not."""
    limit, lower = found.get("limit"), found.get("disagree_lower")
    if limit is None or lower is None or lower <= limit:
        return ""
    return (
        f"agreement with the source model on {found['rows']:,} logged rows is {found['agree']:.2%}: at least "
        f"{lower:.2%} differ, the budget of agreement is {limit:.2%}"
    )


def warning(found: Mapping[str, Any], held: Mapping[str, Any]) -> str:
    """Say that logged rows show more disagreement than the holdout allows for; empty where they do not.

    Args:
        held: the agreement on the holdout, of the quality verdict.
    """
    lower, upper = found.get("disagree_lower"), held.get("disagree_upper")
    if lower is None or upper is None or lower <= upper:
        return ""
    return (
        f"it differs from the source model on at least {lower:.2%} of the logged rows, on at most {upper:.2%} of the "
        "holdout's: the holdout is not like the traffic"
    )


def _lower(flipped: Any, clusters: Any, alpha: float) -> float:
    """Return the one-sided lower limit of a share (Clopper and Pearson 1934)."""
    hits, rows = effective(np.asarray(flipped), clusters)
    return 1.0 - share_upper(rows - hits, rows, alpha)
