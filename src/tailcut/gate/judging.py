"""The quality gate: variants against the source model on the same confirmation rows.

A variant passes where non-inferiority is shown for every budgeted metric and no slice is shown to be hurt. Each metric
must pass, so that metrics need no correction among themselves (Berger 1982, the intersection-union test); variants
judged together share the error by Holm, earlier verdicts from the same rows take their part of it (``holm``).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.common.tensors import Array
from tailcut.gate.agreement import compare
from tailcut.gate.bootstrap import RESAMPLES
from tailcut.gate.clustered import number
from tailcut.gate.distributions import normal_quantile
from tailcut.gate.evidence import Bools, Comparison, DropEvidence, OwnRows
from tailcut.gate.holm import HolmStep, adjust, steps
from tailcut.gate.metrics import PROBABILITIES, RISES, are_probabilities, drop
from tailcut.gate.terms import ConfirmationRows, Criteria, check
from tailcut.gate.verdict import Agreement, MetricVerdict, Outcome, QualityVerdict, SliceVerdict

POWER = 0.8


_Case = tuple[Comparison, DropEvidence | None, str]


def judge(
    candidates: Mapping[str, Array],
    source: Array,
    labels: Array | None,
    slices: Mapping[str, Array],
    budget: Mapping[str, float],
    *,
    confidence: float = 0.95,
    slice_budget: float = 2.5,
    uses: int = 0,
    own_metrics: Mapping[str, OwnRows] | None = None,
    groups: Array | None = None,
    identical: Collection[str] = (),
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> dict[str, QualityVerdict]:
    """Judge variants together on the same confirmation rows.

    Args:
        candidates: variant -> scores, the model's first output, shaped as the source's.
        source: (n,) or (n, ...) scores of the source model.
        labels: (n,) or as the scores; None where there are none: then only ``cosine`` and user metrics can be judged.
        slices: slice name -> (n,) of the group that each row belongs to.
        budget: metric -> largest drop, above 0, in the metric's own unit.
        confidence: one-sided confidence of the first verdict from these rows.
        slice_budget: how many times the budget a slice may drop.
        uses: verdicts that the same rows gave before.
        own_metrics: a user's metric -> its per-row values; more is better.
        groups: (n,) whose rows hang together, such as a patient's; None where each row stands for itself.
        identical: variants whose every output equals the source's up to rounding on all rows: they pass, and take no
            part in the correction for several variants. One whose rows show a drop beyond a budget is judged as all
            others are: a budget may be smaller than rounding.
        seed: of the bootstrap; the same seed gives the same verdicts.
        resamples: of the bootstrap.

    Raises:
        BuildError: scores, labels, slices or user values that do not fit one another, a metric that is not known, a
            budget that is not above 0, scores that are not finite.
    """
    rows = ConfirmationRows(source, labels, slices, own_metrics or {}, None if groups is None else number(groups))
    terms = Criteria(budget, confidence, slice_budget, uses, seed, resamples)
    check(candidates, rows, terms)
    columns = {name: group(values) for name, values in slices.items()}
    cases = {name: _cases(name, scores, rows, terms) for name, scores in candidates.items()}
    identical = [name for name in identical if not _exceeds(cases[name], budget)]
    tested = [name for name in candidates if name not in identical]
    held = dict(zip(tested, steps([_largest_p(cases[name], budget) for name in tested]), strict=True))
    held |= dict(zip(identical, steps([0.0] * len(identical)), strict=True))
    found = {
        name: _verdict(name, candidates[name], cases[name], held[name], rows, columns, terms) for name in candidates
    }
    hurt = {name for name, each in found.items() if "fail" in {one.outcome for one in each.slices}}
    return {name: _passed(each) if name in identical and name not in hurt else each for name, each in found.items()}


def _exceeds(cases: Sequence[_Case], budget: Mapping[str, float]) -> bool:
    """Tell whether the drop of a metric on these rows is more than its budget."""
    return any(evidence is not None and evidence.drop > budget[one.metric] for one, evidence, _ in cases)


def _passed(verdict: QualityVerdict) -> QualityVerdict:
    """Pass a variant that is identical up to rounding, however few rows could prove of the absence of a drop."""
    return msgspec.structs.replace(
        verdict,
        outcome="pass",
        identical=True,
        reason=f"identical up to rounding: every output equals the source model's on all {verdict.rows:,} rows",
        metrics=tuple(msgspec.structs.replace(one, outcome="pass", rows_needed=None) for one in verdict.metrics),
    )


def are_decisions(source: Array, labels: Array | None, budget: Mapping[str, float]) -> bool:
    """Say whether scores stand for classes: where a metric of classes has a budget, or labels number their columns."""
    if PROBABILITIES & set(budget):
        return True
    if labels is None or labels.ndim != 1 or labels.dtype.kind not in "biu":
        return False
    columns = source.shape[1] if source.ndim == 2 else 2
    inside = bool(labels.min() >= 0 and labels.max() < columns)
    return inside and (source.ndim == 2 or are_probabilities(source))


def _largest_p(cases: Sequence[_Case], budget: Mapping[str, float]) -> float:
    ps = [1.0 if evidence is None else evidence.p_below(budget[one.metric]) for one, evidence, _ in cases]
    return max(ps, default=1.0)


def _cases(name: str, scores: Array, rows: ConfirmationRows, terms: Criteria) -> list[_Case]:
    found: list[_Case] = []
    for metric in terms.budget:
        own = rows.own.get(metric)
        comparison = (
            Comparison(metric, rows.labels, rows.source, scores, clusters=rows.clusters)
            if own is None
            else Comparison(metric, None, own.source, own.variants[name], own=True, clusters=rows.clusters)
        )
        # Each pair has its own draws, so that no verdict hangs on which others are judged beside it.
        rng = np.random.default_rng([terms.seed, zlib.crc32(f"{name}\0{metric}".encode())])
        try:
            found.append((comparison, comparison.whole(rng, terms.resamples), ""))
        except ValueError as error:
            found.append((comparison, None, str(error)))
    return found


def _verdict(
    name: str,
    scores: Array,
    cases: Sequence[_Case],
    step: HolmStep,
    rows: ConfirmationRows,
    columns: Mapping[str, Groups],
    terms: Criteria,
) -> QualityVerdict:
    largest = _largest_p(cases, terms.budget)
    metrics = tuple(_metric(case, step, largest, terms) for case in cases)
    slices = judge_slices(
        [comparison for comparison, evidence, _ in cases if evidence is not None],
        columns,
        {metric: terms.slice_budget * limit for metric, limit in terms.budget.items()},
        1.0 - terms.confidence,
    )
    decisions = are_decisions(rows.source, rows.labels, terms.budget)
    agreement = compare(rows.source, scores, confidence=terms.confidence, decisions=decisions, clusters=rows.clusters)
    outcome = _outcome(metrics, slices)
    return QualityVerdict(
        variant=name,
        outcome=outcome,
        reason=_reason(outcome, metrics, slices, agreement, rows, terms.confidence),
        confidence=terms.confidence,
        alpha=terms.alpha,
        uses=terms.uses,
        rows=len(rows.source),
        metrics=metrics,
        slices=slices,
        worst_slice=worst(slices),
        flip_rate=None if agreement.flips is None else agreement.flips / agreement.rows,
        agreement=agreement,
        warning=reuse_warning(terms.uses, terms.confidence, terms.alpha),
        groups=rows.groups,
    )


def _outcome(metrics: Sequence[MetricVerdict], slices: Sequence[SliceVerdict]) -> Outcome:
    if "fail" in {one.outcome for one in metrics} | {one.outcome for one in slices}:
        return "fail"
    return "pass" if metrics and all(one.outcome == "pass" for one in metrics) else "inconclusive"


def _metric(case: _Case, step: HolmStep, largest: float, terms: Criteria) -> MetricVerdict:
    comparison, evidence, note = case
    budget = terms.budget[comparison.metric]
    if evidence is None:
        return _undecided(comparison, budget, note)
    p = evidence.p_below(budget)
    # Holm's procedure judges a variant by its largest p: the others only have to clear their own share of the error.
    stopped = p == largest and step.floor > terms.alpha
    p_adjusted = step.floor if stopped else min(1.0, p * step.factor)
    factor = step.family if stopped else step.factor
    # The error of wrongly calling a variant bad is not what earlier uses spend, so it stays at the confidence.
    alpha = 1.0 - terms.confidence
    harmed = evidence.p_above(budget) <= alpha
    outcome: Outcome = "fail" if harmed else "pass" if p_adjusted <= terms.alpha else "inconclusive"
    source, variant = comparison.values()
    rows, clusters = len(comparison.source), comparison.clusters
    units = rows if clusters is None else int(clusters.max()) + 1
    needed = _needed(evidence, budget, terms.alpha / factor, p, units) if outcome == "inconclusive" else None
    return MetricVerdict(
        metric=comparison.metric,
        source=source,
        variant=variant,
        drop=evidence.drop,
        lower=_finite(evidence.lower(alpha)),
        upper=_finite(evidence.upper(terms.alpha / factor)),
        p=p,
        p_adjusted=p_adjusted,
        budget=budget,
        outcome=outcome,
        rows=rows,
        rows_needed=needed if needed is None else math.ceil(needed * rows / units),
        groups_needed=None if clusters is None else needed,
    )


def _needed(evidence: DropEvidence, budget: float, alpha: float, p: float, rows: int) -> int | None:
    """Rows that would decide it; groups, where ``rows`` is a number of groups.

    A drop within two standard errors of 0 is planned as none: on few rows the estimate is noise, and a plan made from
    it would jump between hundreds and millions. Where that many rows are there already, what they showed is scaled.
    """
    if abs(evidence.drop) <= 2.0 * evidence.se:
        needed = evidence.rows_needed(0.0, budget, alpha, POWER)
        if needed is None or needed > rows:
            return needed
    if 0.0 < p < 0.5:
        wanted = normal_quantile(1.0 - alpha) + normal_quantile(POWER)
        return math.ceil(rows * max((wanted / normal_quantile(1.0 - p)) ** 2, 1.0)) + 1
    return evidence.rows_needed(evidence.drop, budget, alpha, POWER)


def _undecided(comparison: Comparison, budget: float, note: str) -> MetricVerdict:
    values: tuple[float, float] | None = None
    with suppress(ValueError):
        values = comparison.values()
    source, variant = values or (None, None)
    return MetricVerdict(
        metric=comparison.metric,
        source=source,
        variant=variant,
        drop=None if values is None else drop(comparison.metric, *values),
        lower=None,
        upper=None,
        p=1.0,
        p_adjusted=1.0,
        budget=budget,
        outcome="inconclusive",
        rows=len(comparison.source),
        rows_needed=None,
        note=note,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# -- Reasons -----------------------------------------------------------------------------------------------------------


_ROUNDING = 1e-12
"""A drop below it is rounding of a sum over rows."""


def _reason(
    outcome: Outcome,
    metrics: Sequence[MetricVerdict],
    slices: Sequence[SliceVerdict],
    agreement: Agreement,
    rows: ConfirmationRows,
    confidence: float,
) -> str:
    """Say why a variant passed, failed or stayed open.

    Args:
        outcome: what is explained.
        metrics, slices: all verdicts of the variant.
        agreement: what can be said without labels.
        rows: that they rest on.
        confidence: the manifest's, for the limits of harm.
    """
    if outcome == "fail":
        hurt = [_harm(one, confidence) for one in metrics if one.outcome == "fail"]
        return "; ".join((*hurt, *_hurt_slices(slices)))
    if outcome == "pass":
        return "; ".join(f"{_moved(one)}, at most {_number(one.upper)}, budget {one.budget:g}" for one in metrics)
    if not metrics:
        return f"no metric has a budget; {agreed(agreement)}"
    opened = _opened([one for one in metrics if one.outcome == "inconclusive"], rows.groups)
    return opened if rows.labels is not None else f"{opened}; without labels there is {agreed(agreement)}"


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
        f"slice {one.slice}={one.value}: {_moved(one)} in {one.rows:,} rows, "
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


def _moved(one: MetricVerdict | SliceVerdict) -> str:
    value = 0.0 if one.drop is None or abs(one.drop) < _ROUNDING else one.drop
    worse = "rose" if one.metric in RISES else "fell"
    return f"{one.metric} {worse} {value:.4g}" if value >= 0 else f"{one.metric} is better by {-value:.4g}"


def _number(value: float | None) -> str:
    return "an unknown amount" if value is None else f"{value:.4g}"


# -- Slices ------------------------------------------------------------------------------------------------------------


# Harm that the average hides: every metric on every slice, and which slice is hurt the most. A slice refuses a variant
# only where its drop is SHOWN to be beyond slice_budget times the budget, after Holm over all slices and metrics of the
# variant, so that one refused for no reason is as rare as the confidence says. To ask of every slice that it be shown
# unharmed, as is asked of the whole, would refuse every variant: a slice of 200 rows can show nothing of the kind. What
# a slice cannot decide stands in the evidence as inconclusive.

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


_Found = tuple[SliceVerdict, DropEvidence | None, float]


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
            yield _undecided_slice(comparison, name, f"all {len(names)} values", len(groups.place), limit, str(error))
            return
    for place in np.flatnonzero(sizes >= MIN_ROWS):
        chosen: Bools = groups.place == place
        size = int(sizes[place])
        try:
            evidence = comparison.sliced(chosen, parts)
        except ValueError as error:
            yield _undecided_slice(comparison, name, str(names[place]), size, limit, str(error))
            continue
        blank = _undecided_slice(comparison, name, str(names[place]), size, limit, "")[0]
        yield blank, evidence, evidence.p_above(limit)
    small = sizes < MIN_ROWS
    if small.any():
        few = f"{int(small.sum())} values of fewer than {MIN_ROWS} rows"
        yield _undecided_slice(comparison, name, few, int(sizes[small].sum()), limit, "too few rows for a decision")


def _undecided_slice(comparison: Comparison, name: str, value: str, rows: int, limit: float, note: str) -> _Found:
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


def _decided(verdict: SliceVerdict, evidence: DropEvidence, p_adjusted: float, alpha: float) -> SliceVerdict:
    shown = "pass" if evidence.p_below(verdict.limit) <= alpha else "inconclusive"
    return msgspec.structs.replace(
        verdict,
        drop=evidence.drop,
        upper=_finite(evidence.upper(alpha)),
        p_adjusted=p_adjusted,
        outcome="fail" if p_adjusted <= alpha else shown,
    )
