"""Modules of user code: a process holds one module of each name, so deployments must agree on its file.

``sys.modules`` and ``sys.path`` belong to the process. Of two deployments with a ``my_model.py`` each, the second one
would run the functions of the first. So before a reference is imported, every name that its code can import is looked
up as this deployment alone would find it, and compared with what the process has imported and with what the other
deployments import. A name on which they differ is refused. Files that no code imports do not matter.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence

from tailcut.common.source_imports import imports_of
from tailcut.errors import ManifestError
from tailcut.manifest.module_files import BARE, file_of, names_in, same_file

_HINT = (
    "a process holds one module of each name: rename one of the two files, move each into a package with a name of "
    "its own, or serve the deployments in two processes"
)
_BUILT_IN = frozenset(sys.builtin_module_names)
_PICKLES = frozenset({"pickle", "cloudpickle", "dill", "joblib"})
"""Libraries whose files name the modules that loading them imports."""


class UserModules:
    """The modules that one deployment's code can import.

    Attributes:
        label: name of the deployment, for errors.
        folders: its python_path, absolute.
        names: dotted names that its code imports, functions that run later included -> the module that does; empty for
            what the manifest names.
        dynamic: a module that can import names which its source does not show; empty where there is none.
        loaded: names of modules that the process imported while it imported this deployment's.
    """

    def __init__(self, label: str, folders: tuple[str, ...]) -> None:
        self.label = label
        self.folders = folders
        self.names: dict[str, str] = {}
        self.dynamic = ""
        self.loaded: set[str] = set()
        self._waiting: list[tuple[str, str]] = []

    def add(self, module: str) -> None:
        """Take in a module that the manifest names; ``read`` reads it."""
        self._waiting.append((module, ""))

    def read(self) -> None:
        """Read the sources of what was added, and of what those import from the deployment's folders."""
        while self._waiting:
            name, importer = self._waiting.pop()
            for each in _with_packages(name):
                if each not in self.names:
                    self.names[each] = importer
                    self._read(each, self.file_of(each))

    def _read(self, name: str, file: str | None) -> None:
        if not file or not file.endswith(".py"):
            return
        try:
            with open(file, "rb") as source:
                found = imports_of(source.read(), name, is_package=_is_package(file))
        except OSError:
            return  # importing it says so
        self._waiting += [(each, name) for each in sorted(found.names)]
        if found.dynamic or any(each.partition(".")[0] in _PICKLES for each in found.names):
            self.dynamic = self.dynamic or name

    def file_of(self, name: str) -> str | None:
        """Return the file of a module in the deployment's folders; see ``module_files.file_of``."""
        return file_of(name, self.folders)

    def imports(self, name: str) -> bool:
        """Tell whether its code can import a name."""
        return name in self.names or bool(self.dynamic and self.file_of(name))

    def add_loaded(self) -> None:
        """Take in what it has imported by names that its source does not show."""
        for name in loaded_names(self.folders):
            if same_file(self.file_of(name), loaded_file(name)):
                self.names.setdefault(name, self.dynamic)

    @property
    def present(self) -> bool:
        """Whether its folders are on the import path."""
        return set(self.folders) <= set(sys.path)


class Deployments:
    """The deployments whose folders are on this process's import path."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._known: dict[tuple[str, ...], UserModules] = {}
        self._inserted: set[str] = set()

    @property
    def present(self) -> list[UserModules]:
        """Those that can import modules now."""
        return [one for one in list(self._known.values()) if one.present]

    def get(self, label: str, folders: Sequence[str]) -> UserModules:
        """Return the record of the deployment with these folders, a new one where there is none."""
        key = tuple(dict.fromkeys(folders))
        known = self._known.get(key)
        return known if known is not None and known.present else UserModules(label, key)

    def put_on_path(self, one: UserModules) -> None:
        """Put its folders in front of ``sys.path``, once each."""
        missing = [folder for folder in one.folders if folder not in sys.path]
        self._inserted = (self._inserted & set(sys.path)) | set(missing)
        sys.path[:0] = missing
        self._known[one.folders] = one

    def foreign(self, one: UserModules) -> set[str]:
        """Return the folders on the path that are there for other deployments only."""
        return self._inserted.difference(one.folders)


deployments = Deployments()
"""Of this process: they share ``sys.modules`` and ``sys.path``, which are the process's too."""


