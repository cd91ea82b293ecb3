"""How versions look on a terminal: one for ``build`` and ``registry show``, all of them for ``registry list``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tailcut.common.bounds import allowed
from tailcut.errors import ArtifactError
from tailcut.registry import Change, Diff, Promotion, Registry, Version, state_of
from tailcut.report.builds import figures as build_figures
from tailcut.report.builds.figures import size
from tailcut.report.document import Table, aligned


def summary(version: Version) -> Iterable[str]:
    """What the figures rest on."""
    evidence = version.evidence
    machine, holdout, race = evidence.machine, evidence.holdout, evidence.race
    source = version.variants[version.source].evidence
    for warning in [*source.recipe.warnings, *source.warnings]:
        yield f"WARNING: {warning}"
    yield from _labels(version)
    yield from _outputs(version)
    yield from _limits(version)
    yield from _feature_models(version)
    if evidence.code_left_out:
        yield f"the stored copy of your code is incomplete: it lacks {evidence.code_left_out}"
    if source.constant:
        figures = ", ".join(f"{name} {value:.4f}" for name, value in source.constant.items())
        yield f"a constant answer: {figures}"
    yield from build_figures.rows_alone(version)
    yield from build_figures.logged(version)
    if machine is not None and holdout is not None:
        judged = holdout.confirmation.rows
        part = f", judged on {judged} of them" if judged != holdout.rows else ""
        yield (
            f"on {machine.processor}, {machine.cores} cores ({', '.join(machine.flags)}); holdout of {holdout.rows} "
            f"rows{part}; bare runtime latency, threads {_threads(race.threads)}, medians of {race.rounds or '?'} "
            f"interleaved rounds; under load {build_figures.load(version)}"
        )


def _labels(version: Version) -> Iterable[str]:
    """Say which label stands for which class."""
    found = version.variants[version.source].evidence.recipe.labels
    if found is not None and found.classes:
        yield f"classes in the order of the columns: {', '.join(map(repr, found.classes))} ({found.origin})"
    elif found is not None:
        yield f"the score stands for the label {found.positive!r} ({found.origin})"


def _limits(version: Version) -> Iterable[str]:
    """Say which limits of inputs the model proves by itself: requests beyond them are answered 400."""
    for bound in version.evidence.bounds:
        columns = f" columns {', '.join(map(str, bound.columns))}" if bound.columns else ""
        limits = [] if bound.max_length is None else [f"at most {bound.max_length} long"]
        if bound.values is not None or bound.min is not None or bound.max is not None:
            limits.append(allowed(bound.min, bound.max, bound.values))
        why = f" ({bound.why})" if bound.why else ""
        yield f"input {bound.input!r}{columns}: {', '.join(limits)}{why}; other values get status 400"


def _feature_models(version: Version) -> Iterable[str]:
    """Say with which versions of the models that compute features a version was judged."""
    recorded = version.evidence.feature_models
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
        compared = each.evidence.outputs
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


def _threads(threads: Mapping[str, int]) -> str:
    """Say how many threads the bare runtimes had: one number, or each variant's own."""
    return (
        ", ".join(f"{count} ({name})" for name, count in threads.items())
        if len(set(threads.values())) > 1
        else str(next(iter(threads.values()), "?"))
    )


def list_rows(registry: Registry) -> tuple[list[dict[str, Any]], list[ArtifactError]]:
    """Make a row per version as plain values; what is wrong with one, or with a model's pointer, comes beside them."""
    rows: list[dict[str, Any]] = []
    errors: list[ArtifactError] = []
    for model in registry.models():
        promotion, unreadable = None, ""
        try:
            promotion = registry.promotion(model)
        except ArtifactError as error:
            errors.append(error)
            unreadable = error.message
        for version_id, version in registry.scan(model):
            if isinstance(version, ArtifactError):
                errors.append(version)
                rows.append({"model": model, "version": version_id, "error": version.message})
            else:
                rows.append(_row(version, promotion) | ({"error": unreadable} if unreadable else {}))
    return rows, errors


def list_table(rows: Sequence[dict[str, Any]]) -> str:
    """Lay the rows out."""
    lines = []
    for row in rows:
        if "states" not in row:
            lines.append((row["model"], row["version"], "", "cannot be read", ""))
            continue
        needs = {name: f"; needs {', '.join(code)}" for name, code in row["live_code"].items()}
        variants = ", ".join(f"{name} ({state}{needs.get(name, '')})" for name, state in row["states"].items())
        promoted = "cannot be read" if "error" in row else row["promoted"] or ""
        lines.append((row["model"], row["version"], row["created"][:19], variants, promoted))
    head = ("model", "version", "created (UTC)", "variants", "promoted")
    return aligned(Table(head=head, rows=tuple(lines), left=tuple(range(len(head)))))


def live_code_lines(version: Version) -> Iterator[str]:
    """Yield a text for each variant that the registry alone cannot serve, with the reason where there is one."""
    for name, each in version.variants.items():
        references = ", ".join(each.live_code)
        if each.sha256 and references:
            why = each.evidence.recipe.not_stored
            yield f"{name} needs live code {references}{f': not stored, because {why}' if why else ''}"


def _row(version: Version, promotion: Promotion | None) -> dict[str, Any]:
    here = promotion is not None and promotion.version == version.id
    made = [name for name, each in version.variants.items() if each.sha256]
    return {
        "model": version.model,
        "version": version.id,
        "created": version.created,
        "variants": made,
        "states": {name: state_of(version, name, promotion) for name in made},
        "live_code": {name: code for name in made if (code := version.variants[name].live_code)},
        "retired": version.retired or None,
        "promoted": promotion.variant if promotion is not None and here else None,
    }
