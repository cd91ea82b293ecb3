"""Which of the user's modules reach which: import analysis of their files, from some modules on."""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from tailcut.code.imported import IMPORTED, ModuleText
from tailcut.code.locating import Locator, Place
from tailcut.code.process import started_s
from tailcut.common.source_imports import imports_of

MOST_MODULES = 5000
"""Most modules that are analysed. Beyond this limit a warning is logged, and the version ignores the other modules."""

_PYTHON = (".py", ".pyw")


@dataclass(frozen=True)
class Module:
    """One of the user's modules, as it was read.

    Attributes:
        place: where it lies.
        sha256: of its file.
        uses: the user's modules that it imports, and the packages that it lies in.
        installed: top-level packages of distributions that it imports.
        dynamic: whether it imports modules whose names its text does not say.
    """

    place: Place
    sha256: str
    uses: tuple[str, ...] = ()
    installed: tuple[str, ...] = ()
    dynamic: bool = False


@dataclass
class Graph:
    """The user's modules, by name, read once each.

    Attributes:
        began_s: a file that changed later than this, and was imported since, may be another one than was imported:
            seconds since the epoch; None where that does not matter.
        before: modules that had been imported by then, at any time since this process started.
        uncertain: modules whose text, as this process runs it, is unknown.
        stale: modules whose files have another text by now than the one that this process runs.
    """

    locator: Locator
    began_s: float | None = None
    before: Set[str] = frozenset()
    modules: dict[str, Module] = field(default_factory=dict)
    uncertain: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    cut: bool = False

    def add(self, names: Iterable[str]) -> None:
        """Read modules and all that they import."""
        waiting = [name for name in names if name not in self.modules]
        while waiting:
            name = waiting.pop()
            if name in self.modules or self.locator.find(name).kind != "user":
                continue
            if len(self.modules) >= MOST_MODULES:
                self.cut = True
                return
            module = self.modules[name] = self._read(name)
            waiting += module.uses

    def reached(self, names: Iterable[str]) -> set[str]:
        """Return the modules that these reach, themselves included."""
        found: set[str] = set()
        waiting = [name for name in names if name in self.modules]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += (each for each in self.modules[name].uses if each in self.modules)
        return found

    def packages(self, names: Iterable[str]) -> Mapping[str, Place]:
        """Return the packages of distributions that these modules import."""
        tops = {top for name in names for top in self.modules[name].installed}
        return {top: self.locator.find(top) for top in sorted(tops)}

    def copy(self) -> Graph:
        """Copy it, so that what is read from the disk for a moment does not stay in it."""
        return Graph(self.locator, self.began_s, self.before, dict(self.modules))

    def _read(self, name: str) -> Module:
        place = self.locator.find(name)
        parents = _parents(name)
        if not place.origin:  # a namespace package has no text
            return Module(place, "", tuple(parents))
        text = self._text(name, place)
        if (found := text.imports) is None:
            return Module(place, text.sha256, tuple(parents))
        kinds = {each: self.locator.find(each).kind for each in found.names}
        users = [each for each in found.names if kinds[each] == "user"]
        users += (above for each in found.names for above in _parents(each) if self.locator.find(above).kind == "user")
        installed = {each.partition(".")[0] for each in found.names if kinds[each] == "installed"}
        uses = tuple(dict.fromkeys([*parents, *users]))
        return Module(place, text.sha256, uses, tuple(sorted(installed)), found.dynamic)

    def _text(self, name: str, place: Place) -> ModuleText:
        """Return the text that this process runs, where it has imported the module; else that of the file."""
        runs = IMPORTED.text_of(name) if self.began_s is not None else None
        try:
            content: bytes | None = place.read()
        except OSError:  # gone since it was imported
            content = None
        sha = "" if content is None else hashlib.sha256(content).hexdigest()
        if runs is not None:
            if sha != runs.sha256:
                self.stale.append(name)
            return runs
        if content is None:
            return ModuleText(self._unknown(name), None)
        is_python = place.origin.endswith(_PYTHON)
        imports = imports_of(content, name, is_package=place.search is not None) if is_python else None
        if self._may_have_changed(name, place):
            return ModuleText(self._unknown(name), imports)
        text = ModuleText(sha, imports)
        if self.began_s is not None:
            IMPORTED.note(name, text)
        return text

    def _may_have_changed(self, name: str, place: Place) -> bool:
        if self.began_s is None or name not in sys.modules:
            return False
        try:
            return os.stat(place.origin).st_ctime > (started_s() if name in self.before else self.began_s)
        except OSError:  # in a zip file
            return False

    def _unknown(self, name: str) -> str:
        """Make a hash that equals no other: what this process runs cannot be known."""
        self.uncertain.append(name)
        return f"unknown-{secrets.token_hex(8)}"


def _parents(name: str) -> list[str]:
    return [name[:at] for at, letter in enumerate(name) if letter == "."]
