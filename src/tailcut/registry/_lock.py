"""One build of a model at a time, across processes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailcut.errors import ArtifactError, BuildError


def open_lock(path: Path) -> int:
    """Open a lock's file, made where it is not there; return the descriptor.

    Raises:
        ArtifactError: it cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ArtifactError(
            f"cannot write {path}: {error.strerror}",
            hint="the registry is as it was; set registry.path to a folder that can be written",
        ) from error


@contextmanager
def build_lock(path: Path, model: str) -> Iterator[None]:
    """Hold the lock file; the kernel frees it when its holder ends, however that happens.

    Raises:
        BuildError: another process holds it.
        ArtifactError: the lock's file cannot be made.
    """
    handle = open_lock(path)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
            raise BuildError(
                f"model {model!r} is being built by process {holder}, which holds {path}",
                hint="wait until that build has ended, or set registry.path to another folder",
            ) from error
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        os.close(handle)
