"""What a query for SQLite reads from, found in its text. Pure.

Not a parser of SQL: what it does not understand is ``SUBQUERY``, of whose columns nothing is known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

SUBQUERY = ""
"""Stands for what is not a table: a subquery, a common table expression, a function."""

_TOKEN = re.compile(r'"[^"]+"|\w+|\S')
_NAME = re.compile(r'"[^"]+"|[^\W\d]\w*')
_COMMON = re.compile(
    r'(?P<name>\w+|"[^"]+")\s*(?:\([^()]*\))?\s*\bAS\b\s*(?:(?:NOT\s+)?MATERIALIZED\s*)?\(', re.IGNORECASE
)
_STARTS = {"from", "join"}
_ENDS = {"select", "where", "group", "having", "order", "limit", "window", "union", "except", "intersect", "returning"}
_NO_ALIAS = _STARTS | _ENDS | {"on", "using", "left", "right", "full", "inner", "outer", "cross", "natural"}
_NO_ALIAS |= {"indexed", "not", "and", "or"}


def plain_name(written: str | None) -> str:
    """A name in lower case, without quotes."""
    return (written or "").strip('"').lower()


def relations(sql: str) -> dict[str, set[str]]:
    """The tables behind each name that a query gives to what it reads, anywhere in it.

    Args:
        sql: without text and comments.

    Returns:
        Alias, or table where it has none -> tables. All names are in lower case.
    """
    common = {plain_name(match["name"]) for match in _COMMON.finditer(sql)}
    parts = [*_TOKEN.findall(sql), "", "", ""]
    found: dict[str, set[str]] = {}
    outer: list[tuple[bool, bool]] = []  # at each open parenthesis: within FROM, and whether a table was due
    within = due = False
    at = 0
    while parts[at]:
        part, at = parts[at], at + 1
        word = part.lower()
        if part == "(":
            outer.append((within, due))
            within = due = False
        elif part == ")" and outer:
            within, due = outer.pop()
            if due:
                alias, at = _alias(parts, at)
                found.setdefault(alias, set()).add(SUBQUERY)
            due = False
        elif word in _STARTS or (part == "," and within):
            within = due = True
        elif word in _ENDS:
            within = due = False
        elif due and _NAME.fullmatch(part):
            due = False
            if parts[at] == ".":
                part, at = parts[at + 1], at + 2
            table = plain_name(part)
            alias, at = _alias(parts, at)
            known = table not in common and parts[at] != "("
            found.setdefault(alias or table, set()).add(table if known else SUBQUERY)
    return found


def _alias(parts: Sequence[str], at: int) -> tuple[str, int]:
    """The alias that follows, if there is one, and where to go on."""
    start = at + (parts[at].lower() == "as")
    if _NAME.fullmatch(parts[start]) and parts[start].lower() not in _NO_ALIAS:
        return plain_name(parts[start]), start + 1
    return "", at
