"""The user's code as this process imported it: a module is imported once, and its file may change afterwards."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from typing import NamedTuple

from tailcut.common.source_imports import Imports


class ModuleText(NamedTuple):
    """What there is to know of a module's text.

    Attributes:
        sha256: of its file.
        imports: what it may import; None where it is no Python text.
    """

    sha256: str
    imports: Imports | None


class Imported:
    """Texts of imported modules by name, and the data files beside them. Threads may share it.

    A module that is imported anew, or reloaded, has another spec, so what is known of the old one does not count.
    """

    def __init__(self) -> None:
        self._texts: dict[str, tuple[weakref.ref[ModuleSpec], ModuleText]] = {}
        self._data: dict[str, str] = {}

    def note(self, name: str, text: ModuleText) -> None:
        """Remember the text that a module was imported from."""
        spec = _spec_of(name)
        if spec is not None:
            self._texts[name] = weakref.ref(spec), text

    def text_of(self, name: str) -> ModuleText | None:
        """Return the text that a module was imported from; None where it is not known."""
        spec, known = _spec_of(name), self._texts.get(name)
        return known[1] if known is not None and spec is not None and known[0]() is spec else None

    def note_data(self, files: Iterable[tuple[str, str]]) -> None:
        """Remember the hashes of data files, by path, at the import of the modules that read them."""
        self._data.update(files)

    def data_at(self, path: str) -> str | None:
        """Return the hash that a data file had; None where it is not known."""
        return self._data.get(path)


def _spec_of(name: str) -> ModuleSpec | None:
    return getattr(sys.modules.get(name), "__spec__", None)


IMPORTED = Imported()
"""Of this process, as ``sys.modules`` is."""
