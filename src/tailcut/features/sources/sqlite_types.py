"""The type of each key in SQLite: that of the column that the key is compared with, or read from.

SQLite compares by the affinity of a column, which follows from its declared type
(https://www.sqlite.org/datatype3.html#determination_of_column_affinity). Queries have no types of their own, so the
column is looked for: a view over the query tells where a result's column comes from; for a key that is only compared,
it is the column on the other side of the comparison, in the table that its qualifier names. Where that is not certain
the type is ``ANY``, with which SQLite itself compares: a wrong type would change the key.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import quote

from tailcut.features.key_types import (
    ANY,
    BIGINT,
    BOOLEAN,
    DOUBLE,
    MIXED,
    NUMERIC,
    NUMERIC_OR_TEXT,
    TEXT,
    KeyType,
)
from tailcut.features.sources.queried import GroupQueries
from tailcut.features.sources.sql import Query, quoted, without_text
from tailcut.features.sources.sqlite_relations import SUBQUERY, plain_name, relations

_Column = tuple[str, str]
"""Qualifier (may be empty) and name, in lower case."""

_PARAMETER = re.compile(r"\?\d+")
_NAME = r'(?:(?P<table{0}>\w+|"[^"]+")\s*\.\s*)?(?P<column{0}>\w+|"[^"]+")'
# A column by itself: what is computed has no type.
_BEFORE = r"(?:\b(?:ON|AND|OR|WHERE)\b|\()\s*"
_AFTER = r"\s*(?=[),]|$|\b(?:AND|OR|WHERE|GROUP|ORDER|LEFT|RIGHT|FULL|INNER|CROSS|NATURAL|JOIN|LIMIT|UNION)\b)"
_EQUAL = re.compile(rf"{_BEFORE}{_NAME.format(1)}\s*={{1,2}}\s*{_NAME.format(2)}{_AFTER}", re.IGNORECASE)
_IN = re.compile(
    rf"{_BEFORE}{_NAME.format(1)}\s+IN\s*\(\s*SELECT\s+{_NAME.format(2)}\s+FROM\s+keys\s*\)", re.IGNORECASE
)
_USING = re.compile(r"\bUSING\s*\((?P<columns>[^)]*)\)", re.IGNORECASE)
_NATURAL = re.compile(r"\bNATURAL\b", re.IGNORECASE)


def type_of_declared(declared: str) -> KeyType:
    """Type of keys in a column, by its declared type."""
    name = declared.upper()
    if "INT" in name:
        return BIGINT
    if "CHAR" in name or "CLOB" in name or "TEXT" in name:
        return TEXT
    if "BLOB" in name or not name:
        return MIXED
    if "REAL" in name or "FLOA" in name or "DOUB" in name:
        return DOUBLE
    if "BOOL" in name:
        return BOOLEAN
    return NUMERIC if "NUM" in name or "DEC" in name else NUMERIC_OR_TEXT


def table_types(path: str, text: str, values: Sequence[Any], key: Sequence[str]) -> tuple[KeyType, ...]:
    """Types of the key in the result of a query; ``ANY`` where it is computed."""
    columns = _columns_of_tables(path, text, values)
    # A view shows a column without a type as it does an expression.
    unsaid = [MIXED if (name.lower(), MIXED) in columns else ANY for name in key]
    origins = _origins(path, text, values, key)
    return tuple(kind or other for kind, other in zip(origins, unsaid, strict=True))


def fetched_types(path: str, query: Query, text: str, values: Sequence[Any], key: Sequence[str]) -> tuple[KeyType, ...]:
    """Types of the columns that the keys are compared with; ``ANY`` where there is none.

    Args:
        query: as the user wrote it.
        text: with the relation ``keys`` before it.
    """
    sql = without_text(query.alone())
    read = relations(sql)
    partners = _partners(sql, key, {name for name, tables in read.items() if "keys" in tables})
    columns = _columns_of(path, set().union(*read.values()))
    types = []
    for name, origin in zip(key, _origins(path, text, values, key), strict=True):
        found = {_compared_type(partner, read, columns) for partner in partners.get(name.lower(), ())}
        if origin is not None:
            found = found - {ANY} | {origin}
        types.append(found.pop() if len(found) == 1 else ANY)
    return tuple(types)


def _compared_type(
    partner: _Column, read: Mapping[str, set[str]], columns: Mapping[str, Mapping[str, KeyType]]
) -> KeyType:
    """Type of a column that a key is set equal to; ``ANY`` where it may be one of a subquery, or of several types.

    Args:
        read: the query's relations by the names that it gives them.
        columns: of its tables.
    """
    qualifier, column = partner
    if qualifier:
        tables = read.get(qualifier, {SUBQUERY})
        found = {columns.get(table, {}).get(column, ANY) for table in tables}
    else:
        tables = set().union(*read.values()) - {"keys"}
        found = {
            columns[table][column] if table in columns else ANY for table in tables if _may_have(table, column, columns)
        }
    return found.pop() if len(found) == 1 else ANY


def _may_have(table: str, column: str, columns: Mapping[str, Mapping[str, KeyType]]) -> bool:
    return table not in columns or column in columns[table]


def _columns_of(path: str, tables: Iterable[str]) -> dict[str, dict[str, KeyType]]:
    """Columns of those that are tables of the database, or views of it."""
    columns: dict[str, dict[str, KeyType]] = {}
    with _opened(path) as connection:
        for table in tables:
            rows = connection.execute(f"PRAGMA table_xinfo({quoted([table])})").fetchall()
            if rows:
                columns[table] = {row[1].lower(): type_of_declared(row[2]) for row in rows}
    return columns


_COMPARES = frozenset({"Eq", "Ne"})
_COLLATION = re.compile(r"[A-Za-z_]\w*")
"""The name of a collation in a step of SQLite's programs, such as NOCASE-8."""


