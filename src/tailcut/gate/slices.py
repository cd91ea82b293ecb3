"""Harm that the average hides: every metric on every slice, and which slice is hurt the most.

A slice refuses a variant only where its drop is SHOWN to be beyond slice_budget times the budget, after Holm over all
slices and metrics of the variant, so that one refused for no reason is as rare as the confidence says. To ask of every
slice that it be shown unharmed, as is asked of the whole, would refuse every variant: a slice of 200 rows can show
nothing of the kind. What a slice cannot decide stands in the evidence as inconclusive.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailcut.common.tensors import Array
from tailcut.gate.evidence import Bools, Comparison, Evidence
from tailcut.gate.holm import adjust
from tailcut.gate.verdict import SliceVerdict

MIN_ROWS = 10
"""Fewer rows than this are not judged: no test of a mean keeps its level there."""


@dataclass(frozen=True)
class Groups:
    """The values of a slice column.

    Attributes:
        names: (groups,) the values as text, in order.
        place: (n,) the group of each row.
        sizes: (groups,) rows of each.
    """

    names: npt.NDArray[np.str_]
    place: npt.NDArray[np.intp]
    sizes: npt.NDArray[np.intp]


_Found = tuple[SliceVerdict, Evidence | None, float]


def group(values: Array) -> Groups:
    """Group rows by the value of a slice column, (n,)."""
    kept, place, sizes = np.unique(
        values.astype(np.str_) if values.dtype.kind == "O" else values, return_inverse=True, return_counts=True
    )
    return Groups(kept.astype(np.str_), place, sizes)


def judge_slices(
    comparisons: Sequence[Comparison],
    columns: Mapping[str, Groups],
    limits: Mapping[str, float],
    alpha: float,
) -> tuple[SliceVerdict, ...]:
    """Judge one variant on every value of every slice column.

    Args:
        comparisons: one per budgeted metric.
        columns: slice name -> its groups.
        limits: metric -> drop that a slice may have.
        alpha: the family's error.
    """
    found = [
        one
        for comparison in comparisons
        for name, groups in columns.items()
        for one in _column(comparison, name, groups, limits[comparison.metric])
    ]
    # Only slices that were judged are in the family: whether one is depends on its rows, not on how it fared.
    adjusted = iter(adjust([p for _, evidence, p in found if evidence is not None]))
    return tuple(
        verdict if evidence is None else _decided(verdict, evidence, next(adjusted), alpha)
        for verdict, evidence, _ in found
    )


def worst(verdicts: Sequence[SliceVerdict]) -> SliceVerdict | None:
    """Find the slice with the strongest evidence of harm; the largest drop over its limit among equals."""
    judged = [one for one in verdicts if one.drop is not None]
    return min(judged, key=lambda one: (one.p_adjusted, -(one.drop or 0.0) / one.limit), default=None)


def _column(comparison: Comparison, name: str, groups: Groups, limit: float) -> Iterator[_Found]:
    names, sizes = groups.names, groups.sizes
    parts = None
    if comparison.metric != "accuracy" or comparison.own:
        try:
            parts = comparison.parts()
        except ValueError as error:
            yield _undecided(comparison, name, f"all {len(names)} values", len(groups.place), limit, str(error))
            return
    for number in np.flatnonzero(sizes >= MIN_ROWS):
        chosen: Bools = groups.place == number
        size = int(sizes[number])
        try:
            evidence = comparison.sliced(chosen, parts)
        except ValueError as error:
            yield _undecided(comparison, name, str(names[number]), size, limit, str(error))
            continue
        blank = _undecided(comparison, name, str(names[number]), size, limit, "")[0]
        yield blank, evidence, evidence.p_above(limit)
    small = sizes < MIN_ROWS
    if small.any():
        few = f"{int(small.sum())} values of fewer than {MIN_ROWS} rows"
        yield _undecided(comparison, name, few, int(sizes[small].sum()), limit, "too few rows for a decision")


def _undecided(comparison: Comparison, name: str, value: str, rows: int, limit: float, note: str) -> _Found:
    verdict = SliceVerdict(
        slice=name,
        value=value,
        metric=comparison.metric,
        rows=rows,
        drop=None,
        upper=None,
        limit=limit,
        p_adjusted=1.0,
        outcome="inconclusive",
        note=note,
    )
    return verdict, None, 1.0


def _decided(verdict: SliceVerdict, evidence: Evidence, p_adjusted: float, alpha: float) -> SliceVerdict:
    upper = evidence.upper(alpha)
    shown = "pass" if evidence.p_below(verdict.limit) <= alpha else "inconclusive"
    return SliceVerdict(
        slice=verdict.slice,
        value=verdict.value,
        metric=verdict.metric,
        rows=verdict.rows,
        drop=evidence.drop,
        upper=upper if math.isfinite(upper) else None,
        limit=verdict.limit,
        p_adjusted=p_adjusted,
        outcome="fail" if p_adjusted <= alpha else shown,  # type: ignore[arg-type]  # a literal through two branches
    )
