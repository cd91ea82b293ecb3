"""A registry behind a URL: object stores, memory, and whatever else fsspec reaches.

An object appears whole or not at all, so each file is written by one put; artifacts are named by their content and
fetched to a local folder, where they are checked before they are opened. There are no locks that end with their
holder: a lock is an object that its holder removes, and the message of one that was left behind names it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tailcut.common.redaction import tree_without_secrets
from tailcut.errors import ArtifactError, BuildError, MissingExtra
from tailcut.system.atomic_files import Staging, check, digest
from tailcut.system.clock import now

_AS_IT_WAS = "the registry is unchanged; check permissions and free space, or set registry.path to another place"

_REPLACE = "remove that object and run `tailcut build` again, or promote another version"

_CACHE = "free space, give write permission, or set XDG_CACHE_HOME to a folder for artifacts fetched from a URL"


class FsspecStorage:
    """Keeps files below a URL; see ``Storage``.

    Args:
        url: such as "s3://bucket/registry"; credentials come from the scheme's own environment, never from the URL.
        cache: local folder for fetched artifacts; ``$XDG_CACHE_HOME/tailcut/artifacts`` where None. It may be emptied
            at any time.
    """

    def __init__(self, url: str, cache: Path | None = None) -> None:
        self.url = tree_without_secrets(url.rstrip("/"))
        self._cache = cache if cache is not None else _cache_folder()
        self._files, self._base = _open(url.rstrip("/"))
        self._renames = _renames(self._files)

    def read(self, path: str) -> bytes:
        with self._doing("read", path):
            return bytes(self._files.cat_file(self._at(path)))

    def size_bytes(self, path: str) -> int | None:
        with self._doing("read", path):
            self._files.invalidate_cache()
            try:
                return int(self._files.info(self._at(path))["size"])
            except FileNotFoundError:
                return None

    def stamp(self, path: str) -> Hashable:
        try:
            return hashlib.sha256(self.read(path)).hexdigest()
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        with self._doing("list", folder):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._at(folder), detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted({name.rstrip("/").rpartition("/")[2] for name in found})

    def files(self, folder: str) -> Iterator[str]:
        with self._doing("list", folder):
            self._files.invalidate_cache()
            found = self._files.find(self._at(folder))
        start = len(self._base) + 1
        yield from sorted(name[start:] for name in found)

    def remove(self, path: str) -> None:
        with self._doing("remove", path), suppress(FileNotFoundError):
            self._files.rm_file(self._at(path))

    @contextmanager
    def batch(self) -> Iterator[_RemoteBatch]:
        yield _RemoteBatch(self)

    def holds(self, path: str, sha256: str, size_bytes: int) -> bool:
        return self.size_bytes(path) == size_bytes

    def fetch(self, path: str, sha256: str, size_bytes: int, what: str) -> Path:
        kept = self._cache / sha256[:2] / sha256
        with suppress(OSError):  # it is not there, or the cache is being emptied
            if kept.stat().st_size == size_bytes and digest(kept) == sha256:
                return kept
        whole = f"artifact {self.url}/{path} ({what})"
        try:
            with Staging(self._cache, _CACHE) as staging:
                temporary = staging.reserve(kept, size_bytes)
                with self._doing("read", path):
                    self._files.get_file(self._at(path), str(temporary))
                check(temporary, sha256, size_bytes, whole, hint=_REPLACE)
                staging.commit()
        except FileNotFoundError as error:
            hint = "run `tailcut build` again, or promote another version"
            raise ArtifactError(f"{whole} is missing", hint=hint) from error
        return kept

    @contextmanager
    def build_lock(self, path: str, model: str) -> Iterator[None]:
        with self._object(path, f"model {model!r} is being built by {{holder}}"):
            yield

    @contextmanager
    def changing(self, path: str) -> Iterator[None]:
        """Hold nothing: the last of two promotions at the same moment wins, as each is one whole put."""
        yield

    @contextmanager
    def adding(self) -> Iterator[None]:
        # First the own mark, then the look at the other's: of two that do so at once, at least one sees the other.
        with self._object(f"locks/adding-{secrets.token_hex(8)}", ""):
            self._refuse_if("locks/collecting", "{holder} is removing unused artifacts")
            yield

    @contextmanager
    def collecting(self) -> Iterator[None]:
        with self._object("locks/collecting", "{holder} is removing unused artifacts"):
            for name in self.names("locks"):
                if name.startswith("adding-"):
                    self._refuse_if(f"locks/{name}", "{holder} is adding artifacts")
            yield

    @contextmanager
    def _object(self, path: str, held: str) -> Iterator[None]:
        """Hold an object that only one can make."""
        me = f"process {os.getpid()} on {socket.gethostname()} since {now()[:19]} UTC".encode()
        with self._doing("write", path):
            try:
                self._in_folder(path, lambda target: self._files.pipe_file(target, me, mode="create"))
            except FileExistsError:
                self._refuse_if(path, held)
                raise
        try:
            yield
        finally:
            self.remove(path)

    def _refuse_if(self, path: str, held: str) -> None:
        try:
            holder = self.read(path).decode(errors="replace")
        except FileNotFoundError:
            return
        raise BuildError(
            f"{held.format(holder=holder)}, which holds {self.url}/{path}",
            hint="wait until it has ended; if its process no longer runs, remove that object",
        )

    def put(self, path: str, content: bytes | Path) -> None:
        """Write one object; where that fails half-way nothing is left at a path that was free."""
        was_there = self.size_bytes(path) is not None
        with self._doing("write", path):
            try:
                if isinstance(content, Path):
                    self._in_folder(path, lambda target: self._files.put_file(str(content), target))
                elif self._renames:
                    self._in_folder(path, lambda target: self._renamed(target, content))
                else:
                    self._in_folder(path, lambda target: self._files.pipe_file(target, content))
            except BaseException:
                if not was_there:
                    with suppress(Exception):
                        self._files.rm_file(self._at(path))
                raise

    def _in_folder(self, path: str, write: Callable[[str], None]) -> None:
        """Write; an object store has no folders, a file system may want the folder first."""
        target = self._at(path)
        try:
            write(target)
        except FileNotFoundError:
            self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
            write(target)

    def _renamed(self, target: str, content: bytes) -> None:
        """Replace a file of a file system, whose writes are not atomic as an object's are."""
        temporary = f"{target}.{secrets.token_hex(6)}.tmp"
        try:
            self._files.pipe_file(temporary, content)
            try:
                self._files.mv(temporary, target)
            except FileExistsError:  # SMB renames to a free name only
                self._files.pipe_file(target, content)
                self._files.rm_file(temporary)
        except BaseException:
            with suppress(Exception):
                self._files.rm_file(temporary)
            raise

    def _at(self, path: str) -> str:
        return f"{self._base}/{path}"

    @contextmanager
    def _doing(self, what: str, path: str) -> Iterator[None]:
        """Turn what a file system raises, whatever its own classes are, into an error with the URL in it."""
        try:
            yield
        except (FileNotFoundError, ArtifactError, BuildError):
            raise
        except Exception as error:
            reason = str(error).partition("\n")[0] or "no reason given"
            hint = _AS_IT_WAS if what == "write" else "check the address, the permissions and the network"
            message = f"cannot {what} {self.url}/{path}: {type(error).__name__}: {reason}"
            raise ArtifactError(message, hint=hint) from error