def check_equality(path: str, group: GroupQueries, values: Sequence[Any]) -> None:
    """Refuse a preloaded table whose keys are equal in the database where their text differs.

    Args:
        values: of the query's own parameters.

    Raises:
        StartError: a key has another collation than BINARY.
    """
    assert group.preload is not None
    with _opened(path) as connection:
        for name in group.key:
            programs = []
            for collation in ("", "COLLATE BINARY"):
                # Without an index, which the plus sees to, a comparison's step names its collation.
                compared = f"SELECT +{quoted([name])} {collation} = 'x' FROM (\n{group.preload.alone()}\n)"
                steps = connection.execute(f"EXPLAIN {compared}", values)
                # Numbers are compared by none.
                programs.append([_COLLATION.findall(step[5] or "BINARY")[:1] for step in steps if step[1] in _COMPARES])
            if programs[0] != programs[1]:
                raise group.unequal_text(name, "has another collation than BINARY", f"lower({name})")


def _origins(path: str, text: str, values: Sequence[Any], key: Sequence[str]) -> list[KeyType | None]:
    """Declared types of the columns that a result's key columns are; None for those that are expressions."""

    def literal(match: re.Match[str]) -> str:
        value = values[int(match[0][1:]) - 1]
        return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)

    with _opened(path) as connection:
        try:
            # A view takes no parameters. A temporary one is not in the file.
            connection.execute(f"CREATE TEMP VIEW tailcut_result AS {_PARAMETER.sub(literal, text)}")
            columns = {row[1]: row[2] for row in connection.execute("PRAGMA temp.table_info(tailcut_result)")}
        except sqlite3.Error:
            return [None] * len(key)
    return [type_of_declared(columns[name]) if columns.get(name) else None for name in key]


def _columns_of_tables(path: str, text: str, values: Sequence[Any]) -> list[tuple[str, KeyType]]:
    """Names and types of all columns of the tables that a query reads."""
    read: set[str] = set()

    def noted(action: int, table: str | None, *_: Any) -> int:
        if action == sqlite3.SQLITE_READ and table and table != "json_each":
            read.add(table.replace('"', '""'))
        return sqlite3.SQLITE_OK

    with _opened(path) as connection:
        connection.set_authorizer(noted)
        connection.execute(f"EXPLAIN {text}", values)
        connection.set_authorizer(None)
        rows = [row for table in sorted(read) for row in connection.execute(f'PRAGMA table_info("{table}")')]
    return [(row[1].lower(), type_of_declared(row[2])) for row in rows]


def _partners(sql: str, key: Sequence[str], aliases: set[str]) -> dict[str, set[_Column]]:
    """Columns that each key is set equal to in a query.

    Args:
        aliases: names of ``keys`` in the query.
    """
    names = {name.lower() for name in key}
    found: dict[str, set[_Column]] = {}
    for match in _EQUAL.finditer(sql):
        sides = [(plain_name(match[f"table{side}"]), plain_name(match[f"column{side}"])) for side in (1, 2)]
        for (table, column), other in (sides, sides[::-1]):
            if table in aliases and column in names:
                found.setdefault(column, set()).add(other)
    for match in _IN.finditer(sql):
        partner = plain_name(match["table1"]), plain_name(match["column1"])
        found.setdefault(plain_name(match["column2"]), set()).add(partner)
    shared = names if _NATURAL.search(sql) else set()
    for match in _USING.finditer(sql):
        shared = shared | {plain_name(column.strip()) for column in match["columns"].split(",")}
    for name in shared & names:
        found.setdefault(name, set()).add(("", name))
    return found


@contextmanager
def _opened(path: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as connection:
        yield connection
