"""Versions of installed distributions by what is imported, from the names of their metadata folders.

``importlib.metadata.packages_distributions`` reads the metadata of everything that is installed, which takes longer
than a start may. Here most names are found in one listing of the folder that the package lies in.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from importlib import metadata

from tailcut.code.installed import listed, owners_of, plain
from tailcut.code.locating import Place

UNKNOWN = "unknown"


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
        found = listed(folder).get(plain(name))
        if found is not None:
            return {plain(name): found[0]}
    owners: dict[str, str] = {}
    for folder in sorted(folders):
        owners |= owners_of(folder, name)
    return owners or {plain(name): UNKNOWN}
