"""Whether files could be made in a folder, which may not be there yet."""

from __future__ import annotations

import tempfile
from pathlib import Path


def why_unwritable(folder: Path) -> str:
    """Return why no file can be made in a folder; empty where one can. Nothing is left there.

    A folder that is not there is made by whoever writes first, so that the nearest one above it decides.
    """
    nearest = next((place for place in (folder, *folder.parents) if place.exists()), folder)
    try:
        with tempfile.TemporaryFile(dir=nearest):
            return ""
    except OSError as error:
        return f"{nearest}: {error.strerror or error}"
