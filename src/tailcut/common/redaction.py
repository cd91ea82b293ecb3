"""What is left out of text that is kept and passed on, such as a report's command line: passwords, tokens, keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

LEFT_OUT = "…"

# A password that is not percent-encoded may hold / ? # and @.
_USER = re.compile(r"(?<=://)(?P<user>\S*)@(?P<rest>\S*)")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://\S+$", re.IGNORECASE)
_QUERY = re.compile(r"(?<=[?#]).+")
_NAMED = re.compile(r"(?i)((?:password|passwd|pwd|secret|token|api[_-]?key)=)[^\s&;,'\"]+")
_HEADERS = ("--header", "--deployment-header")


def without_secrets(url: str) -> str:
    """Leave out a URL's user and password, and what follows its path."""
    return _QUERY.sub(LEFT_OUT, _without_user(url), count=1)


def command_without_secrets(words: Sequence[str]) -> list[str]:
    """Leave out of a command line the values of headers, and what is secret in URLs and settings."""
    shown: list[str] = []
    for word in words:
        if shown and shown[-1] in _HEADERS:
            shown.append(_header(word))
        elif word.startswith(tuple(f"{name}=" for name in _HEADERS)):
            name, _, value = word.partition("=")
            shown.append(f"{name}={_header(value)}")
        elif word.lower().startswith(("http://", "https://")):
            shown.append(without_secrets(word))
        else:
            shown.append(_NAMED.sub(rf"\1{LEFT_OUT}", _without_user(word)))
    return shown


def tree_without_secrets(tree: Any) -> Any:
    """Leave out of plain values what is secret in their URLs."""
    if isinstance(tree, str):
        shown = _without_user(tree)
        return _NAMED.sub(rf"\1{LEFT_OUT}", shown) if _URL.match(shown) else shown
    if isinstance(tree, Mapping):
        return {name: tree_without_secrets(each) for name, each in tree.items()}
    if isinstance(tree, list | tuple):
        return [tree_without_secrets(each) for each in tree]
    return tree


def _without_user(text: str) -> str:
    """Leave out what precedes the last @ of a URL; all that follows the scheme where that @ may be in its query."""

    def shown(match: re.Match[str]) -> str:
        return LEFT_OUT if re.search("[?#]", match["user"]) else f"{LEFT_OUT}@{match['rest']}"

    return _USER.sub(shown, text)


def _header(text: str) -> str:
    name, colon, _ = text.partition(":")
    return f"{name}: {LEFT_OUT}" if colon else LEFT_OUT
