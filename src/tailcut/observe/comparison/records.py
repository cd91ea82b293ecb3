"""Results of a comparison of two spans of the history, for people and programs."""

from __future__ import annotations

from typing import Literal

import msgspec

Verdict = Literal["grew", "shrank", "small", "noise", "new", "gone"]
"""Small: certain, but less than the least change that counts. New and gone: only one of the spans has it."""


class MetricChange(msgspec.Struct, frozen=True, kw_only=True):
    """A figure in both spans.

    Attributes:
        before, after: in the figure's own unit.
        change: relative to before; of shares the difference.
        low, high: its 99.5 % interval; NaN, as ``change``, where one of both values is 0.
    """

    before: float
    after: float
    change: float
    low: float
    high: float

    @property
    def is_certain(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


class StageChange(msgspec.Struct, frozen=True, kw_only=True):
    """A stage in both spans.

    Attributes:
        mean: milliseconds per answered request, of those that did not meet the stage, too.
        p95: milliseconds of those that met it; None where too few did.
        met_before, met_after: share of requests that met it.
        growth_ms, growth_low_ms, growth_high_ms: by which the mean grew, with its interval.
        growth_share: part of the whole request's growth; None where that did not change.
    """

    stage: str
    verdict: Verdict
    mean: MetricChange
    p95: MetricChange | None
    met_before: float
    met_after: float
    growth_ms: float
    growth_low_ms: float
    growth_high_ms: float
    growth_share: float | None = None


class FigureChange(msgspec.Struct, frozen=True, kw_only=True):
    """A figure beside the latencies: a rate, a share, rows per batch.

    Attributes:
        unit: "share", "1/s" or "rows".
    """

    name: str
    unit: str
    verdict: Verdict
    change: MetricChange


class VariantComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The latencies of one variant.

    Attributes:
        variant: empty: all variants together, where the spans have different ones.
        requests_before, requests_after: that were answered.
        too_little: why nothing is said; empty where something is.
        stages: the whole request first, then by how much they grew.
    """

    variant: str
    requests_before: int
    requests_after: int
    too_little: str = ""
    stages: tuple[StageChange, ...] = ()


class ModelComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One model.

    Attributes:
        notes: what makes the spans hard to compare: another variant, gaps.
    """

    model: str
    variants: tuple[VariantComparison, ...]
    figures: tuple[FigureChange, ...] = ()
    notes: tuple[str, ...] = ()


class HistoryComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two spans of one history.

    Attributes:
        since_s, until_s: the recent span, in Unix seconds.
        against_s: how much earlier the other one is.
        bucket_s: seconds that were added up; blocks of buckets were resampled.
        min_change: the least change that counts.
    """

    history: str
    since_s: int
    until_s: int
    against_s: int
    bucket_s: int
    min_change: float
    models: tuple[ModelComparison, ...]

    @property
    def grew(self) -> tuple[tuple[str, str, StageChange], ...]:
        """Model, variant and stage of everything that grew, or is new."""
        return tuple(
            (model.model, variant.variant, stage)
            for model in self.models
            for variant in model.variants
            for stage in variant.stages
            if stage.verdict in {"grew", "new"}
        )

    @property
    def said(self) -> bool:
        """Whether anything could be compared."""
        return any(variant.stages for model in self.models for variant in model.variants)
