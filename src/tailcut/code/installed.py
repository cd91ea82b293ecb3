"""What the metadata of installed distributions in a folder say: their versions, and which packages are theirs."""

from __future__ import annotations

import os
import re
from functools import lru_cache

_METADATA = (".dist-info", ".egg-info")


def is_installed(folder: str, name: str) -> bool:
    """Whether a top-level package was put into a folder by an installer, as by ``pip install --target``.

    A folder with the .egg-info of a development install holds the user's own files.
    """
    try:
        found = listed(folder)
    except OSError:  # a zip file, or a folder that is not there
        return False
    own = (f"\n{name}/".encode(), f"\n{name}.".encode())
    records = (b"\n" + (_read(record, "RECORD") or b"") for _, record in found.values())
    return any(each in record for record in records for each in own)


@lru_cache
def listed(folder: str) -> dict[str, tuple[str, str]]:
    """Name of each distribution -> its version and the folder (or file) of its metadata."""
    found: dict[str, tuple[str, str]] = {}
    for entry in sorted(os.listdir(folder)):
        stem, suffix = os.path.splitext(entry)
        if suffix in _METADATA and "-" in stem:
            name, version, *_ = stem.split("-")
            found[plain(name)] = version, os.path.join(folder, entry)
    return found


def owners_of(folder: str, name: str) -> dict[str, str]:
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
    for owner, (version, record) in listed(folder).items():
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


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
