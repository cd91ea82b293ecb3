"""What ``tailcut registry list`` shows: a row per version, and what could not be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tailcut.errors import ArtifactError
from tailcut.registry import Promotion, Registry, Version, state_of
from tailcut.report.document import Table, aligned


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
        references = ", ".join(version.live_code(name))
        if each.sha256 and references:
            why = each.evidence.get("recipe", {}).get("not_stored", "")
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
        "live_code": {name: code for name in made if (code := version.live_code(name))},
        "retired": version.retired or None,
        "promoted": promotion.variant if promotion is not None and here else None,
    }
