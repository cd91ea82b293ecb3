"""Whether a program could write a file, or create files in a folder that may not exist yet."""

from __future__ import annotations

import errno
import os
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


def why_unwritable_file(path: Path) -> str:
    """Return why a file can be neither written nor created; empty where it can. Nothing is left there.

    An existing file is not opened: closing it would give up locks that this process may have on it (fcntl(2)).
    """
    if path.is_dir():
        return f"{path}: {os.strerror(errno.EISDIR)}"
    if path.exists():
        return "" if os.access(path, os.W_OK) else f"{path}: {os.strerror(errno.EACCES)}"
    return why_unwritable(path.parent)
