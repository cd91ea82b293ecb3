"""The part of the manifest that says where features come from. Public names are those of ``schema``."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from tailcut.common.units import Duration, Share, Size
from tailcut.manifest.section import NAME_PATTERN, Section


class FeatureGroup(Section, frozen=True, kw_only=True):
    """Features that share a source, a key and a TTL.

    ``sql`` reads from a relation named ``keys`` that tailcut puts in front (one row per entity asked for, with the
    columns of ``key``) and may use ``:now`` (seconds since the epoch, from ``features.clock``) and ``:tenant``.
    It returns the key columns and the features, each once and in any order; keys without a row are unknown.
    """

    name: Annotated[
        str,
        Meta(
            description="name of the group; part of cache keys, metrics and errors",
            pattern=NAME_PATTERN,
            examples=["weather"],
        ),
    ]
    key: Annotated[
        tuple[str, ...],
        Meta(
            description="columns of the key: fields of the entity or columns of another group",
            min_length=1,
            examples=[("airport",)],
        ),
    ]
    columns: Annotated[
        tuple[str, ...],
        Meta(description="feature columns of this group", min_length=1, examples=[("temperature", "wind")]),
    ]
    ttl: Annotated[
        str,
        Meta(
            description="lifetime of a value: a duration, or 'package.module:callable' (key, row) -> seconds",
            examples=["5m"],
        ),
    ]
    sql: Annotated[
        str,
        Meta(
            description="query over the relation `keys`, with :now and :tenant; returns key columns and features, "
            "matched by name",
            examples=["SELECT airport, temperature, wind FROM keys JOIN weather USING (airport)"],
        ),
    ] = ""
    function: Annotated[
        str,
        Meta(
            description="'package.module:callable', sync or async, (keys, context) -> list with a dict or None per key",
            examples=["my_model:weather"],
        ),
    ] = ""
    model: Annotated[
        str,
        Meta(
            description="another model of the same server (see docs/how-to/several-models.md): each key is a row for "
            "it, with the key's columns as fields; columns are its outputs, or fields of its answers. Vectors are "
            "allowed",
            examples=["minilm"],
        ),
    ] = ""
    stale_for_s: Annotated[
        Duration, Meta(description="time after expiry during which a value may be served while its source fails")
    ] = field(default=Duration(0.0), name="stale_for")
    defaults: Annotated[
        dict[str, float | int | str | None],
        Meta(
            description="default values for an entity without a row, for all columns or none; none: such an entity is "
            "unknown (404)",
            examples=[{"temperature": 10.0, "wind": 5.0}],
        ),
    ] = field(default_factory=dict)
    preload: Annotated[
        bool, Meta(description="keep the whole table in memory, read once per TTL; needs preload_sql or a function")
    ] = False
    preload_sql: Annotated[
        str,
        Meta(
            description="query without `keys` that returns the whole table: key columns and features, matched by name",
            examples=["SELECT airport, temperature, wind FROM weather"],
        ),
    ] = ""
    per_tenant: Annotated[bool, Meta(description="values differ between tenants")] = False


class Features(Section, frozen=True, kw_only=True):
    """Where features come from and how they are cached."""

    entity: Annotated[
        tuple[str, ...],
        Meta(
            description="fields that identify an entity; with one field, entities are plain values",
            examples=[("airport",)],
        ),
    ] = ()
    database: Annotated[
        str,
        Meta(
            description="'postgresql://...' or 'sqlite:///path'; ${NAME} is taken from the environment",
            examples=["sqlite:///features.db"],
        ),
    ] = ""
    connections: Annotated[int, Meta(description="maximum number of database connections", ge=1)] = 8
    clock: Annotated[
        str,
        Meta(
            description="'package.module:callable' -> seconds since the epoch for :now; empty: wall clock",
            examples=["time:time"],
        ),
    ] = ""
    concurrent: Annotated[bool, Meta(description="fetch all groups of a request at once instead of one by one")] = True
    cache: Annotated[
        Literal["off", "memory", "redis"],
        Meta(
            description="where group values are cached; redis: shared between servers, behind this server's memory; "
            "${NAME:-default} is taken from the environment"
        ),
    ] = "memory"
    redis: Annotated[
        str,
        Meta(
            description="'redis://host:port/db'; ${NAME} is taken from the environment",
            examples=["redis://localhost:6379/0"],
        ),
    ] = ""
    redis_timeout_s: Annotated[
        Duration, Meta(description="maximum wait for Redis; after several failures Redis is bypassed for a while")
    ] = field(default=Duration(0.02), name="redis_timeout")
    max_bytes: Annotated[Size, Meta(description="maximum memory for cached values")] = Size(64 * 1024 * 1024)
    ttl_jitter: Annotated[
        Share,
        Meta(description="random shortening of TTLs, by up to this share, so that entries do not expire together"),
    ] = Share(0.1)
    refresh_ahead: Annotated[bool, Meta(description="refresh values in use before they expire, in the background")] = (
        True
    )
    timeout_s: Annotated[
        Duration,
        Meta(
            description="maximum time of one call of a group's source. A key that is missed while two calls run waits "
            "for one of them first, so a request may wait for twice this time (longer if over 256 keys wait), but not "
            "beyond its deadline"
        ),
    ] = field(default=Duration(0.5), name="timeout")
    groups: Annotated[tuple[FeatureGroup, ...], Meta(description="the feature groups")] = ()
