"""Whether a variant may be promoted: pure decisions over measured numbers. An empty reason means yes.

This is the point check; the statistical gate, with its confidence and its third outcome, stands on the same numbers.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import msgspec

from tailcut.core.metrics import RISES, drop

LATENCY_ROWS = 1
"""Rows of the batch whose latency decides: one row is what an idle server runs."""

SLOWER = 1.05
"""A median ratio above this at any batch size is slower, not noise."""


class Race(msgspec.Struct, frozen=True, kw_only=True):
    """Interleaved rounds of one variant against the one that it derives from, at one batch size."""

    batch_rows: int
    ms: list[float]
    """Median milliseconds per round."""
    reference_ms: list[float]

    @property
    def ratios(self) -> list[float]:
        """Variant over reference, round by round."""
        return [mine / other for mine, other in zip(self.ms, self.reference_ms, strict=True)]

    @property
    def ratio(self) -> float:
        """Median of the rounds' ratios; under 1 is faster."""
        return statistics.median(self.ratios)


def drops(source: Mapping[str, float], variant: Mapping[str, float]) -> dict[str, float]:
    """How much worse each metric is than the source model's."""
    return {name: drop(name, source[name], variant[name]) for name in source if name in variant}


def quality_refusal(found: Mapping[str, float], budget: Mapping[str, float]) -> str:
    """Say which drops are over budget.

    Args:
        found: metric -> drop, see ``drops``.
        budget: metric -> largest drop allowed.
    """
    over = [name for name, limit in budget.items() if not found[name] <= limit]
    return "; ".join(
        f"{name} {'rose' if name in RISES else 'fell'} {found[name]:.4g}, budget {budget[name]:.4g}" for name in over
    )


def speed_refusal(races: Sequence[Race], *, merges: bool = True) -> str:
    """Say why a variant is not faster than the one that it derives from.

    It is faster where, at one batch size at least, three rounds in four were won and the median ratio is under 1,
    and at no batch size the median ratio is above ``SLOWER``.

    Args:
        races: at batch ``LATENCY_ROWS`` and at larger ones.
        merges: whether requests may share the variant's batches; where not, larger batches cannot win for it.
    """
    slower = [race for race in races if race.ratio > SLOWER]
    counted = [race for race in races if merges or race.batch_rows == LATENCY_ROWS]
    if not slower and any(_wins(race) for race in counted):
        return ""
    alone = "" if merges else ", and requests may not share its batches"
    return f"not faster here: {describe(slower[0] if slower else counted[0])}{alone}"


def describe(race: Race) -> str:
    """Both medians, the ratio and the spread of the rounds, in words."""
    return (
        f"{statistics.median(race.ms):.3g} ms against {statistics.median(race.reference_ms):.3g} ms "
        f"at batch {race.batch_rows} (ratio {race.ratio:.2f}, rounds {min(race.ratios):.2f}-{max(race.ratios):.2f})"
    )


def fastest(latency_ms: Mapping[str, Sequence[float]]) -> str:
    """Name the variant with the least median latency; the first of equals. Raises ValueError where there is none."""
    return min(latency_ms, key=lambda name: statistics.median(latency_ms[name]))


def _wins(race: Race) -> bool:
    won = sum(ratio < 1.0 for ratio in race.ratios)
    return race.ratio < 1.0 and won * 4 >= len(race.ratios) * 3
