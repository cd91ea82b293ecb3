"""What the registry asks of the place where it is kept: a local folder, or anything that fsspec reaches.

Paths are relative to the registry and have "/" between parts. Whatever a place refuses is an ArtifactError with the
full path in it; FileNotFoundError says that a file is not there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol


class Batch(Protocol):
    """Files that are written together, the one that refers to the others last."""

    def write(self, path: str, content: bytes) -> None:
        """Prepare a file that replaces what stands at ``path``."""

    def copy(self, path: str, source: Path) -> str:
        """Prepare a copy of a local file; return the SHA-256 of the bytes that were copied."""

    def commit(self) -> None:
        """Let the files appear, in the order in which they were prepared."""


class Storage(Protocol):
    """A place for a registry.

    Attributes:
        url: for messages: a path or a URL.
    """

    url: str

    def read(self, path: str) -> bytes:
        """Read a small file whole."""

    def size_bytes(self, path: str) -> int | None:
        """Size of a file; None where there is none."""

    def stamp(self, path: str) -> Hashable:
        """Something that changes whenever the file is replaced; None where there is none. Cheap to poll."""

    def names(self, folder: str) -> list[str]:
        """Names of what lies in a folder, sorted; none where there is no such folder."""

    def files(self, folder: str) -> Iterator[str]:
        """Every file below a folder, by its path in the registry."""

    def remove(self, path: str) -> None:
        """Remove a file, and folders that are empty then; one that is gone already is fine."""

    def batch(self) -> AbstractContextManager[Batch]:
        """Write files all at once or not at all."""

    def holds(self, path: str, sha256: str, size_bytes: int) -> bool:
        """Tell whether an artifact is here, as whole as can be told without fetching it."""

    def fetch(self, path: str, sha256: str, size_bytes: int, what: str) -> Path:
        """Return an artifact as a local file whose size and SHA-256 were checked.

        Raises:
            ArtifactError: it is missing, truncated or corrupt; ``what`` names it in the message.
        """

    def build_lock(self, path: str, model: str) -> AbstractContextManager[None]:
        """Hold the lock of one model's build; a BuildError names the holder."""

    def changing(self, path: str) -> AbstractContextManager[object]:
        """Hold a lock for the moment in which a small file is read, changed and written."""

    def adding(self) -> AbstractContextManager[object]:
        """Keep garbage collection out while artifacts are added."""

    def collecting(self) -> AbstractContextManager[None]:
        """Keep additions out while garbage is collected; a BuildError where one is under way."""


def open_storage(root: Path | str, cache: Path | None = None) -> Storage:
    """Open the place of a registry: a path, a file:// URL, or a URL of any scheme that fsspec knows.

    Args:
        root: the place; nothing is made there before something is added.
        cache: local folder for fetched artifacts; the user's cache folder where None.

    Raises:
        MissingExtra: a URL, and fsspec or the package for its scheme is not installed.
    """
    text = str(root)
    if "://" in text and not text.startswith("file://"):
        from tailcut.registry.storage_fsspec import FsspecStorage

        return FsspecStorage(text, cache)
    from tailcut.registry.storage_local import LocalStorage

    return LocalStorage(Path(text.removeprefix("file://")))
