"""Checks of a variant before it is served, and warnings about it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tailcut.code.digest import few
from tailcut.code.files import lacks as lacking_on_disk
from tailcut.code.loaded import LoadedCode
from tailcut.errors import ArtifactError, NotServable
from tailcut.manifest import Deployment, Manifest
from tailcut.manifest.answer_settings import other_settings, other_tensors
from tailcut.models.deployment_version import is_live, opening_references, opens_with_code
from tailcut.registry import Registry, Variant

if TYPE_CHECKING:
    from tailcut.serving.deployment_loader import Opened

STRICT = "serve.strict = true (`tailcut serve --strict`)"

# A build judges variants on a holdout, whose rows hold features as other models computed them at that time. It records
# their versions. Where another version answers now, the verdict is about other inputs than those that are served.

_UNBUILT = "source"
"""Version of a file that is served without a build: nothing judged it, whatever its features are."""


def answering_version(variant: Variant) -> str:
    """Name what answers: version and variant; of a file that is served without a build, its hash."""
    if variant.version == _UNBUILT:
        return f"{_UNBUILT} {variant.sha256[:12]}"
    return f"{variant.version} ({variant.name})"


def unjudged(deployment: Deployment, variant: Variant, served: Mapping[str, str]) -> str:
    """Say why the verdict on a variant is not about the features that it gets here; empty where it is.

    Args:
        served: what answers now of each model that is loaded: see ``answering_version``.
    """
    if variant.version == _UNBUILT:
        return ""
    reasons = []
    for model in feature_models(deployment):
        judged, now = variant.feature_models.get(model, ""), served.get(model, "")
        if not judged:
            reasons.append(f"its build recorded no version of model {model!r}, which computes its features")
        elif now and now != judged:
            reasons.append(f"it was judged with features of model {model!r} version {judged}, and {now} answers now")
    return "; ".join(reasons)


def refuse_unjudged(deployment: Deployment, variant: Variant, served: Mapping[str, str]) -> None:
    """Refuse a variant that was not judged with the features that it gets here, where ``serve.strict`` says so.

    Args:
        served: see ``unjudged``; a model that is not loaded cannot be compared.

    Raises:
        NotServable: it names both versions, and the way out.
    """
    if not deployment.serve.strict or variant.version == _UNBUILT:
        return
    why = unjudged(deployment, variant, served)
    missing = [model for model in feature_models(deployment) if model not in served]
    if not why and missing:
        why = f"model {missing[0]!r}, which computes its features, is not loaded, so their versions cannot be compared"
    if why:
        first = f"load {missing[0]!r} first, or " if missing else ""
        raise NotServable(
            f"variant {variant.name!r} of model {variant.model!r} version {variant.version} is unjudged here: {why}",
            hint=f"{first}judge it with `{build_command(deployment)}`; it is refused because of {STRICT}",
        )


def feature_models(deployment: Deployment) -> tuple[str, ...]:
    """Name the models that compute features of a model, each once."""
    return tuple(dict.fromkeys(group.model for group in deployment.features.groups if group.model))


def build_command(deployment: Deployment) -> str:
    """Return the command that judges a model with the models that compute its features."""
    return " ".join(["tailcut build", *(f"-m {name}" for name in (deployment.name, *feature_models(deployment)))])


# -- Variants whose answers the gate refused ---------------------------------------------------------------------------


# They are served only where the operator says so.

FORCED = "serve.force = true (`tailcut serve --force`)"


def refuse_unproven(manifest: Manifest, variant: Variant) -> None:
    """Refuse a variant that ``serve.variant`` names although the gate refused its answers.

    Allowed are one that was refused for its speed only, one that was promoted (with --force, then), and any with
    ``serve.force``. Reads the registry.

    Raises:
        NotServable: with the gate's verdict, and the way out.
    """
    serve = manifest.deployment.serve
    why = variant.evidence.quality_refusal
    if not why or serve.force or serve.variant == "promoted":
        return
    registry = Registry.of(manifest)
    promotion = registry.promotion(variant.model)
    if promotion is not None and (promotion.version, promotion.variant) == (variant.version, variant.name):
        return
    others = registry.version(variant.model, variant.version).variants
    right = [name for name, each in others.items() if each.sha256 and not each.evidence.quality_refusal]
    raise NotServable(
        f"variant {variant.name!r} of model {variant.model!r} version {variant.version} was refused by the quality "
        f"gate: {why}",
        hint=f"serve {' or '.join(map(repr, right)) or 'another version'}; to serve it anyway set {FORCED}",
    )


# -- Variants of another build -----------------------------------------------------------------------------------------


# Their manifest or code is not that of this process: they are refused.


def refuse_other_model(manifest: Manifest, files: LoadedCode, variant: Variant) -> None:
    """Refuse what this process cannot serve, because its manifest or the user's code is of another build.

    Code is compared as this process has imported it, whatever its files are by now. What opening the variant imports
    is imported here, where no file has changed since the start.

    Raises:
        ArtifactError: the tensors, settings that answers depend on, or the code differ.
    """
    deployment, live = manifest.deployment, is_live(variant)
    refuse_other_tensors(deployment, variant)
    if differ := other_settings(deployment, variant.manifest, live=live):
        raise ArtifactError(
            f"{_what(variant)} it was built with another manifest than this server was started with: {few(differ)}",
            hint=_RESTART,
        )
    _refuse_other_code(manifest, files, variant)
    if (variant.code is None or opens_with_code(manifest, variant)) and (changed := files.changed()):
        raise ArtifactError(f"{_what(variant)} {few(changed)} changed since this server started", hint=_RESTART)
    files.import_also(opening_references(manifest, variant))
    _refuse_other_code(manifest, files, variant)


def _refuse_other_code(manifest: Manifest, files: LoadedCode, variant: Variant) -> None:
    live = is_live(variant)
    if variant.code is not None and (lacks := files.lacks(variant.code, live=live)):
        there = not lacking_on_disk(manifest, variant.code, live=live)
        put_back = f"restore its code with `tailcut registry code {variant.version} FOLDER`, then restart to serve it"
        raise ArtifactError(
            f"{_what(variant)} it was built with other code than this server has loaded: {few(lacks)}",
            hint=_RESTART if there else f"{put_back}; until then this server keeps the old variant",
        )


def refuse_other_tensors(deployment: Deployment, variant: Variant) -> None:
    """Refuse a variant whose inputs or outputs are not those of the manifest.

    Raises:
        ArtifactError: they differ.
    """
    if differ := other_tensors(deployment, variant.inputs, variant.outputs):
        raise ArtifactError(f"{_what(variant)} {differ}", hint=_RESTART)


_RESTART = "restart to serve it; until then this server keeps the old variant"


def _what(variant: Variant) -> str:
    return f"variant {variant.name!r} of version {variant.version} is to be served, but"


# -- Warnings for the operator -----------------------------------------------------------------------------------------


# Where a served variant was measured, and with what code it was built.

log = logging.getLogger("tailcut.server")


def tell_code(deployment: Deployment, variant: Variant, files: LoadedCode) -> None:
    """Tell the operator where a variant is served with another manifest or code than it was built and judged with.

    Args:
        files: the code that this process has loaded.
    """
    if differ := other_settings(deployment, variant.manifest, live=is_live(variant)):
        log.warning(
            "variant %s of version %s was built with another manifest than the served one: %s; cached answers are kept "
            "apart. `tailcut build` judges it with this manifest",
            variant.name,
            variant.version,
            few(differ),
        )
    if variant.code is None:
        return
    if lacks := files.lacks(variant.code, live=is_live(variant)):
        log.warning(
            "variant %s of version %s was built with other code than the served code: %s; cached answers are kept "
            "apart. "
            "`tailcut build` judges it with this code, `tailcut registry code %s FOLDER` writes out the other",
            variant.name,
            variant.version,
            few(lacks),
            variant.version,
        )


def tell_trust(variant: Variant) -> None:
    """Tell the operator where a variant's speed was measured on other hardware."""
    if variant.trust.level == "remeasure":
        log.warning(
            "variant %s of version %s is served, but its speed was measured on another machine: %s; "
            "`tailcut build --from-registry` measures it here",
            variant.name,
            variant.version,
            variant.trust.reason,
        )


