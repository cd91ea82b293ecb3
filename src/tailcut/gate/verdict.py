"""What the quality gate says of a variant, as it stands in the evidence."""

from __future__ import annotations

from typing import Literal

import msgspec

Outcome = Literal["pass", "fail", "inconclusive"]


class MetricVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One budgeted metric of one variant against the source model, on the same rows."""

    metric: str
    source: float | None
    """The metric of the source model; None where these rows do not give it, ``note`` says why."""
    variant: float | None
    drop: float | None
    """How much worse the variant is, in the metric's unit; negative where it is better."""
    lower: float | None
    """One-sided lower limit of the drop at the manifest's confidence; None where the rows bound nothing."""
    upper: float | None
    """One-sided upper limit at the corrected confidence, see ``QualityVerdict.alpha``; None as above."""
    p: float
    """Of "the drop is the budget or more"."""
    p_adjusted: float
    """After Holm over the variants judged together."""
    budget: float
    outcome: Outcome
    rows: int
    rows_needed: int | None
    """Rows that would decide it with a chance of 80 %; None where it is decided or no number of rows would."""
    groups_needed: int | None = None
    """The same in groups, where rows come in groups; ``rows_needed`` is then of groups as large as these."""
    note: str = ""


class SliceVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One metric on the rows where a slice column has one value."""

    slice: str
    value: str
    metric: str
    rows: int
    drop: float | None
    """None where these rows give no drop; ``note`` says why."""
    upper: float | None
    """One-sided upper limit of the drop at the manifest's confidence, for this slice alone."""
    limit: float
    """Drop that a slice may have: slice_budget times the metric's budget."""
    p_adjusted: float
    """Of "the drop is within the limit", after Holm over all slices and metrics of the variant: small is harm shown."""
    outcome: Outcome
    """fail: shown to drop by more than the limit. pass: shown to drop by less, for this slice alone."""
    note: str = ""


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How close a variant's outputs are to the source model's. It needs no labels, and is no statement of quality."""

    rows: int
    flips: int | None
    """Rows with another decision; None where the outputs are no decisions."""
    agree: float | None
    """Share of rows with the same decision; None as above."""
    disagree_upper: float | None
    """One-sided upper limit of the share of other decisions (Clopper and Pearson 1934)."""
    divergence: Literal["jensen-shannon", "cosine-distance", "absolute-difference"]
    divergence_mean: float
    """Mean over rows: nats for Jensen-Shannon, 1 - cosine, or the output's own unit."""
    divergence_upper: float | None


class QualityVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the gate says of one variant's quality."""

    variant: str
    outcome: Outcome
    reason: str
    confidence: float
    """As in the manifest, one-sided."""
    alpha: float
    """Error that this verdict could spend, corrected for earlier uses of the same rows: ``holm.alpha_of_use``."""
    uses: int
    """Verdicts that the same confirmation rows gave before this one."""
    rows: int
    metrics: tuple[MetricVerdict, ...]
    slices: tuple[SliceVerdict, ...]
    worst_slice: SliceVerdict | None
    """The slice with the strongest evidence of harm; the largest drop over its limit among equals."""
    flip_rate: float | None
    """Share of rows whose decision changed; None where the outputs are no decisions."""
    agreement: Agreement
    warning: str = ""
    identical: bool = False
    """Whether every output equals the source's up to rounding on all rows."""
    groups: int | None = None
    """Groups that the rows come in, whose rows hang together: holdout.group; None where each row stands for itself."""
