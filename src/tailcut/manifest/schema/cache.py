"""The part of the manifest that says how predictions are cached. Public names are those of ``schema``."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from tailcut.common.units import Duration, Share, Size
from tailcut.manifest.section import Section


class PredictionCache(Section, frozen=True, kw_only=True):
    """One of the two prediction caches."""

    enabled: Annotated[bool, Meta(description="use this cache")] = False
    auto: Annotated[
        bool,
        Meta(
            description="measure saved and added time: switch the cache off while it does not pay, and on when repeats "
            "return; false: always on, with advice in the log"
        ),
    ] = True
    ttl_s: Annotated[Duration, Meta(description="maximum age of an entry")] = field(default=Duration(5.0), name="ttl")
    ttl_jitter: Annotated[
        Share,
        Meta(description="random shortening of the TTL, by up to this share, so that entries do not expire together"),
    ] = Share(0.1)
    stale_for_s: Annotated[
        Duration,
        Meta(
            description="time after expiry during which serve.fallback may use an answer, marked x-tailcut-cache: "
            "stale; auto then has no effect"
        ),
    ] = field(default=Duration(0.0), name="stale_for")
    max_bytes: Annotated[Size, Meta(description="maximum memory for entries")] = Size(32 * 1024 * 1024)
    shared: Annotated[
        bool, Meta(description="share answers between servers through features.redis, behind this server's memory")
    ] = False


class TensorCache(PredictionCache, frozen=True, kw_only=True):
    """The cache keyed by the model's inputs."""

    normalise: Annotated[
        Literal["exact", "zeros"],
        Meta(
            description="exact: inputs with different bits have different keys; zeros: -0.0 equals 0.0, and all NaN "
            "are equal"
        ),
    ] = "exact"
    round_digits: Annotated[
        dict[str, int],
        Meta(
            description="float input -> decimals kept in the cache key; requests with equal rounded inputs get the "
            "answer of the first, so answers may differ",
            examples=[{"features": 4}],
        ),
    ] = field(default_factory=dict)


class Cache(Section, frozen=True, kw_only=True):
    """Prediction caches: by entity (before features) and by the model's inputs (after preprocessing)."""

    entity: Annotated[
        PredictionCache, Meta(description="keyed by entity; an entry expires with the features it was computed from")
    ] = PredictionCache()
    tensor: Annotated[TensorCache, Meta(description="keyed by the model's input tensors")] = TensorCache()
