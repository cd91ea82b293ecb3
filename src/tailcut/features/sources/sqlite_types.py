"""The type of each key in SQLite: that of the column it is read from, or is joined with by its own name.

SQLite compares by the affinity of a column, which follows from its declared type
(https://www.sqlite.org/datatype3.html#determination_of_column_affinity). Queries have no types of their own. A view
over the query tells where a result's column comes from. A key that comes from ``keys`` has the type of the columns of
its name, where the query joins by that name, has no subquery, and all tables that it reads declare one type. Elsewhere
the type is ``ANY``, with which SQLite itself compares: a wrong type would change the key.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
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
from tailcut.features.sources.sql import quoted

_PARAMETER = re.compile(r"\?\d+")
_JOINED = (
    r"\bUSING\s*\([^)]*\b{0}\b|\bNATURAL\b"
    r"|(?:\bON|\bAND|\bWHERE|\()\s*\w+\.{0}\s*==?\s*\w+\.{0}\b(?!\s*[-+*/%|&<>])"
)
"""A query that joins by a name; what is computed is no column."""


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


def key_types(path: str, text: str, values: Sequence[Any], key: Sequence[str], sql: str = "") -> tuple[KeyType, ...]:
    """Types of a query's key columns; ``ANY`` where they are computed, or not certain.

    Args:
        text: the query as it runs.
        values: of its parameters.
        sql: the query as the user wrote it, where it reads from ``keys``.
    """
    found = _origins(path, text, values, key)
    has_subquery = len(re.findall(r"\bSELECT\b", sql, re.IGNORECASE)) > 1
    columns = [] if has_subquery else _columns_of_tables(path, text, values)
    for at, name in enumerate(key):
        types = {kind for column, kind in columns if column == name.lower()}
        if found[at] != ANY:
            continue
        if not sql and MIXED in types:
            found[at] = MIXED  # a view shows a column without a type as it does an expression
        elif len(types) == 1 and re.search(_JOINED.format(re.escape(name)), sql, re.IGNORECASE):
            found[at] = types.pop()
    return tuple(found)


def _origins(path: str, text: str, values: Sequence[Any], key: Sequence[str]) -> list[KeyType]:
    """Declared types of the columns that a result's key columns are; ``ANY`` for those that are expressions."""

    def literal(match: re.Match[str]) -> str:
        value = values[int(match[0][1:]) - 1]
        return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)

    with _opened(path) as connection:
        try:
            # A view takes no parameters. A temporary one is not in the file.
            connection.execute(f"CREATE TEMP VIEW tailcut_result AS {_PARAMETER.sub(literal, text)}")
            columns = {row[1]: row[2] for row in connection.execute("PRAGMA temp.table_info(tailcut_result)")}
        except sqlite3.Error:
            return [ANY] * len(key)
    return [type_of_declared(columns[name]) if columns.get(name) else ANY for name in key]


def _columns_of_tables(path: str, text: str, values: Sequence[Any]) -> list[tuple[str, KeyType]]:
    """Names and types of all columns of the tables that a query reads."""
    read: set[str] = set()

    def noted(action: int, table: str | None, *_: Any) -> int:
        if action == sqlite3.SQLITE_READ and table and table != "json_each":
            read.add(table)
        return sqlite3.SQLITE_OK

    with _opened(path) as connection:
        connection.set_authorizer(noted)
        connection.execute(f"EXPLAIN {text}", values)
        connection.set_authorizer(None)
        rows = [row for table in sorted(read) for row in connection.execute(f"PRAGMA table_xinfo({quoted([table])})")]
    return [(row[1].lower(), type_of_declared(row[2])) for row in rows]


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


@contextmanager
def _opened(path: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as connection:
        yield connection
