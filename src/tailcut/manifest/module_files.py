"""Where Python would find a module in given folders, without importing anything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES

BARE = ""
"""In place of the file of a package without __init__, which several folders may share (PEP 420)."""

_SUFFIXES = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES)


def file_of(name: str, folders: Sequence[str]) -> str | None:
    """Return the file of a module; ``BARE`` for a package without __init__, None where there is no such module.

    Args:
        name: dotted name.
        folders: of the import path, in order.
    """
    file: str | None = None
    for part in name.split("."):
        file, folders = _in_folders(part, folders)
        if file is None:
            return None
    return file


def _in_folders(part: str, folders: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the file of one part of a name, and the folders that its submodules are in."""
    bare = []
    for folder in folders:
        inner = os.path.join(folder, part)
        for place, below in ((os.path.join(inner, "__init__"), [inner]), (inner, [])):
            for suffix in _SUFFIXES:
                if os.path.isfile(place + suffix):
                    return place + suffix, below
        if os.path.isdir(inner):
            bare.append(inner)
    return (BARE if bare else None), bare


def names_in(folders: Sequence[str]) -> set[str]:
    """Return the names of what Python could import from folders: their modules, and their folders as packages."""
    names: set[str] = set()
    for folder in folders:
        try:
            # Not tailcut.toml, which lies in most of them: each module of this package would be looked for there.
            entries = [entry for entry in os.listdir(folder) if "." not in entry or entry.endswith(_SUFFIXES)]
            names.update(entry.partition(".")[0] for entry in entries)
        except OSError:
            continue  # no such folder: nothing can be imported from it
    return names


def same_file(one: str | None, other: str | None) -> bool:
    """Tell whether two paths are one file, through links too."""
    if not one or not other:
        return one == other
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)
