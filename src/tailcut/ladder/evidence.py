"""What the registry says of the variants that rungs stand for: quality, and why one may not be served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tailcut.errors import ArtifactError
from tailcut.manifest import Manifest
from tailcut.registry import Registry, Version


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Of one version of the model.

    Args:
        source: the variant that all others are judged against.
        quality: per variant, its metrics on the holdout.
        refusals: per variant, why it may not be served.
    """

    source: str = ""
    quality: dict[str, dict[str, float]] = {}
    refusals: dict[str, str] = {}


def read_evidence(manifest: Manifest) -> Evidence:
    """Read the evidence of the promoted version, or of the latest one where none is promoted.

    Raises:
        ArtifactError: rungs stand for variants, and nothing was built.
    """
    deployment = manifest.deployment
    wanted = [rung.variant for rung in deployment.ladder.rungs if rung.variant]
    registry = Registry.of(manifest)
    try:
        promoted = registry.promotion(deployment.name) is not None
        version = registry.version(deployment.name, "promoted" if promoted else "latest")
    except ArtifactError:
        if wanted:
            raise
        return Evidence()
    return evidence_of(version, wanted)


def evidence_of(version: Version, wanted: list[str]) -> Evidence:
    """Take quality and refusals out of a version's record.

    Args:
        version: the record.
        wanted: variants that rungs stand for; one that the version lacks is refused.
    """
    refusals = {name: record.refused for name, record in version.variants.items() if record.refused}
    for name in wanted:
        if name not in version.variants:
            refusals[name] = f"not in the registry (version {version.id} has {', '.join(version.variants)})"
    quality = {name: _metrics(record.evidence) for name, record in version.variants.items()}
    return Evidence(source=version.source, quality=quality, refusals=refusals)


def _metrics(evidence: Mapping[str, Any]) -> dict[str, float]:
    found = evidence.get("metrics", {})
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
