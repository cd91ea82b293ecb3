"""Figures of a comparison as people read them: large factors in whole numbers, and no minus zero."""

from __future__ import annotations

import re

import pytest

from tailcut.observe.comparison import (
    FigureChange,
    HistoryComparison,
    MetricChange,
    ModelComparison,
    StageChange,
    VariantComparison,
)
from tailcut.report.comparison import comparison_document
from tailcut.report.document import terminal


def rendered(change: float, low: float, high: float) -> str:
    moved = MetricChange(before=1.0, after=1.0 + change, change=change, low=low, high=high)
    stage = StageChange(
        stage="request", verdict="grew", mean=moved, p95=moved, met_before=1.0, met_after=1.0,
        growth_ms=change, growth_low_ms=low, growth_high_ms=high, growth_share=-1e-9,
    )  # fmt: skip
    variant = VariantComparison(variant="int8", requests_before=1, requests_after=1, stages=(stage, stage))
    figures = tuple(
        FigureChange(name=unit, unit=unit, verdict="grew", change=moved) for unit in ("share", "1/s", "rows")
    )
    model = ModelComparison(model="risk", variants=(variant,), figures=figures)
    compared = HistoryComparison(
        history="h", since_s=86_400, until_s=172_800, against_s=86_400, bucket_s=60, min_change=0.05, models=(model,),
    )  # fmt: skip
    return terminal(comparison_document(compared))


def test_large_factors_are_whole_numbers_with_separators() -> None:
    said = rendered(1802.0, 1499.6, 2000.0)
    assert "1,803 times as much (1,501 to 2,001)" in said
    assert "1,803/s" in said
    assert "e+" not in said
    assert "10 times as much (1.5 to 20)" in rendered(9.0, 0.5, 19.0)
    assert "+800.0% (+50.0% to +1,200.0%)" in rendered(8.0, 0.5, 12.0)


@pytest.mark.parametrize("tiny", [-1e-9, 0.0, 1e-9])
def test_there_is_no_minus_zero(tiny: float) -> None:
    said = rendered(tiny, -1e-9, 1e-9)
    assert not re.search(r"-0(\.0+)?(%|\b(?!\.))", said), said
    assert "+0.0% (+0.0% to +0.0%)" in said
