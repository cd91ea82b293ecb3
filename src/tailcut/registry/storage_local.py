"""A registry in a local folder: renames are atomic, locks are the kernel's and end with their holder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from tailcut.errors import ArtifactError, BuildError
from tailcut.system.atomic_files import Staging, check, digest
from tailcut.system.file_lock import Held, build_lock, locked


class LocalStorage:
    """Keeps files under one folder; see ``Storage``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)

    def read(self, path: str) -> bytes:
        with _reading(self.root / path) as file:
            return file.read_bytes()

    def size_bytes(self, path: str) -> int | None:
        with suppress(FileNotFoundError), _reading(self.root / path) as file:
            return file.stat().st_size
        return None

    def stamp(self, path: str) -> Hashable:
        with suppress(FileNotFoundError), _reading(self.root / path) as file:
            found = file.stat()
            # A replaced file has another inode, even where the clock is too coarse to tell.
            return found.st_mtime_ns, found.st_size, found.st_ino
        return None

    def names(self, folder: str) -> list[str]:
        with suppress(FileNotFoundError), _reading(self.root / folder) as place:
            return sorted(os.listdir(place))
        return []

    def files(self, folder: str) -> Iterator[str]:
        for path in sorted((self.root / folder).rglob("*")):
            if path.is_file():
                yield path.relative_to(self.root).as_posix()

    def remove(self, path: str) -> None:
        file = self.root / path
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise ArtifactError(f"cannot remove {file}: {error.strerror}", hint="check its permissions") from error
        with suppress(OSError):
            file.parent.rmdir()

    @contextmanager
    def batch(self) -> Iterator[_LocalBatch]:
        with Staging(self.root) as staging:
            yield _LocalBatch(self.root, staging)

    def holds(self, path: str, sha256: str, size_bytes: int) -> bool:
        if self.size_bytes(path) != size_bytes:
            return False
        with _reading(self.root / path) as file:
            return digest(file) == sha256

    def fetch(self, path: str, sha256: str, size_bytes: int, what: str) -> Path:
        file = self.root / path
        check(file, sha256, size_bytes, f"artifact {file} ({what})")
        return file.parent.resolve() / file.name  # it is opened again later, when a link may lead to another registry

    def build_lock(self, path: str, model: str) -> AbstractContextManager[None]:
        return build_lock(self.root / path, model)

    def changing(self, path: str) -> AbstractContextManager[object]:
        return locked(self.root / path, fcntl.LOCK_EX)

    def adding(self) -> AbstractContextManager[object]:
        return locked(self.root / "registry.lock", fcntl.LOCK_SH)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        try:
            with locked(self.root / "registry.lock", fcntl.LOCK_EX | fcntl.LOCK_NB):
                yield
        except Held as error:
            raise BuildError(
                f"a build is adding artifacts to {self.url}, so nothing can be removed",
                hint="run gc again when the build has ended",
            ) from error


class _LocalBatch:
    def __init__(self, root: Path, staging: Staging) -> None:
        self._root = root
        self._staging = staging

    def write(self, path: str, content: bytes) -> None:
        self._staging.write(self._root / path, content)

    def copy(self, path: str, source: Path) -> str:
        return self._staging.copy(self._root / path, source)

    def commit(self) -> None:
        self._staging.commit()


@contextmanager
def _reading(file: Path) -> Iterator[Path]:
    """Turn what the system refuses into an error with the path in it; what is not there is left as it is."""
    try:
        yield file
    except FileNotFoundError:
        raise
    except NotADirectoryError as error:
        raise FileNotFoundError(error.errno, error.strerror, str(file)) from error
    except OSError as error:
        raise ArtifactError(f"cannot read {file}: {error.strerror}", hint="check its permissions") from error
