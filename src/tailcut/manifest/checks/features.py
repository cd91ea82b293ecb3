"""Combinations in ``[features]`` that cannot work. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tailcut.common.units import UnitError, parse_duration
from tailcut.errors import ManifestError
from tailcut.manifest.checks.rules import broken
from tailcut.manifest.keys import meant, repeated
from tailcut.manifest.levels import groups_in_levels
from tailcut.manifest.schema import Deployment, FeatureGroup, Features

_DATABASES = ("postgresql://", "sqlite:///")
_REDISES = ("redis://", "rediss://", "unix://")


def feature_problems(deployment: Deployment) -> Iterator[ManifestError]:
    """Yield what cannot work in ``[features]`` and ``[cache]``."""
    features = deployment.features
    yield from _stores(features)
    yield from _durations(deployment)
    yield from broken(
        (
            bool(features.groups) and not features.entity,
            "features.entity: empty, but there are feature groups",
            'name the entity\'s fields: entity = ["id"]',
        ),
        (
            deployment.cache.entity.enabled and not features.groups,
            "cache.entity.enabled: true, but without feature groups no request names an entity",
            "set cache.entity.enabled = false (cache.tensor.enabled = true caches by the model's inputs), or "
            "define feature groups under [features]",
        ),
    )
    for group in features.groups:
        yield from _group(group, features)
    names = repeated(group.name for group in features.groups)
    for name in names:
        yield ManifestError(f"features.groups: two groups are named {name}", hint="give each its own name")
    columns = list(_column_owners(features))
    yield from columns
    if not names and not columns:
        try:
            groups_in_levels(features)
        except ManifestError as error:
            yield error


def _stores(features: Features) -> Iterator[ManifestError]:
    sql = [group.name for group in features.groups if group.sql or group.preload_sql]
    yield from broken(
        (
            features.cache == "redis" and not features.redis,
            'features.cache: "redis" needs features.redis, which is empty',
            'set redis = "redis://localhost:6379/0" in [features], or cache = "memory"',
        ),
        (
            bool(sql) and not features.database,
            f"features.database: empty, but {', '.join(sql)} read with SQL",
            'set database = "sqlite:///features.db" or "postgresql://user@host/name" in [features]',
        ),
    )
    for name, url, schemes in (("database", features.database, _DATABASES), ("redis", features.redis, _REDISES)):
        # What is still to come from the environment (see loading) cannot be judged yet.
        if url and not url.startswith((*schemes, "${")):
            scheme = url.partition("//")[0]
            yield ManifestError(
                f'features.{name}: tailcut cannot open a URL that begins with "{scheme}"',
                hint=f"it must begin with {' or '.join(schemes)}",
            )


def _durations(deployment: Deployment) -> Iterator[ManifestError]:
    features, cache = deployment.features, deployment.cache
    values = {"features.timeout": features.timeout_s, "features.redis_timeout": features.redis_timeout_s}
    values |= {f"cache.{name}.ttl": one.ttl_s for name, one in (("entity", cache.entity), ("tensor", cache.tensor))}
    for path, seconds in values.items():
        if seconds <= 0:
            yield ManifestError(f"{path}: 0s leaves no time", hint='write a time above zero, such as "20ms"')


def _group(group: FeatureGroup, features: Features) -> Iterator[ManifestError]:
    path = f"features.groups.{group.name}"
    if group.function and (group.sql or group.preload_sql):
        which = "sql" if group.sql else "preload_sql"
        yield ManifestError(f"{path}: has both {which} and function", hint="keep one source and remove the other")
    elif group.model and (group.function or group.sql or group.preload_sql):
        yield ManifestError(f"{path}: has model and another source", hint="keep one source and remove the other")
    elif group.model and group.preload:
        yield ManifestError(f"{path}.preload: a model has no table to preload", hint="set preload = false")
    elif not (group.model or group.function or group.sql) and not (group.preload and group.preload_sql):
        yield ManifestError(f"{path}: has no source", hint="give it sql, function or model")
    elif group.preload and not group.preload_sql and not group.function:
        yield ManifestError(
            f"{path}.preload: true needs preload_sql or function, but neither is set",
            hint="set preload_sql to a query that returns the whole table, or set preload = false",
        )
    if group.preload and group.per_tenant:
        yield ManifestError(
            f"{path}.preload: a preloaded table has no values per tenant", hint="remove per_tenant or preload"
        )
    yield from _ttl(path, group)
    yield from _defaults(path, group)
    for name, columns in (("key", group.key), ("columns", group.columns)):
        for column in repeated(columns):
            yield ManifestError(f"{path}.{name}: {column} is listed twice", hint="name each column once")
    for column in group.columns:
        if column in features.entity:
            yield ManifestError(
                f"{path}.columns: {column} is already a field of the entity",
                hint=f"remove it from the columns, or rename it in the source (AS {group.name}_{column})",
            )


def _ttl(path: str, group: FeatureGroup) -> Iterator[ManifestError]:
    if ":" in group.ttl:
        if group.preload:
            yield ManifestError(
                f"{path}.ttl: a function, but a preloaded table has one TTL", hint='write a duration such as "30s"'
            )
        return
    try:
        ttl_s = parse_duration(group.ttl)
    except UnitError as error:
        yield ManifestError(f"{path}.ttl: {error}", hint="write a duration or 'package.module:callable'")
        return
    if ttl_s <= 0:
        yield ManifestError(
            f"{path}.ttl: {group.ttl} would never be fresh",
            hint='write a time above zero; to read every value on every request, set features.cache = "off"',
        )


def _defaults(path: str, group: FeatureGroup) -> Iterator[ManifestError]:
    for name in group.defaults:
        if name not in group.columns:
            hint = meant(name, group.columns, f"its columns are: {', '.join(group.columns)}")
            yield ManifestError(f"{path}.defaults: {name} is not a column of this group", hint=hint)
    missing = [column for column in group.columns if column not in group.defaults]
    if group.defaults and missing:
        yield ManifestError(
            f"{path}.defaults: {', '.join(missing)} have no default, but other columns have",
            hint="give a default (such as nan) to all columns or to none; without defaults an entity without a row "
            "gets 404",
        )


def _column_owners(features: Features) -> Iterator[ManifestError]:
    owner: dict[str, str] = {}
    for group in features.groups:
        for column in dict.fromkeys(group.columns):
            if column in owner:
                yield ManifestError(
                    f"features.groups.{group.name}.columns: {column} also belongs to group {owner[column]}",
                    hint=f"rename one of them in its source (AS {group.name}_{column})",
                )
            owner.setdefault(column, group.name)
