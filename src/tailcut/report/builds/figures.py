"""What a build found of every variant, as a table and in sentences."""

from __future__ import annotations

from tailcut.common.units import UnitError, parse_duration
from tailcut.gate import Agreement
from tailcut.registry import Promotion, VariantEvidence, VariantRecord, Version, state_of
from tailcut.registry.evidence import OutputComparison, Three
from tailcut.report.document import Table

NONE = "-"
NO_NUMBER = 1e300
"""A change of an answer that is recorded as larger is one to NaN or infinity, or from it; an interval that is recorded
to end beyond it has no upper end."""


def variants_table(version: Version, promotion: Promotion | None) -> Table:
    """A row per variant that was made, in the record's order; "-" stands where nothing was measured."""
    made = {name: each.evidence for name, each in version.variants.items() if each.sha256}
    metrics = list(dict.fromkeys(metric for each in made.values() for metric in each.metrics))
    money = ["cost per 1M"] if any(each.cost and each.cost.currency for each in made.values()) else []
    latency = f"{percentile(version)} under load"
    head = ("variant", "size", *metrics, "drop, upper limit", latency, "ratio", "CPU per 1M", *money, "verdict")
    rows = []
    for name, each in made.items():
        rows.append(
            (
                name,
                size(version.variants[name].size_bytes),
                *(f"{each.metrics[metric]:.4f}" if metric in each.metrics else NONE for metric in metrics),
                _drop(each),
                _latency(each),
                _ratio(each, name),
                _cpu(each),
                *([_money(each)] if money else []),
                verdict(version, promotion, name),
            )
        )
    words = ("variant", "drop, upper limit", latency, "ratio", "verdict")
    return Table(head=head, rows=tuple(rows), left=tuple(map(head.index, words)))


def rows_alone(version: Version) -> list[str]:
    """One line per variant whose rows run alone: why, and the largest change that was seen, measured by its limit."""
    return [
        f"{name}: each row runs alone, because other rows in its batch would change its answer{_change(each.evidence)}"
        for name, each in version.variants.items()
        if each.evidence.rows_alone
    ]


def logged(version: Version) -> list[str]:
    """One line on the logged rows, then one per variant: how far it agrees with the source model on them."""
    rows = version.evidence.holdout.logged if version.evidence.holdout is not None else None
    if rows is None:
        return []
    lines = [f"logged requests: {rows.rows:,} rows, {rows.distinct:,} distinct, without labels", *rows.notes]
    for name, each in version.variants.items():
        found = each.evidence.logged
        if found is None:
            continue
        on = f"{name} on logged rows:"
        lines.append(f"{on} {_agreement(found.agreement) if found.agreement else f'not compared: {found.failed}'}")
        lines += [f"WARNING: {name}: {found.warning}"] if found.warning else []
    return lines


def _agreement(found: Agreement) -> str:
    divergence = f"mean {found.divergence.replace('-', ' ')} {found.divergence_mean:.3g}"
    if found.agree is None:
        return f"{divergence} from the source model"
    return (
        f"agrees with the source model on {found.agree:.2%} (at most {found.disagree_upper:.2%} differ), {divergence}"
    )


def _change(evidence: VariantEvidence) -> str:
    found = evidence.neighbour
    if found is None:
        return ""
    seen = [
        (change, each.limit, kind, output)
        for output, each in found.outputs.items()
        for kind, change in each.max_abs.items()
    ]
    parts = [f"{', '.join(found.operators)} takes one scale for all rows"] if found.operators else []
    if seen:
        change, limit, kind, output = max(seen, key=lambda one: one[0] / max(one[1], 1e-300))
        by = f"by {change:.2g}" if change < NO_NUMBER else "to NaN or infinity"
        parts.append(f"seen is a change of output {output!r} {by} (company: {kind}; limit {limit:.2g})")
    return f" ({'; '.join(parts)})" if parts else ""


def refusals(version: Version) -> list[str]:
    """One text per refused variant with the reason, then one per reason why variants were not made."""
    made = [f"{name} refused: {one.refused}" for name, one in version.variants.items() if one.refused and one.sha256]
    return [*made, *not_made(version)]


def not_made(version: Version) -> list[str]:
    """One line per reason why variants were not made, naming all that it holds for."""
    groups: dict[str, list[str]] = {}
    for name, each in version.variants.items():
        if not each.sha256:
            groups.setdefault(each.refused or "no reason was kept", []).append(name)
    return [
        f"{', '.join(names)} {why}" if why.startswith("not here: ") else f"{', '.join(names)} not built: {why}"
        for why, names in groups.items()
    ]


