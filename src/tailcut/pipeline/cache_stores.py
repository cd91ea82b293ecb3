"""Opens the prediction caches of a deployment."""

from __future__ import annotations

import logging
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from tailcut.cache import BypassedStore, MemoryStore
from tailcut.cache.keys import EXACT, Normal
from tailcut.cache.redis import open_redis
from tailcut.common.tensors import Arrays
from tailcut.manifest import Deployment, PredictionCache, TensorCache
from tailcut.pipeline.prediction_cache import Name, PredictionStore, json_bytes, size_bytes
from tailcut.pipeline.shared_cache import Form, JsonForm, SharedCache, StoredAnswer, TensorForm

_log = logging.getLogger("tailcut.cache")


class Caches(NamedTuple):
    """Both prediction caches, each None where it is off."""

    entity: PredictionStore[msgspec.Raw] | None
    tensor: PredictionStore[Arrays] | None

    async def close(self) -> None:
        """Close what is shared with other servers."""
        for cache in self:
            if cache is not None:
                await cache.close()


async def open_caches(deployment: Deployment) -> Caches:
    """Open the caches that the manifest enables.

    Raises:
        StartError: one is shared, and Redis refuses us or its URL is wrong. That it is down is no reason.
        MissingExtra: one is shared, and redis-py is not installed.
    """
    entity, tensor = deployment.cache.entity, deployment.cache.tensor
    wanted_by = [f"cache.{name}.shared" for name, one in (("entity", entity), ("tensor", tensor)) if _shares(one)]
    remote: BypassedStore[StoredAnswer] | None = None
    if wanted_by:
        features = deployment.features
        remote = await open_redis(features.redis, StoredAnswer, features.redis_timeout_s, f"{wanted_by[0]} = true")
    if tensor.enabled and tensor.round_digits:
        _log.warning(
            "cache.tensor.round_digits: requests whose inputs round alike get the answer of the first of them, so that "
            "answers may differ from the model's: %s",
            ", ".join(f"{name} to {digits} digits" for name, digits in tensor.round_digits.items()),
        )
    by_entity = deployment.features.groups and entity.enabled
    return Caches(
        _open(deployment, "entity", remote, JsonForm(), json_bytes) if by_entity else None,
        _open(deployment, "tensor", remote, TensorForm(), size_bytes) if tensor.enabled else None,
    )


def _shares(settings: PredictionCache) -> bool:
    return settings.enabled and settings.shared


def _open(
    deployment: Deployment, name: Name, remote: BypassedStore[StoredAnswer] | None, form: Form[Any], size: Any
) -> PredictionStore[Any]:
    settings = deployment.cache.entity if name == "entity" else deployment.cache.tensor
    shared = None
    if remote is not None and settings.shared:
        shared = SharedCache(remote, form, scope=_scope(deployment), ttl_s=settings.ttl_s)
    return PredictionStore(
        MemoryStore(settings.max_bytes, stale_for_s=settings.stale_for_s),
        settings.ttl_s,
        name=name,
        jitter=settings.ttl_jitter,
        size=size,
        shared=shared,
        # What it saves when there is no room for requests cannot be told from what it saves now.
        auto=settings.auto and not settings.stale_for_s,
        normal=_normal(settings) if isinstance(settings, TensorCache) else EXACT,
    )


def _normal(settings: TensorCache) -> Normal:
    if settings.normalise == "exact" and not settings.round_digits:
        return EXACT
    return Normal(settings.normalise == "zeros", settings.round_digits)


def _scope(deployment: Deployment) -> bytes:
    """Hash what an answer depends on beside the deployment version: staging and production may share a Redis."""
    features = deployment.features
    return blake2b(msgspec.msgpack.encode((features.database, features.clock)), digest_size=16).digest()
