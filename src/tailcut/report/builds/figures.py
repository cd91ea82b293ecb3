"""What a build found of every variant, as a table and in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailcut.common.units import UnitError, parse_duration
from tailcut.registry import Promotion, VariantRecord, Version, state_of
from tailcut.report.document import Table

NONE = "-"
NO_NUMBER = 1e300
"""A change of an answer that is recorded as larger is one to NaN or infinity, or from it; an interval that is recorded
to end beyond it has no upper end."""


def variants_table(version: Version, promotion: Promotion | None) -> Table:
    """A row per variant that was made, in the record's order; "-" stands where nothing was measured."""
    made = {name: each.evidence for name, each in version.variants.items() if each.sha256}
    metrics = list(dict.fromkeys(metric for each in made.values() for metric in each.get("metrics", {})))
    money = ["cost per 1M"] if any(each.get("cost", {}).get("currency") for each in made.values()) else []
    latency = f"{percentile(version)} under load"
    head = ("variant", "size", *metrics, "drop, upper limit", latency, "ratio", "CPU per 1M", *money, "verdict")
    rows = []
    for name, each in made.items():
        found = each.get("metrics", {})
        rows.append(
            (
                name,
                size(version.variants[name].size_bytes),
                *(f"{found[metric]:.4f}" if metric in found else NONE for metric in metrics),
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
        if each.evidence.get("rows_alone", not each.evidence.get("merge", True))
    ]


def logged(version: Version) -> list[str]:
    """One line on the logged rows, then one per variant: how far it agrees with the source model on them."""
    rows = version.evidence.get("holdout", {}).get("logged")
    if not rows:
        return []
    lines = [f"logged requests: {rows['rows']:,} rows, {rows['distinct']:,} distinct, without labels", *rows["notes"]]
    for name, each in version.variants.items():
        found = each.evidence.get("logged", {})
        if "failed" in found:
            lines.append(f"{name} on logged rows: not compared: {found['failed']}")
        elif found.get("agree") is not None:
            lines.append(
                f"{name} on logged rows: agrees with the source model on {found['agree']:.2%} "
                f"(at most {found['disagree_upper']:.2%} differ), {_divergence(found)}"
            )
        elif found:
            lines.append(f"{name} on logged rows: {_divergence(found)} from the source model")
        lines += [f"WARNING: {name}: {found['warning']}"] if "warning" in found else []
    return lines


def _divergence(found: Mapping[str, Any]) -> str:
    return f"mean {found['divergence'].replace('-', ' ')} {found['divergence_mean']:.3g}"


def _change(evidence: Mapping[str, Any]) -> str:
    found = evidence.get("neighbour") or {}
    seen = [
        (change, each["limit"], kind, output)
        for output, each in (found.get("outputs") or {"": found}).items()
        for kind, change in each.get("max_abs", {}).items()
    ]
    operators = ", ".join(found.get("operators", ()))
    parts = [f"{operators} takes one scale for all rows"] if operators else []
    if seen:
        change, limit, kind, output = max(seen, key=lambda one: one[0] / max(one[1], 1e-300))
        of = f" of output {output!r}" if output else ""
        by = f"by {change:.2g}" if change < NO_NUMBER else "to NaN or infinity"
        parts.append(f"seen is a change{of} {by} (company: {kind}; limit {limit:.2g})")
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
    named = (each.evidence.get("speed", {}).get("percentile") for each in version.variants.values())
    return next((name for name in named if name), "latency")


def load(version: Version) -> str:
    """What the verdicts on speed rest on: rounds of load and how long they were, and what disturbed them."""
    build, found = version.manifest.get("build", {}), version.evidence.get("load", {})
    rate = version.evidence.get("slo", {}).get("rate", "?")
    text = f"{rate} requests/s, {found.get('rounds', build.get('rounds', '?'))} rounds of {build.get('round', '?')}"
    if not found:
        return text
    left_out = [
        f"{each.evidence['speed']['left_out']} of {name}"
        for name, each in version.variants.items()
        if each.evidence.get("speed", {}).get("left_out")
    ]
    repeated = f"; disturbed rounds, not counted: {', '.join(left_out)}" if left_out else ""
    return (
        f"{text} in {found['took_s']:.0f} s; other processes used {found['others']:.2f} cores in the median{repeated}"
    )


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


def compared(output: tuple[str, Mapping[str, Any]]) -> str:
    """One output of a variant beside the source model's, in words."""
    name, found = output
    if found["equal"]:
        return f"{name} equal up to rounding"
    if "shape" in found:
        return f"{name} of another shape"
    parts = []
    if "agree" in found:
        parts.append(f"agrees on {found['agree']:.2%} of {found['rows']:,} rows")
    if "max_abs" in found:
        parts.append(f"largest difference {found['max_abs']:.3g}, relative error {found['relative_error']:.3g}")
    return f"{name} {', '.join(parts)}"


def _open(variant: VariantRecord) -> bool:
    quality, speed = (variant.evidence.get(name) or {} for name in ("quality", "speed"))
    # Versions of earlier builds say only whether it is faster.
    may_be_faster = speed.get("outcome", "faster" if speed.get("faster") else "no") != "no"
    return quality.get("outcome") == "inconclusive" and may_be_faster


def _drop(evidence: Mapping[str, Any]) -> str:
    """Every budgeted metric's drop with its upper limit, beside the budget."""
    quality = evidence.get("quality") or {}
    if quality.get("identical"):
        # It passes by that, whatever so few rows could exclude: their limit may lie beyond the budget.
        return "identical up to rounding"
    judged = quality.get("metrics", [])
    texts = [
        f"{each['metric']} {figure(each['drop'])} <= {figure(each['upper'])} of {each['budget']:g} {each['outcome']}"
        for each in judged
    ]
    return ", ".join(texts) or NONE


def _latency(evidence: Mapping[str, Any]) -> str:
    found = evidence.get("speed", {}).get("latency_ms")
    return f"{found[0]:.3g} ms ({_ends(found[1], found[2], '.3g')})" if found else NONE


def _ratio(evidence: Mapping[str, Any], name: str) -> str:
    speed = evidence.get("speed", {})
    if not speed or speed["reference"] == name:
        return NONE
    return _interval(speed["ratio"], speed["reference"])


def _cpu(evidence: Mapping[str, Any]) -> str:
    found, speed = evidence.get("cost", {}).get("cpu_s"), evidence.get("speed", {})
    beside = f", {_interval(speed['cpu_ratio'], speed['reference'])}" if speed.get("cpu_ratio") else ""
    return f"{found[0]:.0f} s{beside}" if found else NONE


def _interval(ratio: Sequence[float], reference: str) -> str:
    middle, low, high = ratio
    return f"{middle:.2f} of {reference} ({_ends(low, high, '.2f')})"


def _ends(low: float, high: float, form: str) -> str:
    """Write an interval; without an upper end where the rounds were too few for one."""
    return f"{low:{form}}-{high:{form}}" if high < NO_NUMBER else f"{low:{form}} or more"


def _money(evidence: Mapping[str, Any]) -> str:
    cost = evidence.get("cost", {})
    return f"{cost['money']:.3g} {cost['currency']}" if cost.get("currency") else NONE
