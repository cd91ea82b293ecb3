"""The user's code as this process runs it: hashed when it was imported, whatever its files are later."""

from __future__ import annotations

import logging
import os
import secrets
import sys
import sysconfig
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from tailcut.code import files
from tailcut.code.digest import SOURCE_FILES, Code, CodeFile, digest, few
from tailcut.manifest import Manifest, resolve
from tailcut.manifest.modules import is_anothers, within
from tailcut.manifest.references import folders_of

log = logging.getLogger("tailcut.server")

IMPORTS = threading.RLock()
"""Held while a deployment's modules are imported, so that what is known of their files is of the same moment."""

_RUNS = "tailcut_sha256"
"""Attribute of a module's spec: hash of the text that it was imported from. A reloaded module has a new spec."""

_UNKNOWN = "unknown-"
"""How hashes of unknown texts begin."""

_PROGRAMS = ("__main__", "__mp_main__")
"""Names of the program started; multiprocessing uses the second for the one that its workers run."""

_data: dict[str, str] = {}
"""Hashes of data files at the import of the modules that may hold them, by path."""


class CodeSnapshot(NamedTuple):
    """The user's code that one variant runs, read once, so that its version and its executors agree.

    Attributes:
        digest: 16 bytes that change with whatever of the user's code a variant's answers depend on.
        imports: SHA-256 of the Python files that are loaded, or that the text of the variant's code imports; by path
            from the manifest's folder, without those of unknown text.
        data: SHA-256 of the data files at the start, by name.
    """

    digest: bytes = b""
    imports: Mapping[str, str] = {}
    data: Mapping[str, str] = {}


def begin() -> tuple[frozenset[str], float]:
    """Return what ``LoadedCode`` needs to know of the moment before a deployment's functions are imported."""
    return frozenset(sys.modules), time.time()


