"""Whether a program could create files in a folder that may not exist yet."""

from __future__ import annotations

import tempfile
from pathlib import Path


def why_unwritable(folder: Path) -> str:
    """Return why no file can be created in a folder; empty where one can. Nothing is left there.

    If the folder does not exist, its nearest existing parent decides: the folder would be created there.
    """
    nearest = next((place for place in (folder, *folder.parents) if place.exists()), folder)
    try:
        with tempfile.TemporaryFile(dir=nearest):
            return ""
    except OSError as error:
        return f"{nearest}: {error.strerror or error}"
