"""The key that a misspelt path, flag or variable was probably meant to be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import inspect

from tailcut.manifest.keys import ENVIRONMENT_PREFIX, Key, dotted, keys_at, nearest, variable
from tailcut.manifest.schema import Deployment
from tailcut.manifest.section import Section

Path = tuple[str, ...]
_CLOSE = 0.85
"""Least similarity of whole paths. They share more letters by chance than single keys do."""


def did_you_mean(written: Path, known: Path, names: Iterable[str], origin: str, tree: Mapping[str, Any]) -> str:
    """Ask whether another path was meant, spelled as a variable or as a path; empty where none is close.

    Args:
        written: the whole path as it was given; its separators may be wrong: ``server_port`` is ``server.port``.
        known: the beginning of it that the schema has.
        names: keys or elements that may follow ``known``.
        origin: "environment" where a variable gave it.
        tree: the manifest so far, for the names of its lists' elements.
    """
    meant = _same_letters(written, tree) or _most_alike(written, known, names, tree)
    return _question(meant, origin)


def other_separators(written: Path, origin: str, tree: Mapping[str, Any]) -> str:
    """Ask whether a path was meant that differs in its separators only; empty where there is none."""
    return _question(_same_letters(written, tree), origin)


def _question(meant: Path, origin: str) -> str:
    if not meant:
        return ""
    return f"did you mean {variable(meant) if origin == 'environment' else dotted(meant)}?"


def _same_letters(written: Path, tree: Mapping[str, Any]) -> Path:
    letters = _letters(written)
    for path, key in _settable(Deployment, tree):
        known = _letters(path)
        if letters == known:
            return path
        if isinstance(key.kind, inspect.DictType) and letters.startswith(f"{known}_"):
            return (*path, ".".join(written)[len(known) + 1 - len(letters) :])
    return ()


def _most_alike(written: Path, known: Path, names: Iterable[str], tree: Mapping[str, Any]) -> Path:
    paths = {_letters(path): path for path, _ in _settable(Deployment, tree)}
    if close := nearest(_letters(written), paths, least=_CLOSE):
        return paths[close]
    name = written[len(known)]
    if close := nearest(name.lower(), names):
        return (*known, close)
    if len(written) != 1:
        return ()
    # TAILCUT_PORT: the section was forgotten.
    alike = [path for path, key in _settable(Deployment, {}) if name in (key.name, key.attribute)]
    return alike[0] if len(alike) == 1 else ()


def _letters(path: Path) -> str:
    """The path without what tells its parts apart, which differs between the file, flags and variables."""
    letters = re.sub(r"[^a-z0-9]+", "_", "_".join(path).lower()).strip("_")
    return letters.removeprefix(ENVIRONMENT_PREFIX.lower())


def _settable(section: type[Section], node: Any, path: Path = ()) -> Iterator[tuple[Path, Key]]:
    """Every value key with its path; those of lists for each element that the manifest has, under its name."""
    for key in keys_at(section, path):
        below = (*path, key.name)
        value = node.get(key.name) if isinstance(node, Mapping) else None
        if key.section is not None:
            yield from _settable(key.section, value, below)
        elif key.element is not None:
            for item in value if isinstance(value, list) else ():
                if isinstance(item, Mapping) and isinstance(item.get("name"), str):
                    yield from _settable(key.element, item, (*below, item["name"]))
        else:
            yield below, key
