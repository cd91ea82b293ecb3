"""The gate's verdict in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tailcut.gate.metrics import RISES
from tailcut.gate.verdict import Agreement, MetricVerdict, Outcome, SliceVerdict

_ROUNDING = 1e-12
"""A drop below it is rounding of a sum over rows."""


class Facts(NamedTuple):
    """What a reason is told besides verdicts.

    Attributes:
        confidence: the manifest's, for the limits of harm.
        labels: whether the rows have any.
        groups: that the rows come in; None where each row stands for itself.
    """

    confidence: float
    labels: bool
    groups: int | None = None


def reason_of(
    outcome: Outcome,
    metrics: Sequence[MetricVerdict],
    slices: Sequence[SliceVerdict],
    agreement: Agreement,
    facts: Facts,
) -> str:
    """Say why a variant passed, failed or stayed open.

    Args:
        outcome: what is explained.
        metrics, slices: all verdicts of the variant.
        agreement: what can be said without labels.
        facts: of the rows and the manifest.
    """
    if outcome == "fail":
        hurt = [_harm(one, facts.confidence) for one in metrics if one.outcome == "fail"]
        return "; ".join((*hurt, *_hurt_slices(slices)))
    if outcome == "pass":
        return "; ".join(f"{_moved(one)}, at most {_number(one.upper)}, budget {one.budget:g}" for one in metrics)
    if not metrics:
        return f"no metric has a budget; {agreed(agreement)}"
    opened = _opened([one for one in metrics if one.outcome == "inconclusive"], facts.groups)
    return opened if facts.labels else f"{opened}; without labels there is {agreed(agreement)}"


def agreed(agreement: Agreement) -> str:
    """Say how close the outputs are, without a word about quality."""
    spread = f"mean {agreement.divergence.replace('-', ' ')} {agreement.divergence_mean:.3g}"
    if agreement.agree is None:
        return f"agreement with the source model: {spread}"
    return (
        f"agreement with the source model on {agreement.agree:.2%} of {agreement.rows:,} rows "
        f"(at most {agreement.disagree_upper:.2%} differ), {spread}"
    )


def reuse_warning(uses: int, confidence: float, alpha: float) -> str:
    """Warn where the confirmation rows were used before; empty where not."""
    if not uses:
        return ""
    times = "once" if uses == 1 else f"{uses} times"
    return (
        f"these confirmation rows already gave a verdict {times}: this one needs {1 - alpha:.4%} confidence "
        f"instead of {confidence:.0%}; new rows need no such correction"
    )


def rounded_up(rows: int) -> int:
    """Round rows up to two digits: a plan is no more exact than that."""
    step: int = 10 ** max(len(str(rows)) - 2, 0)
    return -(-rows // step) * step


def _harm(one: MetricVerdict, confidence: float) -> str:
    return f"{_moved(one)}, at least {_number(one.lower)} with {confidence:.0%} confidence, budget {one.budget:g}"


def _hurt_slices(slices: Sequence[SliceVerdict]) -> list[str]:
    hurt = sorted((one for one in slices if one.outcome == "fail"), key=lambda one: one.p_adjusted)
    more = f" (and {len(hurt) - 3} more slices)" if len(hurt) > 3 else ""
    return [
        f"slice {one.slice}={one.value}: {_words(one.metric, one.drop)} in {one.rows:,} rows, "
        f"shown to be beyond {one.limit:g}{more if place == 2 else ''}"
        for place, one in enumerate(hurt[:3])
    ]


def _opened(metrics: Sequence[MetricVerdict], groups: int | None) -> str:
    rows = f"{metrics[0].rows:,} rows" + (f" in {groups:,} groups" if groups else "")
    unknown = [one for one in metrics if one.drop is None or one.note]
    known = [one for one in metrics if one not in unknown]
    parts = [f"{one.metric} cannot be judged on these {rows}: {one.note}" for one in unknown]
    seen = "; ".join(_excluded(one, rows) for one in known)
    if known and all(one.rows_needed is not None for one in known):
        parts.append(f"{seen}: {_plan(known)} would decide it")
    elif known:
        parts.append(f"{seen}: a drop this near the budget cannot be decided with more rows")
    return "; ".join(parts)


def _excluded(one: MetricVerdict, rows: str) -> str:
    """Say what drop was seen, and which drops the rows can exclude."""
    seen = f"no drop of {one.metric} seen" if one.drop is not None and one.drop <= _ROUNDING else _moved(one)
    if one.upper is None:
        return f"{seen}; {rows} can exclude no drop, budget {one.budget:g}"
    return f"{seen}; {rows} can exclude drops above {_number(one.upper)}, budget {one.budget:g}"


def _plan(metrics: Sequence[MetricVerdict]) -> str:
    """Say how many rows decide all of them; where rows come in groups it is groups that count."""
    rows = rounded_up(max(one.rows_needed or 0 for one in metrics))
    groups = [one.groups_needed for one in metrics if one.groups_needed is not None]
    return f"{rounded_up(max(groups)):,} groups ({rows:,} rows)" if groups else f"{rows:,}"


def _moved(one: MetricVerdict) -> str:
    return _words(one.metric, one.drop)


def _words(metric: str, drop: float | None) -> str:
    value = 0.0 if drop is None or abs(drop) < _ROUNDING else drop
    worse = "rose" if metric in RISES else "fell"
    return f"{metric} {worse} {value:.4g}" if value >= 0 else f"{metric} is better by {-value:.4g}"


def _number(value: float | None) -> str:
    return "an unknown amount" if value is None else f"{value:.4g}"
