"""Turns the user's query into one that reads the keys asked for and takes numbered parameters. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tailcut.errors import StartError

Dialect = Literal["postgresql", "sqlite"]

_POSTGRES_TYPES = {"now": "double precision", "tenant": "text"}

# What must be left alone comes first: text, quoted names, comments, dollar quotes, casts. Then what is ours.
_TOKEN = re.compile(
    r"""
    (?P<skip> (?<![A-Za-z0-9_])[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/
            | \$(?P<tag>[A-Za-z_]*)\$.*?\$(?P=tag)\$ | :: | := )
    | :(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<positional> \$\d+ | \?\d* )
    """,
    re.VERBOSE | re.DOTALL,
)
_BLANK = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
_WITH = re.compile(rf"{_BLANK}(?P<with>WITH\b(?:{_BLANK}RECURSIVE\b)?)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Query:
    """A user's query, ready to be put behind a ``keys`` relation.

    ``parameters`` are the names of the values that follow the keys' own parameters, in order.
    """

    with_: str
    rest: str
    parameters: tuple[str, ...]

    def behind(self, keys_relation: str) -> str:
        """The text to execute, with the definition of ``keys`` in front."""
        if not self.with_:
            return f"WITH {keys_relation}\n{self.rest}"
        return f"{self.with_} {keys_relation}, {self.rest}"

    def alone(self) -> str:
        """The text to execute without ``keys``."""
        return f"{self.with_} {self.rest}".lstrip()


def compile_query(sql: str, dialect: Dialect, first_parameter: int, where: str) -> Query:
    """Number the named parameters of a query and split off its WITH.

    Args:
        first_parameter: number of the first parameter that is free.
        where: what to name in errors, for example ``features.groups "weather": sql``.

    Raises:
        StartError: an unknown or a numbered parameter.
    """
    names: list[str] = []

    def replaced(match: re.Match[str]) -> str:
        if match["skip"]:
            return match[0]
        if match["positional"]:
            # `?` is a JSON operator in PostgreSQL.
            if dialect == "postgresql" and match[0].startswith("?"):
                return match[0]
            raise StartError(
                f"{where} uses the numbered parameter {match[0]}, which has no value",
                hint="write :now or :tenant; keys come from the relation `keys`",
            )
        name = match["name"]
        if name not in _POSTGRES_TYPES:
            raise StartError(
                f"{where} uses the parameter :{name}, which does not exist",
                hint="the parameters are :now and :tenant; keys come from the relation `keys`",
            )
        if name not in names:
            names.append(name)
        number = first_parameter + names.index(name)
        return f"?{number}" if dialect == "sqlite" else f"${number}::{_POSTGRES_TYPES[name]}"

    body = _TOKEN.sub(replaced, sql.strip()).rstrip("; \t\r\n")
    match = _WITH.match(body)
    if match is None:
        return Query("", body, tuple(names))
    return Query(match["with"], body[match.end() :].lstrip(), tuple(names))


def mentions_keys(sql: str) -> bool:
    """Whether the query reads from ``keys`` (outside text and comments)."""
    return re.search(r"\bkeys\b", _TOKEN.sub(lambda match: " " if match["skip"] else match[0], sql), re.I) is not None


def without_text(sql: str) -> str:
    """The query with blanks for text and comments; quoted names stay."""
    return _TOKEN.sub(lambda match: " " if match["skip"] and match[0][0] not in '":' else match[0], sql)


def quoted(names: Sequence[str]) -> str:
    """Column names as a quoted, comma-separated list."""
    return ", ".join('"' + name.replace('"', '""') + '"' for name in names)


def postgres_keys(columns: Sequence[str], types: Sequence[str]) -> str:
    """The ``keys`` relation from one array per column, each with its array type."""
    arrays = ", ".join(f"${number}::{kind}" for number, kind in enumerate(types, 1))
    return f"keys({quoted(columns)}) AS (SELECT * FROM unnest({arrays}))"


def sqlite_keys(columns: Sequence[str]) -> str:
    """The ``keys`` relation from one JSON array of arrays."""
    values = ", ".join(f"json_extract(value, '$[{index}]')" for index in range(len(columns)))
    return f"keys({quoted(columns)}) AS (SELECT {values} FROM json_each(?1))"


def columns_problem(found: Sequence[str], wanted: Sequence[str]) -> str:
    """What is wrong with the columns of a result, to follow "it"; empty where each of ``wanted`` is there once."""
    for column in wanted:
        if (count := found.count(column)) != 1:
            how = "does not return" if not count else "returns more than once"
            return f'{how} the column "{column}"; it returns {", ".join(found) or "no columns"}'
    return ""


def selected(inner: str, columns: Sequence[str]) -> str:
    """A query for these columns of another, found by name whenever it is parsed."""
    wanted = ", ".join(f"tailcut.{quoted([column])}" for column in columns)
    return f"SELECT {wanted} FROM (\n{inner}\n) AS tailcut"
