"""Agreement with the source model on logged requests: a check without labels, beside the verdict on the holdout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tailcut import gate
from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.holdouts.logged import DISTINCT
from tailcut.common.metric_names import AGREEMENT
from tailcut.common.tensors import Array
from tailcut.gate import Agreement
from tailcut.gate.clustered import effective, number
from tailcut.gate.distributions import share_upper
from tailcut.gate.metrics import decide
from tailcut.registry.evidence import LoggedAgreement


def judge(
    scores: Mapping[str, Array],
    rows: Holdout,
    *,
    source: str,
    decisions: bool,
    confidence: float,
    budget: Mapping[str, float],
) -> dict[str, LoggedAgreement]:
    """Compare every variant with the source model on logged rows, by name.

    Args:
        scores: of the judged output, of every variant, the source's included.
        rows: the logged rows.
        decisions: whether outputs stand for classes; else they are compared as values.
        confidence: of the limits, one-sided.
        budget: the build's; where agreement is in it, a variant is refused that is shown to disagree on more.
    """
    own, clusters = scores[source], number(rows.slices[DISTINCT])
    found: dict[str, LoggedAgreement] = {}
    for name, given in scores.items():
        if name == source:
            continue
        if given.shape != own.shape:
            failed = f"outputs of shape {list(given.shape)}, the source's of {list(own.shape)}"
            found[name] = LoggedAgreement(failed=failed)
            continue
        found[name] = LoggedAgreement(
            agreement=gate.compare(own, given, confidence=confidence, decisions=decisions, clusters=clusters),
            distinct=int(clusters.max()) + 1,
            disagree_lower=_lower(decide(own) != decide(given), clusters, 1 - confidence) if decisions else None,
            limit=budget.get(AGREEMENT) if decisions else None,
        )
    return found


def refusal(found: LoggedAgreement) -> str:
    """Say why logged rows refuse a variant; empty where they do not."""
    limit, lower, agreement = found.limit, found.disagree_lower, found.agreement
    if limit is None or lower is None or agreement is None or lower <= limit:
        return ""
    return (
        f"agreement with the source model on {agreement.rows:,} logged rows is {agreement.agree:.2%}: at least "
        f"{lower:.2%} differ, the budget of agreement is {limit:.2%}"
    )


def warning(found: LoggedAgreement, held: Agreement) -> str:
    """Say that logged rows show more disagreement than the holdout allows for; empty where they do not.

    Args:
        held: the agreement on the holdout, of the quality verdict.
    """
    lower, upper = found.disagree_lower, held.disagree_upper
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
