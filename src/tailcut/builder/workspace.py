"""Where a build keeps its files until the registry has them, and errors of a full disk."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailcut.errors import BuildError

WAY_OUT = "free space there, or set TMPDIR to a folder on another disk; the registry is unchanged"
LEAST_BYTES = 1 << 20
"""Below this a disk counts as full: libraries in C++ do not say why a file could not be written."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def folder() -> Iterator[Path]:
    """Yield a new folder for temporary files, which is removed at the end, however that comes.

    Raises:
        BuildError: no such folder can be made, or what was to be written in it found no room.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="tailcut-build-") as name:
            try:
                yield Path(name)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                raise none_left("the build", Path(name), error) from error
    except FileNotFoundError as error:
        if "temporary directory" not in str(error):
            raise
        raise BuildError(
            f"there is no folder for temporary files: {error.strerror}", hint="set TMPDIR to a folder with free space"
        ) from error


def none_left(what: str, folder: Path, error: BaseException) -> BuildError:
    """Return the error for ``what``, which could not write to ``folder``."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error).strip().partition("\n")[0]
    return BuildError(f"{what} cannot write to {folder}: {why}; {free_bytes(folder)} bytes are free", hint=WAY_OUT)


def is_full(error: BaseException, folder: Path) -> bool:
    """Tell whether an exception comes from a disk without room, or may well do."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL
    return free_bytes(folder) < LEAST_BYTES


def free_bytes(folder: Path) -> int:
    """Room on the disk of a folder."""
    return shutil.disk_usage(folder).free
