"""Combinations in ``[cache]`` and of ``serve.fallback`` that cannot work. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tailcut.common.units import format_share
from tailcut.errors import ManifestError
from tailcut.manifest.keys import nearest
from tailcut.manifest.schema import Deployment, PredictionCache

_MOST_DIGITS = 15
"""A double has no more."""
STALE = "stale"


def cache_problems(deployment: Deployment) -> Iterator[ManifestError]:
    """Yield every impossible combination."""
    caches: dict[str, PredictionCache] = {"entity": deployment.cache.entity, "tensor": deployment.cache.tensor}
    for name, cache in caches.items():
        if cache.enabled and cache.shared and not deployment.features.redis:
            yield ManifestError(
                f"cache.{name}.shared: true, but features.redis is empty, so there is nothing to share through",
                hint='set redis = "redis://localhost:6379/0" in [features]',
            )
        if not 0 <= cache.ttl_jitter < 1:
            yield ManifestError(
                f"cache.{name}.ttl_jitter: {format_share(cache.ttl_jitter)} is not from 0% to below 100%",
                hint='write a share of the TTL, such as "10%"',
            )
    yield from _digits(deployment)
    serve = deployment.serve
    if STALE in serve.fallback and not any(cache.enabled and cache.stale_for_s for cache in caches.values()):
        yield ManifestError(
            'serve.fallback: "stale" needs a prediction cache that keeps expired answers',
            hint='set enabled = true and stale_for = "1m" in [cache.entity] or [cache.tensor]',
        )
    for name in serve.fallback:
        if serve.fallback.count(name) > 1:
            yield ManifestError(f"serve.fallback: {name} is listed twice", hint="name each fallback once")


def _digits(deployment: Deployment) -> Iterator[ManifestError]:
    inputs = {tensor.name: tensor for tensor in deployment.model.inputs}
    for name, digits in deployment.cache.tensor.round_digits.items():
        path = f"cache.tensor.round_digits.{name}"
        if name not in inputs:
            close = nearest(name, inputs)
            hint = f"did you mean {close}?" if close else f"its inputs are: {', '.join(inputs)}"
            yield ManifestError(f"{path}: the model has no such input", hint=hint)
        elif not inputs[name].datatype.startswith("FP"):
            yield ManifestError(
                f"{path}: the input is {inputs[name].datatype}, which has no decimals",
                hint="round float inputs only",
            )
        if not 0 <= digits <= _MOST_DIGITS:
            yield ManifestError(
                f"{path}: {digits} is not from 0 to {_MOST_DIGITS}", hint="write a number of decimals, such as 4"
            )