def verdict(version: Version, promotion: Promotion | None, name: str) -> str:
    """Name what became of a variant.

    "inconclusive" is a variant that the rows of the holdout decide nothing about, and that may be faster than its
    reference; one that is not is refused, whatever more rows would say.
    """
    each = version.variants[name]
    if promotion is not None and (promotion.version, promotion.variant) == (version.id, name):
        return "promoted by force" if each.refused else "promoted"
    if not each.sha256:
        return "not here" if each.refused.startswith("not here: ") else "not built"
    if each.refused:
        return "inconclusive" if _open(each) else "refused"
    state = state_of(version, name, promotion)
    return f"source, {state}" if name == version.source else state


def percentile(version: Version) -> str:
    """The percentile at which variants were compared under load, such as "p95"."""
    speeds = (each.evidence.speed for each in version.variants.values())
    return next((speed.percentile for speed in speeds if speed is not None), "latency")


def load(version: Version) -> str:
    """What the verdicts on speed rest on: rounds of load and how long they were, and what disturbed them."""
    build, found, rate = version.manifest.get("build", {}), version.evidence.load, version.evidence.rate
    rounds = found.rounds if found is not None else build.get("rounds", "?")
    text = f"{'?' if rate is None else rate} requests/s, {rounds} rounds of {build.get('round', '?')}"
    if found is None:
        return text
    left_out = [
        f"{each.evidence.speed.left_out} of {name}"
        for name, each in version.variants.items()
        if each.evidence.speed is not None and each.evidence.speed.left_out
    ]
    repeated = f"; disturbed rounds, not counted: {', '.join(left_out)}" if left_out else ""
    return f"{text} in {found.took_s:.0f} s; other processes used {found.others:.2f} cores in the median{repeated}"


def limit_ms(version: Version) -> float | None:
    """The SLO's limit for that percentile, or the time-out where it names none; None where the record has neither."""
    slo = version.manifest.get("slo", {})
    found = slo.get(percentile(version), slo.get("timeout"))
    try:
        return parse_duration(found) * 1e3
    except UnitError:
        return None


def size(size_bytes: int) -> str:
    """A size for people; "-" for none."""
    if not size_bytes:
        return NONE
    return f"{size_bytes / 1024:.1f} KiB" if size_bytes < 1024 * 1024 else f"{size_bytes / 1024 / 1024:.1f} MiB"


def figure(value: float | None) -> str:
    """A drop or a limit with three digits; "?" where the rows bound nothing."""
    return "?" if value is None else f"{value + 0.0:.3g}"


def compared(output: tuple[str, OutputComparison]) -> str:
    """One output of a variant beside the source model's, in words."""
    name, found = output
    if found.equal:
        return f"{name} equal up to rounding"
    if found.shapes is not None:
        return f"{name} of another shape"
    parts = []
    if found.agree is not None:
        parts.append(f"agrees on {found.agree:.2%} of {found.rows:,} rows")
    if found.max_abs is not None:
        parts.append(f"largest difference {found.max_abs:.3g}, relative error {found.relative_error:.3g}")
    return f"{name} {', '.join(parts)}"


def _open(variant: VariantRecord) -> bool:
    quality, speed = variant.evidence.quality, variant.evidence.speed
    may_be_faster = speed is not None and speed.outcome != "no"
    return quality is not None and quality.outcome == "inconclusive" and may_be_faster


def _drop(evidence: VariantEvidence) -> str:
    """Every budgeted metric's drop with its upper limit, beside the budget."""
    quality = evidence.quality
    if quality is None:
        return NONE
    if quality.identical:
        # It passes by that, whatever so few rows could exclude: their limit may lie beyond the budget.
        return "identical up to rounding"
    texts = [
        f"{each.metric} {figure(each.drop)} <= {figure(each.upper)} of {each.budget:g} {each.outcome}"
        for each in quality.metrics
    ]
    return ", ".join(texts) or NONE


def _latency(evidence: VariantEvidence) -> str:
    if evidence.speed is None:
        return NONE
    middle, low, high = evidence.speed.latency_ms
    return f"{middle:.3g} ms ({_ends(low, high, '.3g')})"


def _ratio(evidence: VariantEvidence, name: str) -> str:
    speed = evidence.speed
    return NONE if speed is None or speed.reference == name else _interval(speed.ratio, speed.reference)


def _cpu(evidence: VariantEvidence) -> str:
    cost, speed = evidence.cost, evidence.speed
    if cost is None:
        return NONE
    beside = f", {_interval(speed.cpu_ratio, speed.reference)}" if speed is not None and speed.cpu_ratio else ""
    return f"{cost.cpu_s[0]:.0f} s{beside}"


def _interval(ratio: Three, reference: str) -> str:
    middle, low, high = ratio
    return f"{middle:.2f} of {reference} ({_ends(low, high, '.2f')})"


def _ends(low: float, high: float, form: str) -> str:
    """Write an interval; without an upper end where the rounds were too few for one."""
    return f"{low:{form}}-{high:{form}}" if high < NO_NUMBER else f"{low:{form}} or more"


def _money(evidence: VariantEvidence) -> str:
    cost = evidence.cost
    return f"{cost.money:.3g} {cost.currency}" if cost is not None and cost.currency else NONE
