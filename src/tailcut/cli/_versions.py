"""How a version of a model looks on a terminal: one table, for ``build`` and ``registry show``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tailcut.cli.console import stdout
from tailcut.common.bounds import Bound, allowed
from tailcut.registry import Change, Diff, Promotion, Version
from tailcut.report.builds import figures as build_figures
from tailcut.report.builds.figures import size

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["differences", "print_table", "refusals", "size", "summary", "table"]


def table(version: Version, promotion: Promotion | None) -> Table:
    """Make the table: a row per variant that was made, with quality, latency under load, cost and verdict."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    rows = build_figures.rows(version, promotion)
    metrics = list(dict.fromkeys(metric for row in rows for metric in row.metrics))
    money = any(row.money != build_figures.NONE for row in rows)
    found = Table(box=SIMPLE_HEAD, pad_edge=False)
    found.add_column("variant")
    for name in ("size", *metrics):
        found.add_column(name, justify="right", no_wrap=True)
    latency = f"{build_figures.percentile(version)} under load"
    for name in ("drop, upper limit", latency, "ratio", "CPU per 1M", *(["cost per 1M"] if money else []), "verdict"):
        found.add_column(name, justify="right" if name.endswith("1M") else "left", no_wrap=True)
    for row in rows:
        found.add_row(
            row.name,
            row.size,
            *(row.metrics.get(metric, build_figures.NONE) for metric in metrics),
            row.drop,
            row.latency,
            row.ratio,
            row.cpu,
            *([row.money] if money else []),
            row.verdict,
        )
    return found


def print_table(found: Table) -> None:
    """Print on stdout, as wide as the table is: a narrow terminal wraps lines, but no figure is cut."""
    console = stdout()
    wide = console.options.update(max_width=10_000)
    console.width = max(console.width, console.measure(found, options=wide).maximum)
    console.print(found)


def refusals(version: Version) -> Iterable[str]:
    """One text per refused variant with the reason, then one per reason why variants were not made."""
    made = [
        f"{name} refused: {each.refused}" for name, each in version.variants.items() if each.refused and each.sha256
    ]
    return [*made, *build_figures.not_made(version)]


def summary(version: Version) -> Iterable[str]:
    """What the figures rest on."""
    evidence = version.evidence
    cpu, holdout, race = (evidence.get(name, {}) for name in ("cpu", "holdout", "race"))
    source = version.variants[version.source].evidence
    constant = source.get("constant", {})
    for warning in [*source.get("recipe", {}).get("warnings", []), *source.get("warnings", [])]:
        yield f"WARNING: {warning}"
    yield from _labels(version)
    yield from _outputs(version)
    yield from _limits(version)
    yield from _feature_models(version)
    if left_out := evidence.get("code_left_out"):
        yield f"the stored copy of your code is incomplete: it lacks {left_out}"
    if constant:
        figures = ", ".join(f"{name} {value:.4f}" for name, value in constant.items())
        yield f"a constant answer: {figures}"
    yield from build_figures.rows_alone(version)
    yield from build_figures.logged(version)
    if cpu and holdout:
        yield (
            f"on {cpu['model']}, {cpu['cores']} cores ({', '.join(cpu['flags'])}); holdout of {holdout['rows']} rows"
            f"{_judged_on(holdout)}; "
            f"bare runtime latency, threads {_threads(race.get('threads', '?'))}, medians of {race.get('rounds', '?')} "
            f"interleaved rounds; under load {build_figures.load(version)}"
        )


def _judged_on(holdout: Mapping[str, Any]) -> str:
    judged = holdout.get("confirmation", {}).get("rows", holdout["rows"])
    return f", judged on {judged} of them" if judged != holdout["rows"] else ""


def _labels(version: Version) -> Iterable[str]:
    """Say which label stands for which class."""
    found = version.variants[version.source].evidence.get("recipe", {}).get("labels")
    if found and "classes" in found:
        yield f"classes in the order of the columns: {', '.join(map(repr, found['classes']))} ({found['from']})"
    elif found:
        yield f"the score stands for the label {found['positive']!r} ({found['from']})"


def _limits(version: Version) -> Iterable[str]:
    """Say which limits of inputs the model proves by itself: requests beyond them are answered 400."""
    for bound in msgspec.convert(version.evidence.get("bounds", []), list[Bound]):
        columns = f" columns {', '.join(map(str, bound.columns))}" if bound.columns else ""
        limits = [] if bound.max_length is None else [f"at most {bound.max_length} long"]
        if bound.values is not None or bound.min is not None or bound.max is not None:
            limits.append(allowed(bound.min, bound.max, bound.values))
        why = f" ({bound.why})" if bound.why else ""
        yield f"input {bound.input!r}{columns}: {', '.join(limits)}{why}; other values get status 400"


def _feature_models(version: Version) -> Iterable[str]:
    """Say with which versions of the models that compute features a version was judged."""
    recorded = version.evidence.get("feature_models", {})
    for group in version.manifest.get("features", {}).get("groups", []):
        if not (model := group.get("model")):
            continue
        where = f"features.groups {group['name']!r}"
        if model in recorded:
            yield f"{where}: judged with answers of model {model!r} version {recorded[model]}"
        else:
            yield f"{where}: no version of model {model!r} was recorded, so servers call this version unjudged"


def _outputs(version: Version) -> Iterable[str]:
    """One line per variant of a model with several outputs: each beside the source's."""
    for name, each in version.variants.items():
        compared = each.evidence.get("outputs", {})
        if len(compared) > 1:
            yield f"{name}, outputs beside the source's: {'; '.join(map(build_figures.compared, compared.items()))}"


def differences(diff: Diff) -> Iterable[str]:
    """One line per difference, grouped by what it is about."""
    if diff.same:
        yield f"{diff.old} and {diff.new} have the same artifacts, settings, metrics, manifest and code"
        return
    yield f"{diff.old} -> {diff.new}"
    yield from (f"  + {name}" for name in diff.added)
    yield from (f"  - {name}" for name in diff.removed)
    groups = {**diff.changed, "version": diff.version, "manifest": diff.manifest, "code": diff.code}
    for name, changes in groups.items():
        if changes:
            yield f"  {name}"
            yield from (f"    {_change(each)}" for each in changes)


def _change(change: Change) -> str:
    old, new = (_value(change.what, value) for value in (change.old, change.new))
    return f"{change.what}: {old} -> {new}"


def _value(what: str, value: Any) -> str:
    if value is None:
        return "none"
    if what == "sha256" or what.startswith("origins."):
        return str(value)[:12]
    if what == "size_bytes":
        return f"{value} ({size(value)})"
    return f"{value:.6g}" if isinstance(value, float) else str(value) or "empty"


def _threads(threads: Any) -> str:
    """Say how many threads the bare runtimes had: one number, or each variant's own."""
    if not isinstance(threads, Mapping):
        return str(threads)
    return (
        ", ".join(f"{count} ({name})" for name, count in threads.items())
        if len(set(threads.values())) > 1
        else str(next(iter(threads.values()), "?"))
    )