def tell_unjudged(deployment: Deployment, variant: Variant, why: str) -> None:
    """Tell the operator where a variant gets its features from another version of a model than it was judged with."""
    log.warning(
        "variant %s of version %s is served unjudged: %s; `%s` judges it",
        variant.name,
        variant.version,
        why,
        build_command(deployment),
        extra={"model": deployment.name},
    )


def tell_ready(name: str, opened: Opened, took_s: float, where: str) -> None:
    """Tell the operator what is served from now on, and how.

    Args:
        where: that it is reached at, to follow "is ready".
    """
    batch_ms = {rows: round(ns / 1e6, 3) for rows, ns in opened.warm.warm_up_ns.items()}
    log.info(
        "%s is ready%s after %.1f s: variant %s (%s, version %s), %s executor (%s), %s%s%s",
        name,
        where,
        took_s,
        opened.variant.name,
        opened.variant.runtime,
        opened.variant.version,
        *opened.warm.choice,
        f"ms per batch of rows {batch_ms}" if batch_ms else "not warmed up: the first request warms it up",
        _sharing(opened),
        f"; refused by the gate: {opened.variant.refused}" if opened.variant.refused else "",
    )


def _sharing(opened: Opened) -> str:
    if opened.rows_alone:
        return ", each row runs alone: other rows in its batch would change its answer"
    return "" if opened.merges else ", requests do not share batches"
