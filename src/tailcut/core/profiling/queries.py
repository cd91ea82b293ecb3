"""What statements and addresses have in common, so that those that differ in a value only count as one."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import urlsplit

_LONGEST = 2000
_TOKENS = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?\*/)
    |(?P<quoted>"(?:[^"]|"")*"|`[^`]*`|\[[A-Za-z_][^\]]*\])
    |(?P<text>[eEnNxXbB]?'(?:[^']|'')*'|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
    |(?P<mark>\$\d+|%\(\w+\)s|%s|(?<![:\w]):[A-Za-z_]\w*|\?\d*)
    |(?P<number>(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?\b)
    |(?P<space>\s+)""",
    re.VERBOSE | re.DOTALL,
)
_LISTS = re.compile(r"\(\s*\?(?:\s*,\s*\?)+\s*\)")
_ROWS = re.compile(r"\(\?…?\)(?:\s*,\s*\(\?…?\))+")
_SEGMENT = re.compile(r"^(?:\d+|[0-9a-fA-F]{8,}|[0-9a-fA-F-]{32,36})$")


@lru_cache(maxsize=4096)
def normalise_query(text: str) -> str:
    """Put '?' for every value and parameter of an SQL text, one for a list of them; drop comments and line breaks."""

    def plain(found: re.Match[str]) -> str:
        kind = found.lastgroup
        if kind in ("comment", "space"):
            return " "
        return found.group() if kind == "quoted" else "?"

    shown = _TOKENS.sub(plain, text[:_LONGEST])
    shown = _ROWS.sub("(?…), …", _LISTS.sub("(?…)", shown))
    return " ".join(shown.split()).rstrip("; ")


@lru_cache(maxsize=4096)
def normalise_address(text: str) -> str:
    """Drop what follows '?', and put '{}' for the parts of a path that are numbers or identifiers."""
    method, _, rest = text.rpartition(" ")
    parts = urlsplit(rest)
    path = "/".join("{}" if _SEGMENT.match(segment) else segment for segment in parts.path.split("/"))
    host = f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""
    return f"{method} {host}{path}".strip()


@lru_cache(maxsize=4096)
def normalise_command(text: str) -> str:
    """Keep a cache command's name, and of its key what stands before the first part that names one entity."""
    name, _, rest = text.partition(" ")
    key = rest.split(" ", 1)[0]
    kept = [part for part in key.split(":")[:-1] if not any(letter.isdigit() for letter in part)]
    return f"{name} {':'.join([*kept, '?'])}" if key else name