class LoadedCode:
    """The user's code that this process has loaded for one deployment. Threads may share it.

    Args:
        before: names of the modules that the process had loaded before it imported this deployment's functions.
        began_s: when it began to import them, in seconds since the epoch.

    Attributes:
        code: every Python file of ``python_path``, and of the modules that are loaded from elsewhere; not those of
            installed packages, nor those that another deployment alone can import.
        stale: files that have another text by now than what this process has imported, and goes on running.

    Raises:
        ManifestError: a data file is missing, or there are too many Python files.
    """

    def __init__(self, manifest: Manifest, before: Set[str], began_s: float) -> None:
        self._manifest = manifest
        self._also: frozenset[str] = frozenset()
        self.stale: tuple[str, ...] = ()
        self._loaded: set[str] = set()
        self._imported: dict[bool, Set[str]] = {}
        self._on_disk = files.code_on_disk(manifest, strict=True)
        self.code = self._read(self._on_disk, before, began_s)

    def import_also(self, references: Iterable[str]) -> None:
        """Import what opening a variant imports, and read the files of what that loads.

        Raises:
            ManifestError: it cannot be imported.
        """
        new = frozenset(references) - self._also
        if new:
            with IMPORTS:
                before, began_s = begin()
                for reference in sorted(new):
                    resolve(reference, self._manifest)
                self._also |= new
                self.code = self._read(files.code_on_disk(self._manifest), before, began_s)

    def snapshot(self, *, live: bool) -> CodeSnapshot:
        """Return what a variant runs.

        Args:
            live: whether it runs the user's own object.
        """
        code = self.code
        runs = {name: each for name, each in code.modules.items() if name in self._loaded | self._imported[live]}
        imports = {each.file: each.sha256 for each in runs.values() if not each.sha256.startswith(_UNKNOWN)}
        return CodeSnapshot(digest(files.part_of(code, self._manifest, live=live)), imports, self._on_disk.data)

    def digest_of(self, references: Iterable[str]) -> bytes:
        """Return 16 bytes that change with the code of functions; empty where there are none."""
        return digest(self.code) if [*references] else b""

    def lacks(self, recorded: Code, *, live: bool) -> tuple[str, ...]:
        """Name the files of a version's code whose content in this process differs, or is imported but missing."""
        return files.lacking(self._manifest, recorded, self.code, self._imported[live], live=live)

    def changed(self) -> tuple[str, ...]:
        """Name the files that have changed on the disk since they were imported, or since the start."""
        return files.changed(self._manifest, self.code)

    def _read(self, on_disk: Code, before: Set[str], began_s: float) -> Code:
        """Put the texts that this process runs in the place of those on the disk."""
        modules, data = dict(on_disk.modules), dict(on_disk.data)
        folders = folders_of(self._manifest)
        inside = tuple(map(within, folders))
        names = {_inode(self._manifest.directory / each.file): name for name, each in modules.items()}
        self._imported = {live: files.imported_names(self._manifest, live=live) for live in (False, True)}
        loaded: set[str] = set()
        unknown, stale = list[str](), list[str]()
        holds_data = False
        for name, spec, path in _own_modules():
            place = _inode(path)
            key = names.get(place, name) if place is not None else name
            outside = key not in on_disk.modules and not path.startswith(inside)
            if outside and is_anothers(name, path, folders):
                continue
            file = files.file_of(path, self._manifest)
            sha = on_disk.modules[key].sha256 if key in on_disk.modules else files.sha256_of(path)
            runs = vars(spec).get(_RUNS)
            if runs is None:
                # A file that changed after its import may have begun, or is gone, may be another one than was imported.
                imported_s = _started_s() if name in before else began_s
                is_known = place is not None and os.stat(path).st_ctime <= imported_s
                runs = vars(spec)[_RUNS] = sha if is_known else _UNKNOWN + secrets.token_hex(8)
                unknown += [file] * (not is_known)
            elif runs != sha:
                stale.append(file)
            modules[key] = CodeFile(sha256=runs, file=file)
            loaded.add(key)
            holds_data = holds_data or (not outside and name in before)
        for name, sha in on_disk.data.items():
            path = str(self._manifest.directory / name)
            if holds_data and not name.startswith(SOURCE_FILES) and _data.setdefault(path, sha) != sha:
                # Whether modules hold what they read at their import, or read it again, is unknown.
                data[name] = _UNKNOWN + secrets.token_hex(8)
                stale.append(name)
            else:
                _data[path] = sha
        self._loaded = loaded
        self._warn(tuple(unknown), tuple(stale))
        return replace(on_disk, modules=modules, data=data)

    def _warn(self, unknown: tuple[str, ...], stale: tuple[str, ...]) -> None:
        if unknown:
            log.warning(
                "%s changed during its import or before tailcut read it, so the text that runs is unknown and this "
                "server shares no cached answers; restart it",
                few(unknown),
            )
        if stale and stale != self.stale:
            log.warning(
                "%s changed on the disk after this process had imported the code: the server runs the code as it was "
                "imported, under the version of that code; restart it to run the new code",
                few(stale),
            )
        self.stale = stale


def _own_modules() -> Iterator[tuple[str, ModuleSpec, str]]:
    """Yield the loaded modules, with their files, but those of Python, installed packages and tailcut.

    Nor what a library compiled and loaded by itself, as torch.compile does: it follows from code that is here already,
    and may be compiled anew at any time. ``import`` never loads a submodule without its package.
    """
    others = tuple(map(within, [*map(sysconfig.get_path, ("stdlib", "platstdlib")), str(Path(__file__).parents[1])]))
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if isinstance(spec, ModuleSpec) and spec.has_location and spec.origin and name not in _PROGRAMS:
            if isinstance(spec.loader, ExtensionFileLoader) and spec.parent and spec.parent not in sys.modules:
                continue
            path = str(getattr(spec.loader, "archive", spec.origin))
            if not path.startswith(others) and not {"site-packages", "dist-packages"} & {*path.split(os.sep)}:
                yield name, spec, path


def _inode(path: str | Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


@cache
def _started_s() -> float:
    """Return when this process started, or was forked, in seconds since the epoch; without /proc the time now."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return time.time()
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
