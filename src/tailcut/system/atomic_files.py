"""Atomic, checked files: a reader sees the old content or the whole new one, whatever happens in between."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from tailcut.errors import ArtifactError, LoadTestError

_CHUNK_BYTES = 1 << 20


def digest(path: Path) -> str:
    """SHA-256 of a file, as hex, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_AGAIN = "run `tailcut build` again, or promote another version"
_ELSEWHERE = "the registry is unchanged; free space, give write permission, or set registry.path to another folder"


def check(path: Path, sha256: str, size_bytes: int, what: str, hint: str = _AGAIN) -> None:
    """Check an artifact before it is opened; ``what`` names it in messages.

    Raises:
        ArtifactError: it is missing, truncated or corrupt.
    """
    try:
        found_bytes = path.stat().st_size
        if found_bytes != size_bytes:
            raise ArtifactError(f"{what} has {found_bytes} bytes, expected {size_bytes}", hint=hint)
        found = digest(path)
    except FileNotFoundError as error:
        raise ArtifactError(f"{what} is missing", hint=hint) from error
    except OSError as error:
        raise ArtifactError(f"{what} cannot be read: {error.strerror}", hint="check its permissions") from error
    if found != sha256:
        raise ArtifactError(f"{what} is corrupt: SHA-256 is {found}, expected {sha256}", hint=hint)


class Staging:
    """Files written beside their final places, which appear all at once or not at all.

    Everything that can run out of space happens in ``write`` and ``copy``; ``commit`` only renames, in the order of
    staging, so the file that refers to the others is staged last. Leaving the block without it removes every trace.

    Args:
        top: the folder that all files lie below; it may have to be made.
        hint: the way out where the system refuses to write.
    """

    def __init__(self, top: Path, hint: str = _ELSEWHERE) -> None:
        self._top = top
        self._hint = hint
        self._staged: list[tuple[Path, Path]] = []

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for temporary, _ in self._staged:
            with suppress(OSError):  # what cannot be removed is garbage, and must not hide the error that led here
                temporary.unlink()
        self._staged.clear()

    def write(self, target: Path, content: bytes) -> None:
        """Stage ``content`` for ``target``."""
        with self._open(target, len(content)) as file:
            file.write(content)
            _flush(file)

    def copy(self, target: Path, source: Path) -> str:
        """Stage a copy of ``source`` for ``target``; return the SHA-256 of the bytes that were copied."""
        sha = hashlib.sha256()
        with source.open("rb") as original, self._open(target, source.stat().st_size) as file:
            while chunk := original.read(_CHUNK_BYTES):
                sha.update(chunk)
                file.write(chunk)
            _flush(file)
        return sha.hexdigest()

    def reserve(self, target: Path, size_bytes: int) -> Path:
        """Return where somebody else is to write ``size_bytes`` for ``target``; the file is there, and empty."""
        with self._open(target, size_bytes):
            return self._staged[-1][0]

    def commit(self) -> None:
        """Rename every staged file into its place.

        After a power cut, too, the last one is there only if all the others are: they and the folders that they need
        are on the disk before it is renamed.
        """
        for part in (self._staged[:-1], self._staged[-1:]):
            for temporary, target in part:
                try:
                    temporary.replace(target)
                except OSError as error:
                    raise _refused(target, 0, error, self._hint) from error
            for folder in dict.fromkeys(folder for _, target in part for folder in self._folders(target)):
                _sync_folder(folder)
        self._staged.clear()

    def _folders(self, target: Path) -> Iterator[Path]:
        """The folders whose entries lead to a file: any of them may have been made for it."""
        folder = target.parent
        yield folder
        while folder not in {self._top.parent, folder.parent}:
            folder = folder.parent
            yield folder

    @contextmanager
    def _open(self, target: Path, size_bytes: int) -> Iterator[BinaryIO]:
        """Open a staged file; what the system refuses becomes an error with the sizes in it."""
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
        self._staged.append((temporary, target))
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as file:
                yield file
        except OSError as error:
            raise _refused(target, size_bytes, error, self._hint) from error


def _refused(target: Path, size_bytes: int, error: OSError, hint: str) -> ArtifactError:
    return ArtifactError(
        f"cannot write {target} ({size_bytes} bytes): {error.strerror}; {_free(target)}",
        hint=hint,
    )


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder durable; a folder that cannot be opened is one that nothing was made in."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        # Network and user-space file systems that do not know this keep names by other means.
        if error.errno not in {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}:
            raise
    finally:
        os.close(handle)


def _free(path: Path) -> str:
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    return f"{shutil.disk_usage(folder).free} bytes are free"


# -- Files of reports --------------------------------------------------------------------------------------------------


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
