"""What statements and addresses have in common: those that differ in a value only count as one, and no value is told.

Where it cannot be seen whether something is a name or a value, it is taken for a value: profiles are passed on.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import urlsplit

_LONGEST = 2000
_TOKENS = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))
    |(?P<name>"[A-Za-z_][\w$]*"|`[A-Za-z_][\w$ -]*`|\[[A-Za-z_][\w$ ]*\])
    |(?P<text>[eEnNxXbB]?'(?:[^'\\]|''|\\[^'])*+'|"(?:[^"\\]|""|\\[^"])*+"|`[^`]*`
        |\$(?P<tag>(?:[A-Za-z_]\w*)?)\$.*?\$(?P=tag)\$)
    |(?P<open>[eEnNxXbB]?'.*|".*|`.*|\$(?:[A-Za-z_]\w*)?\$.*)
    |(?P<mark>\$\d+|%\(\w+\)s|%s|(?<![:\w]):[A-Za-z_]\w*|\?\d*)
    |(?P<number>\b0[xX][0-9a-fA-F]+|(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?\b)
    |(?P<space>\s+)""",
    re.VERBOSE | re.DOTALL,
)
"""A text that is not closed (it was cut off), or holds a quote after a backslash (which ends it in some databases and
not in others), is a value up to the end."""
_LISTS = re.compile(r"\(\s*\?(?:\s*,\s*\?)+\s*\)")
_ROWS = re.compile(r"\(\?…?\)(?:\s*,\s*\(\?…?\))+")
_NAME_AFTER = re.compile(
    r"(?:\.|\b(?:SELECT|DISTINCT|FROM|JOIN|INTO|UPDATE|TABLE|AS|BY|SET|WHERE|ON|ONLY|USING|RETURNING|HAVING))\s*\Z",
    re.I,
)
_NAME_BEFORE = re.compile(r"\s*(?:\.|[=<>!]|\b(?:AS|IS|IN|LIKE|NOT|BETWEEN|ASC|DESC)\b)", re.I)
_PLAIN_SEGMENT = re.compile(r"[A-Za-z_-]{1,40}(?:\.[a-z]{1,5})?|v\d{1,3}", re.ASCII)
_HEX = re.compile(r"[0-9a-fA-F-]{8,}", re.ASCII)
_PIPELINE = re.compile(r"pipeline of \d+ \((.*)\)", re.DOTALL)


@lru_cache(maxsize=4096)
def normalise_query(text: str) -> str:
    """Put '?' for every value and parameter of an SQL text, one for a list of them; drop comments and line breaks."""
    cut = text[:_LONGEST]

    def plain(found: re.Match[str]) -> str:
        kind = found.lastgroup
        if kind in ("comment", "space"):
            return " "
        if kind == "name" and (found.group()[0] != '"' or _is_name(cut, found.start(), found.end())):
            return found.group()
        return "?…" if kind == "open" else "?"

    shown = _TOKENS.sub(plain, cut)
    shown = _ROWS.sub("(?…), …", _LISTS.sub("(?…)", shown))
    return " ".join(shown.split()).rstrip("; ")


@lru_cache(maxsize=4096)
def normalise_address(text: str) -> str:
    """Drop user, password and what follows '?', and put '{}' for the parts of a path that are no plain words."""
    method, _, rest = text.rpartition(" ")
    if method == "gRPC":
        return text
    parts = urlsplit(rest)
    path = "/".join(_segment(segment) for segment in parts.path.split("/"))
    # Not ``hostname`` and ``port``: those raise where the text is no address.
    host = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else ""
    return f"{method} {host}{path}".strip()


@lru_cache(maxsize=4096)
def normalise_command(text: str) -> str:
    """Keep a cache command's name, of a pipeline those of its commands; drop how many, and keys and values."""
    pipeline = _PIPELINE.fullmatch(text)
    if pipeline is None:
        return text.partition(" ")[0]
    return f"pipeline ({', '.join(one.partition(' ')[0] for one in pipeline[1].split(', '))})"


def _is_name(text: str, start: int, end: int) -> bool:
    """Whether double quotes are around a name, as in the standard, and not a text, as MySQL and SQLite take it."""
    before, after = text[:start], text[end:]
    if _NAME_AFTER.search(before) or _NAME_BEFORE.match(after):
        return True
    # In a list of columns; what stands in brackets may be a list of values.
    return before.rstrip().endswith(",") and before.count("(") <= before.count(")")


def _segment(segment: str) -> str:
    kept = not segment or (_PLAIN_SEGMENT.fullmatch(segment) and not _HEX.fullmatch(segment))
    return segment if kept else "{}"
