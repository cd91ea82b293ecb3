"""The part of the manifest that says how predictions are cached. Public names are those of ``schema``."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from tailcut.common.units import Duration, Share, Size
from tailcut.manifest.section import Section


class PredictionCache(Section, frozen=True, kw_only=True):
    """One of the two prediction caches."""

    enabled: Annotated[bool, Meta(description="whether this cache is used")] = False
    auto: Annotated[
        bool,
        Meta(
            description="measure what it saves and costs: off while it does not pay, on again when repeats return; "
            "false: always on, with advice in the log"
        ),
    ] = True
    ttl_s: Annotated[Duration, Meta(description="longest life of an entry")] = field(default=Duration(5.0), name="ttl")
    ttl_jitter: Annotated[
        Share, Meta(description="lives vary by up to this share, so that entries do not expire at once")
    ] = Share(0.1)
    stale_for_s: Annotated[
        Duration,
        Meta(
            description="how long past its life an answer is kept for serve.fallback, marked x-tailcut-cache: stale; "
            "auto has no effect then"
        ),
    ] = field(default=Duration(0.0), name="stale_for")
    max_bytes: Annotated[Size, Meta(description="most memory for entries")] = Size(32 * 1024 * 1024)
    shared: Annotated[
        bool, Meta(description="share answers between servers in features.redis, with this one's memory in front")
    ] = False


class TensorCache(PredictionCache, frozen=True, kw_only=True):
    """The cache keyed by the model's inputs."""

    normalise: Annotated[
        Literal["exact", "zeros"],
        Meta(description="exact: other bits, another key; zeros: -0.0 and 0.0 are one value, and so are all NaN"),
    ] = "exact"
    round_digits: Annotated[
        dict[str, int],
        Meta(
            description="float input -> digits after the point that tell its values apart in the key; answers may "
            "differ: requests that look alike then get the answer of the first",
            examples=[{"features": 4}],
        ),
    ] = field(default_factory=dict)


class Cache(Section, frozen=True, kw_only=True):
    """Prediction caches: by entity (before features) and by the model's inputs (after preprocessing)."""

    entity: Annotated[
        PredictionCache, Meta(description="keyed by entity; never outlives the features it was made from")
    ] = PredictionCache()
    tensor: Annotated[TensorCache, Meta(description="keyed by the model's input tensors")] = TensorCache()