def claim(label: str, folders: Sequence[str], module: str, reference: str) -> UserModules:
    """Put a deployment's folders on the import path, where the modules of a reference clash with no others.

    Args:
        label: name of the deployment.
        folders: its python_path, absolute.
        module: dotted name of the module that is imported next.
        reference: the reference that names it.

    Returns:
        the deployment's modules, for ``check_loaded`` after the import.

    Raises:
        ManifestError: the process has imported, or another deployment imports, another file under a name that the
            code of this deployment imports.
    """
    with deployments.lock:
        mine = deployments.get(label, folders)
        mine.add(module)
        check_loaded(mine, module, reference)
        others = [other for other in deployments.present if other is not mine]
        for other in others:
            _check_pair(mine, other, reference)
        deployments.put_on_path(mine)
        return mine


def check_loaded(mine: UserModules, module: str, reference: str) -> None:
    """Refuse a name that the deployment's code imports and that the process has imported from another file.

    What the deployment's own code imported may come from anywhere: it may have changed ``sys.path``.

    Raises:
        ManifestError: there is one.
    """
    for name in loaded_names(mine.folders):
        file, loaded = mine.file_of(name), loaded_file(name)
        if not file or loaded is None or same_file(file, loaded):
            continue
        if name in mine.loaded and not f"{module}.".startswith(f"{name}."):
            continue
        mine.read()
        # Python's own built-in modules come before every folder: code that imports one means that one.
        if name in mine.names and (name not in _BUILT_IN or name == module):
            raise ManifestError(
                f"{reference}: {_importing(mine, name)} from {file}, and this process has imported "
                f"{loaded or 'a built-in module'} under that name",
                hint=_HINT,
            )


def _check_pair(mine: UserModules, other: UserModules, reference: str) -> None:
    for one in (mine, other):
        one.read()
    other.add_loaded()
    for name in sorted({*mine.names, *other.names} - _BUILT_IN):
        if not (mine.imports(name) and other.imports(name)):
            continue
        here, there = mine.file_of(name), other.file_of(name)
        if not here and not there:
            continue  # neither has it: both find it where the process does
        here, there = (_elsewhere(name) if file is None else file for file in (here, there))
        if not same_file(here, there):
            raise ManifestError(
                f"{reference}: {_importing(mine, name)} from {_shown(here)}, and deployment {other.label!r} in the "
                f"same process imports {_shown(there)} under that name",
                hint=_HINT,
            )


def loaded_names(folders: Sequence[str]) -> list[str]:
    """Return the names of imported modules that may be files of these folders; inside of bare folders, too."""
    tops = names_in(folders)
    found = []
    for name in sorted(list(sys.modules)):
        top, _, below = name.partition(".")
        if top in tops and (not below or file_of(name.rpartition(".")[0], folders) == BARE):
            found.append(name)
    return found


def loaded_file(name: str) -> str | None:
    """Return the file of an imported module: empty for a built-in one, its folder for a bare one, None if unknown."""
    if name in _BUILT_IN:
        return ""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if isinstance(file, str):
        return file
    folders = getattr(getattr(module, "__spec__", None), "submodule_search_locations", None)
    return next(iter(folders), None) if folders else None


def _elsewhere(name: str) -> str | None:
    """Find a module where no deployment's folder is."""
    mine = UserModules("", ())
    foreign = deployments.foreign(mine)
    return file_of(name, [entry for entry in sys.path if entry not in foreign])


def _importing(mine: UserModules, name: str) -> str:
    importer = mine.names.get(name) or (mine.dynamic if name not in mine.names else "")
    return f"deployment {mine.label!r} imports {name}" + (f" (in {importer})" if importer else "")


def _shown(file: str | None) -> str:
    if file is None:
        return "no file that tailcut finds"
    return file or "a folder without __init__.py"


def _with_packages(name: str) -> Iterator[str]:
    """Yield a dotted name's packages from the outermost on, and itself."""
    parts = name.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _is_package(file: str) -> bool:
    return os.path.basename(file) == "__init__.py"
