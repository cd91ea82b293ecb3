"""Opens what feature groups need: databases, functions, tables. Every error says which group and which setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Any

import msgspec

from tailcut.common.units import parse_duration
from tailcut.errors import ManifestError, StartError
from tailcut.features.groups import Group
from tailcut.features.key_types import (
    ANY,
    BOOLEAN,
    DECLARED,
    MIXED,
    NUMERIC_OR_TEXT,
    SENT_AS_TEXT,
    TEXT,
    KeyType,
    common_type,
)
from tailcut.features.preload import PreloadedRows
from tailcut.features.sources.base import Source, SourceError
from tailcut.features.sources.model import ModelSource, ServedModel
from tailcut.features.sources.postgres import PostgresSource
from tailcut.features.sources.postgres_connections import PostgresDatabase
from tailcut.features.sources.python import FunctionSource
from tailcut.features.sources.queried import GroupQueries
from tailcut.features.sources.sql import Dialect, Query, compile_query, mentions_keys
from tailcut.features.sources.sqlite import SqliteDatabase, SqliteSource
from tailcut.manifest.schema import FeatureGroup, Features

Resolve = Callable[[str], Callable[..., Any]]
Models = Callable[[str, tuple[str, ...], str], ServedModel]
"""Name of a model, columns of the group's key, and where it is named in the manifest -> the model, or StartError."""

CodeOf = Callable[[Sequence[str]], bytes]
"""References to functions -> a hash of all code that they depend on."""

_SQLITE = "sqlite:///"


class Opener:
    """Opens groups one after the other and remembers what has to be closed.

    Args:
        resolve: ``'package.module:callable'`` -> the callable.
        monotonic_s: monotonic seconds.
        clock: seconds since the epoch for ``:now``.
        declared: types of fields as ``model.fields`` has them.
        code_of: hash of the code behind functions; of their names where None.
        models: finds other models of the server.
    """

    def __init__(
        self,
        features: Features,
        resolve: Resolve,
        monotonic_s: Callable[[], float],
        clock: Callable[[], float],
        declared: Mapping[str, str],
        code_of: CodeOf | None = None,
        models: Models | None = None,
    ) -> None:
        self._features = features
        self._resolve = resolve
        self.monotonic_s = monotonic_s
        self.clock = clock
        self._code_of = code_of or (lambda names: "\0".join(names).encode())
        self._declared = declared
        self._models = models
        self.field_types: tuple[KeyType, ...] = ()
        """Types of the entity's fields, once the groups are open."""
        self.database: PostgresDatabase | SqliteDatabase | None = None
        self.executor: ThreadPoolExecutor | None = None

    async def groups(self) -> list[Group]:
        """Open all groups, and settle the types of their keys.

        Raises:
            StartError: what is wrong, and where.
        """
        groups = [await self._group(spec) for spec in self._features.groups]
        self.field_types = tuple(
            _field_type(name, groups, self._declared.get(name, "any")) for name in self._features.entity
        )
        _settle(groups, self._features.entity, self.field_types)
        return groups

    async def _group(self, spec: FeatureGroup) -> Group:
        where = f'features.groups "{spec.name}"'
        ttl = self._resolved(spec.ttl, f"{where}: ttl") if ":" in spec.ttl else float(parse_duration(spec.ttl))
        source = await self._source(spec, where)
        return Group(
            spec=spec,
            own_id=self._fingerprint(spec),
            source=source,
            ttl=ttl,
            table=await self._table(spec, source, ttl, where),
            by_entity=set(spec.key) <= set(self._features.entity),
            key_is_entity=spec.key == self._features.entity,
        )

    async def close(self) -> None:
        """Close what was opened."""
        if self.database is not None:
            await self.database.close()
        if self.executor is not None:
            # A function that hangs must not hold up the exit.
            self.executor.shutdown(wait=False, cancel_futures=True)

    async def _source(self, spec: FeatureGroup, where: str) -> Source:
        if spec.function:
            if self.executor is None:
                self.executor = ThreadPoolExecutor(self._features.connections, thread_name_prefix="tailcut-features")
            function = self._resolved(spec.function, f"{where}: function")
            return FunctionSource(function, spec.key, spec.columns, self.executor, f"function {spec.function}")
        if spec.model:
            if self._models is None:
                raise StartError(
                    f"{where}: model {spec.model!r} is not served here",
                    hint="serve both in one server: tailcut serve -m THIS -m THE_OTHER, or a folder of both",
                )
            return ModelSource(self._models(spec.model, spec.key, where), spec.key, spec.columns, spec.model)
        if self.database is None:
            self.database = await self._open_database()
        sqlite = isinstance(self.database, SqliteDatabase)
        dialect: Dialect = "sqlite" if sqlite else "postgresql"
        query = _query(spec, dialect, where)
        preload: Query | None = None
        if spec.preload_sql:
            preload = compile_query(spec.preload_sql, dialect, 1, f"{where}: preload_sql")
            _check_tenant(preload, spec, f"{where}: preload_sql")
        group = GroupQueries(spec.key, spec.columns, query, preload, where)
        source: SqliteSource | PostgresSource
        if isinstance(self.database, SqliteDatabase):
            source = SqliteSource(self.database, group)
        else:
            declared = [DECLARED.get(self._declared.get(name, ""), ANY) for name in spec.key]
            source = PostgresSource(self.database, group, tuple(declared))
        await source.check()
        return source

    async def _open_database(self) -> PostgresDatabase | SqliteDatabase:
        url = self._features.database
        if not url or "${" in url:
            raise StartError(
                f"features.database is {url!r}, but a group has SQL", hint="write postgresql:// or sqlite:///"
            )
        if url.startswith(_SQLITE):
            return await SqliteDatabase.open(
                url.removeprefix(_SQLITE), self._features.connections, self._features.timeout_s
            )
        return await PostgresDatabase.open(url, self._features.connections)

    async def _table(
        self, spec: FeatureGroup, source: Source, ttl: float | Callable[..., Any], where: str
    ) -> PreloadedRows | None:
        # With the cache off a group is asked per request where it can be; a table would be a cache.
        if not spec.preload or (self._features.cache == "off" and (spec.sql or spec.function)):
            return None
        assert isinstance(ttl, float)
        table = PreloadedRows(spec.name, spec.columns, ttl, source, self.clock, self.monotonic_s)
        try:
            await table.load()
        except SourceError as error:
            raise StartError(
                f"{where}: the table could not be loaded: {error}",
                hint="check that it exists, can be read and has the group's columns; or correct the group's source",
            ) from error
        return table

    def _resolved(self, reference: str, where: str) -> Callable[..., Any]:
        try:
            return self._resolve(reference)
        except StartError:
            raise
        except ManifestError as error:
            raise StartError(f"{where}: {error.message}", hint=error.hint) from error
        except Exception as error:
            raise StartError(
                f"{where}: cannot load {reference!r}: {type(error).__name__}: {error}",
                hint="write 'package.module:callable' and put its folder on python_path",
            ) from error

    def _fingerprint(self, spec: FeatureGroup) -> bytes:
        """Hash of all that a group's values depend on, the code of its functions included."""
        features = self._features
        named = [spec.function, spec.ttl if ":" in spec.ttl else "", features.clock]
        sources = self._code_of([name for name in named if name])
        definition = (
            spec.name,
            spec.key,
            spec.columns,
            spec.sql,
            spec.function,
            spec.model,
            sorted(spec.defaults.items()),
        )
        settings = (features.database, features.clock, spec.per_tenant, sources)
        return blake2b(msgspec.msgpack.encode((definition, settings)), digest_size=16).digest()


