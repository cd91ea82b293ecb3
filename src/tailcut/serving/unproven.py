"""Variants whose answers the gate refused: served only where the operator says so."""

from __future__ import annotations

from tailcut.errors import NotServable
from tailcut.manifest import Manifest
from tailcut.registry import Registry, Variant, quality_refusal

FORCED = "serve.force = true (`tailcut serve --force`)"


def refuse_unproven(manifest: Manifest, variant: Variant) -> None:
    """Refuse a variant that ``serve.variant`` names although the gate refused its answers.

    Allowed are one that was refused for its speed only, one that was promoted (with --force, then), and any with
    ``serve.force``. Reads the registry.

    Raises:
        NotServable: with the gate's verdict, and the way out.
    """
    serve = manifest.deployment.serve
    why = quality_refusal(variant)
    if not why or serve.force or serve.variant == "promoted":
        return
    registry = Registry.of(manifest)
    promotion = registry.promotion(variant.model)
    if promotion is not None and (promotion.version, promotion.variant) == (variant.version, variant.name):
        return
    others = registry.version(variant.model, variant.version).variants
    right = [name for name, each in others.items() if each.sha256 and not quality_refusal(each)]
    raise NotServable(
        f"variant {variant.name!r} of model {variant.model!r} version {variant.version} was refused by the quality "
        f"gate: {why}",
        hint=f"serve {' or '.join(map(repr, right)) or 'another version'}; to serve it anyway set {FORCED}",
    )
