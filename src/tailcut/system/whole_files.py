"""Writes the files of reports whole or not at all."""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from pathlib import Path

from tailcut.errors import LoadTestError


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; its folders are made. What is no regular file, such as a pipe, is written to.

    Raises:
        LoadTestError: it cannot be written.
    """
    scratch = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_bytes(content)
            return
        scratch.write_bytes(content)
        scratch.replace(path)
    except OSError as error:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise LoadTestError(
            f"cannot write {path}: {error.strerror}", hint=_way_out(path, len(content), error)
        ) from error


def _way_out(path: Path, size_bytes: int, error: OSError) -> str:
    if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
        return "choose a writable folder"
    with suppress(OSError):
        free = shutil.disk_usage(path.parent).free
        return f"it has {size_bytes} bytes, {free} are free: free space there, or choose a folder on another disk"
    return "free space there, or choose a folder on another disk"
