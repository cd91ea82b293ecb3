"""Files that results go to."""

from __future__ import annotations

import os
from pathlib import Path

from tailcut.errors import LoadTestError


def prepare(path: Path, suffix: str = "") -> None:
    """Make the file's folder, and refuse before a run what could not be written after it.

    Args:
        path: the file.
        suffix: of its name; empty: any.

    Raises:
        LoadTestError: another suffix, or the file cannot be written.
    """
    if suffix and path.suffix != suffix:
        raise LoadTestError(f"raw samples cannot be written as {path.name!r}", hint=f"name a {suffix} file")
    reason = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
    else:
        if path.is_dir():
            reason = "it is a folder"
        elif not os.access(path if path.exists() else path.parent, os.W_OK):
            reason = "no write permission"
    if reason:
        raise LoadTestError(f"cannot write {path}: {reason}", hint="choose a writable folder")