def _query(spec: FeatureGroup, dialect: Dialect, where: str) -> Query | None:
    if not spec.sql:
        return None
    where = f"{where}: sql"
    if not mentions_keys(spec.sql):
        raise StartError(
            f"{where} does not read from `keys`, so it returns rows that were not requested", hint="join keys"
        )
    # PostgreSQL takes one array per key column, SQLite one JSON text for all.
    query = compile_query(spec.sql, dialect, 2 if dialect == "sqlite" else len(spec.key) + 1, where)
    _check_tenant(query, spec, where)
    return query


def _check_tenant(query: Query, spec: FeatureGroup, where: str) -> None:
    if "tenant" in query.parameters and not spec.per_tenant:
        raise StartError(
            f"{where} uses :tenant, but the group's values are shared by all tenants", hint="set per_tenant = true"
        )


def _field_type(name: str, groups: Sequence[Group], declared: str) -> KeyType:
    found = {
        group.name: group.source.key_types[group.spec.key.index(name)] for group in groups if name in group.spec.key
    }
    kind = common_type(list(found.values()))
    said = ", ".join(f"{kind.name} in {group}" for group, kind in found.items() if kind != ANY)
    if kind is None:
        raise StartError(
            f'features.entity: the field "{name}" is a key of several types: {said}',
            hint="cast the columns to one type in the groups' queries",
        )
    if (wanted := DECLARED.get(declared)) is None:
        return kind
    common = common_type([wanted, kind])
    # A column without a type does not say what it holds; the declaration does.
    if common == wanted or (kind == MIXED and wanted != BOOLEAN) or (wanted == TEXT and kind == NUMERIC_OR_TEXT):
        return wanted
    if (declared == "number" and common == kind) or (wanted == TEXT and kind in SENT_AS_TEXT):
        return kind
    raise StartError(
        f'model.fields: "{name}" is declared as {declared}, but the key is {said}',
        hint="declare the type of the column, or remove it",
    )


def _settle(groups: Sequence[Group], entity: Sequence[str], types: Sequence[KeyType]) -> None:
    """Tell each group which parts of its key differ from what a request's row holds."""
    of_field = dict(zip(entity, types, strict=True))
    for group in groups:
        own, known = group.key_types, group.source.key_types
        # What the values of a table tell may be another type when it is read again.
        inferred = [group.table is not None and kind == ANY for kind in known]
        group.converted = tuple(
            at
            for at, name in enumerate(group.spec.key)
            if inferred[at] or (own[at] != ANY and own[at] != of_field.get(name))
        )
        group.key_is_entity = group.key_is_entity and not group.converted
