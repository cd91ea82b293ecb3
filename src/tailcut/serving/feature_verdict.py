"""Whether a model was judged with the answers of the models that compute its features.

A build judges variants on a holdout, whose rows hold features as other models computed them at that time. It records
their versions. Where another version answers now, the verdict is about other inputs than those that are served.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailcut.errors import NotServable
from tailcut.manifest import Deployment
from tailcut.registry import Variant

STRICT = "serve.strict = true (`tailcut serve --strict`)"
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
