"""Versions of installed distributions by what is imported, from the names of their metadata folders.

``importlib.metadata.packages_distributions`` reads the metadata of everything that is installed, which takes longer
than a start may. Here most names are found in one listing of the folder that the package lies in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache
from importlib import metadata

from tailcut.code.locating import Place

UNKNOWN = "unknown"
_METADATA = (".dist-info", ".egg-info")


def versions(places: Iterable[tuple[str, Place]]) -> dict[str, str]:
    """Return the distributions of top-level packages, with their versions.

    Args:
        places: name and place of each package. One whose distribution cannot be found has the version "unknown".
    """
    found: dict[str, str] = {}
    for name, place in places:
        found |= _versions(name, place)
    return found


@lru_cache
def version_of(distribution: str) -> str:
    """Return the version of one distribution; "unknown" where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return UNKNOWN


def _versions(name: str, place: Place) -> dict[str, str]:
    if name == "tailcut":
        return {name: version_of(name)}
    folders = {os.path.dirname(folder) for folder in place.search or ()} or {os.path.dirname(place.origin)}
    for folder in sorted(folders):
        listed = _listed(folder)
        if _plain(name) in listed:
            return {_plain(name): listed[_plain(name)][0]}
    owners: dict[str, str] = {}
    for folder in sorted(folders):
        owners |= _owners(folder, name)
    return owners or {_plain(name): UNKNOWN}


@lru_cache
def _listed(folder: str) -> dict[str, tuple[str, str]]:
    """Name of each distribution -> its version and the folder (or file) of its metadata."""
    found: dict[str, tuple[str, str]] = {}
    for entry in sorted(os.listdir(folder)):
        stem, suffix = os.path.splitext(entry)
        if suffix in _METADATA and "-" in stem:
            name, version, *_ = stem.split("-")
            found[_plain(name)] = version, os.path.join(folder, entry)
    return found


def _owners(folder: str, name: str) -> dict[str, str]:
    """Find the distributions that installed a package under another name, such as scikit-learn's ``sklearn``."""
    top, own = name.encode(), (f"\n{name}/".encode(), f"\n{name}.".encode())
    return {
        owner: version
        for owner, version, listed, files in _contents(folder)
        if (top in listed.split() if listed is not None else any(each in files for each in own))
    }


@lru_cache
def _contents(folder: str) -> tuple[tuple[str, str, bytes | None, bytes], ...]:
    """Read what each distribution installed: its top-level names where it says them, else its files."""
    found = []
    for owner, (version, record) in _listed(folder).items():
        top = _read(record, "top_level.txt")
        files = b"\n" + (_read(record, "RECORD") or b"") if top is None else b""
        found.append((owner, version, top, files))
    return tuple(found)


def _read(record: str, name: str) -> bytes | None:
    try:
        with open(f"{record}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return None


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
