"""Where a module comes from, without importing it: the user's files, an installed distribution, or Python itself."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from typing import Any, Literal, NamedTuple

from tailcut.code.installed import is_installed

Kind = Literal["user", "installed", "standard", "missing"]

_SITE = ("site-packages", "dist-packages")
_TAILCUT = "tailcut"
_PROGRAMS = ("__main__", "__mp_main__")
"""Names of the program started; multiprocessing uses the second for the one that its workers run."""


class Place(NamedTuple):
    """Where a module comes from.

    Attributes:
        kind: the user's own, of an installed distribution, of Python itself, or not found.
        origin: its file; empty for a namespace package.
        search: folders of a package's submodules; None of a plain module.
        loader: reads a file that lies in an archive.
    """

    kind: Kind
    origin: str = ""
    search: tuple[str, ...] | None = None
    loader: Any = None

    def read(self) -> bytes:
        """Read the module's file.

        Raises:
            OSError: it cannot be read.
        """
        try:
            with open(self.origin, "rb") as file:
                return file.read()
        except NotADirectoryError:
            if not hasattr(self.loader, "get_data"):
                raise
            return self._read_from_archive()

    def _read_from_archive(self) -> bytes:
        try:
            content: bytes = self.loader.get_data(self.origin)
        except OSError:
            raise
        except Exception as error:  # zlib's and zipimport's own, where the archive is another one by now
            raise OSError(f"{self.origin} cannot be read: {error}") from error
        return content


_MISSING = Place("missing")


class Locator:
    """Finds modules, each once. A module that this process has loaded is found where it was loaded from.

    Args:
        folders: of the manifest and its ``python_path``, absolute: what lies in them is the user's, unless a folder
            of installed distributions lies in them.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = folders
        self._found: dict[str, Place] = {}
        self._kinds: dict[str, Kind] = {}

    def find(self, name: str) -> Place:
        """Find a module by its dotted name."""
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = self._locate(name)
        return found

    def loaded_or_found(self, name: str) -> Place:
        """Find a module by its name, wherever it was loaded from: also in an installed distribution."""
        spec = _loaded(name)
        return self._place(spec) if spec is not None else self.find(name)

    def _locate(self, name: str) -> Place:
        parent, _, last = name.rpartition(".")
        search: tuple[str, ...] | None = None
        if not last.isidentifier():
            return _MISSING
        if parent:
            above = self.find(parent)
            if above.kind != "user":
                return Place(above.kind)
            if above.search is None:
                return _MISSING
            search = above.search
        elif name == _TAILCUT:
            return Place("installed")
        spec = _loaded(name) or self._spec(name, search)
        place = _MISSING if spec is None else self._place(spec)
        return place._replace(kind="installed") if not parent and self._is_installed(name, place) else place

    def _is_installed(self, name: str, place: Place) -> bool:
        """Whether an installer put a package beside the user's files."""
        above = os.path.dirname(place.origin) if place.search is not None else place.origin
        return place.kind == "user" and bool(place.origin) and is_installed(os.path.dirname(above), name)

    def _spec(self, name: str, search: Sequence[str] | None) -> ModuleSpec | None:
        """Ask the finders as an import would, with ``python_path`` in front where it is not on the path yet."""
        if search is None:
            search = [*(folder for folder in self._folders if folder not in sys.path), *sys.path]
        finders: list[Any] = [_AlongPath(search), *sys.meta_path]
        for finder in finders if "." in name else [BuiltinImporter, FrozenImporter, *finders]:
            with suppress(Exception):  # a finder may be of somebody else's
                spec: ModuleSpec | None = finder.find_spec(name, search if "." in name else None)
                if spec is not None:
                    return spec
        return None

    def _place(self, spec: ModuleSpec) -> Place:
        search = tuple(spec.submodule_search_locations) if spec.submodule_search_locations is not None else None
        if spec.has_location and spec.origin:
            return Place(self.kind_of(spec.origin), spec.origin, search, spec.loader)
        if search:  # a namespace package: whatever is the user's in it is looked at
            kinds = {self.kind_of(os.path.join(folder, "x.py")) for folder in search}
            kind: Kind = "user" if "user" in kinds else "installed"
            return Place(kind, "", search)
        return Place("standard")

    def kind_of(self, file: str) -> Kind:
        """Whose a file is."""
        folder = os.path.dirname(file)
        found = self._kinds.get(folder)
        if found is None:
            found = _longest(_within(folder), self._rules) or _longest(
                _within(os.path.realpath(folder)), self._real_rules
            )
            # What lies nowhere in particular is an editable install, or in a folder on PYTHONPATH.
            found = self._kinds[folder] = found or "user"
        return found

    @cached_property
    def _rules(self) -> list[tuple[str, Kind]]:
        return [(_within(folder), "user") for folder in self._folders] + [
            (_within(sysconfig.get_path(name)), "standard") for name in ("stdlib", "platstdlib")
        ]

    @cached_property
    def _real_rules(self) -> list[tuple[str, Kind]]:
        return [(_within(os.path.realpath(folder)), kind) for folder, kind in self._rules]


class _AlongPath:
    """Finds modules along given folders, as ``PathFinder`` does along ``sys.path``."""

    def __init__(self, search: Sequence[str]) -> None:
        self._search = search

    def find_spec(self, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, self._search)


def _loaded(name: str) -> ModuleSpec | None:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return spec if isinstance(spec, ModuleSpec) else None


def loaded_user_modules(names: Iterable[str], locator: Locator) -> list[str]:
    """Of the names of loaded modules, return those that come from the user's files; the program started is not one."""
    tops: dict[str, bool] = {}
    found: list[str] = []
    for name in names:
        top = name.partition(".")[0]
        if top not in tops:
            tops[top] = top not in _PROGRAMS and locator.find(top).kind == "user"
        if tops[top] and (spec := _loaded(name)) is not None and _is_own(spec, locator):
            found.append(name)
    return found


def _is_own(spec: ModuleSpec, locator: Locator) -> bool:
    return bool(spec.has_location and spec.origin) and locator.kind_of(str(spec.origin)) == "user"


def _longest(folder: str, rules: Sequence[tuple[str, Kind]]) -> Kind | None:
    """Apply the rule of the longest folder that holds this one; site-packages is the distributions', wherever it is."""
    parts = folder.split(os.sep)
    site = max((at for at, part in enumerate(parts) if part in _SITE), default=-1)
    best = len(os.sep.join(parts[: site + 1])) if site > 0 else -1
    kind: Kind | None = "installed" if site > 0 else None
    for each, whose in rules:
        if folder.startswith(each) and len(each) > best:
            best, kind = len(each), whose
    return kind


def _within(folder: str) -> str:
    return folder.rstrip(os.sep) + os.sep