class _RemoteBatch:
    """Artifacts are put at once, under names that nothing refers to yet; records wait for ``commit``."""

    def __init__(self, storage: FsspecStorage) -> None:
        self._storage = storage
        self._waiting: list[tuple[str, bytes]] = []

    def write(self, path: str, content: bytes) -> None:
        self._waiting.append((path, content))

    def copy(self, path: str, source: Path) -> str:
        sha = digest(source)
        self._storage.put(path, source)
        return sha

    def commit(self) -> None:
        for path, content in self._waiting:
            self._storage.put(path, content)
        self._waiting.clear()


def _open(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"registry.path is the URL {url}, but fsspec is not installed", hint="pip install 'tailcut[remote]'"
        ) from error
    try:
        files, base = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise MissingExtra(
            f"registry.path is the URL {url}, whose scheme needs another package: {error}",
            hint="install that package, or set registry.path to a folder",
        ) from error
    except ValueError as error:
        raise ArtifactError(
            f"registry.path is the URL {url}, which fsspec does not support: {error}",
            hint="use a scheme that fsspec supports, such as s3://bucket/folder, or a folder",
        ) from error
    return files, base.rstrip("/")


def _renames(files: Any) -> bool:
    """Tell whether writes go through a rename: a file system (SFTP, SMB, HDFS, a folder) writes in place and has a
    move of its own; an object store puts whole objects and has none, fsspec's copies and removes.
    """
    from fsspec import AbstractFileSystem

    return type(files).mv is not AbstractFileSystem.mv


def _cache_folder() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(given) if given else Path.home() / ".cache") / "tailcut" / "artifacts"
    except RuntimeError as error:
        raise ArtifactError(
            f"no folder for fetched artifacts: {error}", hint="set HOME, or XDG_CACHE_HOME to a folder"
        ) from error
