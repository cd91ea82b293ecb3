"""Locks of a local registry: held by an open file, so that the kernel frees them however their holder ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tailcut.errors import ArtifactError, BuildError


class Held(Exception):
    """Another process holds the lock. Not an OSError, so that no error of the block under the lock looks like it."""


@contextmanager
def locked(path: Path, how: int) -> Iterator[int]:
    """Hold a lock's file, made where it is not there; hands out its descriptor.

    Args:
        path: of the file.
        how: as ``fcntl.flock`` takes it.

    Raises:
        Held: ``how`` says not to wait, and it is held.
        ArtifactError: the file cannot be made, or its file system has no locks.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ArtifactError(
            f"cannot write the registry's {path}: {error.strerror}",
            hint="the registry is unchanged; set registry.path to a writable folder",
        ) from error
    try:
        try:
            fcntl.flock(handle, how)
        except BlockingIOError as error:
            raise Held from error
        except OSError as error:
            raise ArtifactError(
                f"cannot lock the registry's {path}: {error.strerror}",
                hint="set registry.path to a folder on a file system with locks",
            ) from error
        yield handle
    finally:
        os.close(handle)


@contextmanager
def build_lock(path: Path, model: str) -> Iterator[None]:
    """Hold the lock of a model's builds.

    Raises:
        BuildError: another process holds it.
        ArtifactError: the lock's file cannot be made.
    """
    try:
        with locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB) as handle:
            # The number is for the message only: on a full disk the lock holds all the same.
            with suppress(OSError):
                os.ftruncate(handle, 0)
                os.write(handle, str(os.getpid()).encode())
            yield
    except Held as error:
        raise BuildError(
            f"model {model!r} is being built by process {_holder(path)}, which holds {path}",
            hint="wait until that build has ended, or set registry.path to another folder",
        ) from error


def _holder(path: Path) -> str:
    with suppress(OSError):
        return path.read_bytes()[:32].decode(errors="replace").strip() or "unknown"
    return "unknown"
