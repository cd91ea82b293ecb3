"""Modules of user code: a process holds one module of each name, so the deployments in it must agree on its file.

``sys.modules`` and ``sys.path`` belong to the process. Of two deployments with a ``my_model.py`` each, the second one
would run the functions of the first. So before a reference is imported, every Python file below the deployment's
folders is compared by its dotted name with those of the other deployments, of installed packages, and with what the
process has imported. Two different files of one name are refused, whether or not anything imports them.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import PathFinder

from tailcut.errors import ManifestError

MAX_FILES = 20_000
"""Files below the folders of python_path: a start reads all of them."""

_SUFFIXES = (".py", ".so", ".pyd")
_SKIPPED = {"__pycache__", "site-packages", "dist-packages", "node_modules"}
_HINT = (
    "a process holds one module of each name: rename one of the two files, move each into a package with a name of "
    "its own, leave what is not served out of python_path, or serve the deployments in two processes"
)

_BARE = "a folder without __init__.py"

_lock = threading.RLock()
_known: dict[tuple[str, ...], str] = {}
"""Folders of the deployments of this process -> the deployment's name."""
_inserted: set[str] = set()
"""Folders that are on the import path because of a deployment."""


def python_files(folders: Iterable[str]) -> dict[str, str]:
    """Find every Python file below folders, but those of environments and hidden folders; an archive is one file.

    Returns:
        path by dotted module name; a file whose name an earlier one has is named by its path.

    Raises:
        ManifestError: there are more than ``MAX_FILES``.
    """
    found: dict[str, str] = {}
    for folder in folders:
        if os.path.isfile(folder):
            found[os.path.basename(folder)] = folder
        seen: set[str] = set()  # links may run in circles
        for above, below, files in os.walk(folder, followlinks=True):
            real = os.path.realpath(above)
            if above != folder and ("pyvenv.cfg" in files or "conda-meta" in below):
                seen.add(real)  # an environment
            below[:] = sorted(each for each in below if each[0] != "." and each not in _SKIPPED and real not in seen)
            for file in sorted(each for each in files if each.endswith(_SUFFIXES) and real not in seen):
                inside = os.path.join(above, file)[len(folder) :].strip(os.sep)
                name = os.path.join(os.path.dirname(inside), file.partition(".")[0]).replace(os.sep, ".")
                name = name.removesuffix(".__init__")
                found[name if name not in found else inside] = os.path.join(above, file)
            seen.add(real)
            if len(found) > MAX_FILES:
                raise ManifestError(
                    f"python_path: {folder} has more than {MAX_FILES:,} Python files, and the start reads all of them",
                    hint="name the folder of this deployment's own code in python_path",
                )
    return found


def claim(label: str, folders: Sequence[str], reference: str) -> dict[str, str]:
    """Put a deployment's folders in front of the import path, where its files clash with no others.

    Args:
        label: name of the deployment.
        folders: its python_path, absolute.
        reference: what is imported next, for errors.

    Returns:
        its files, for ``check_loaded`` after the import.

    Raises:
        ManifestError: another deployment, an installed package or the process has another file of a module's name.
    """
    with _lock:
        importlib.invalidate_caches()  # of two threads that do so at once one gets a KeyError
        mine = python_files(folders)
        check_loaded(label, mine, reference)
        others = {theirs: other for theirs, other in present().items() if theirs != tuple(folders)}
        rest = [entry for entry in sys.path if entry not in {*folders}.union(*others)]
        for theirs, other in others.items() if tuple(folders) not in present() else ():
            found = python_files(theirs)
            _refuse_clash(reference, label, mine, f"deployment {other!r}", found)
            for holder, files in ((label, mine), (other, found)):
                _refuse_clash(reference, holder, files, "an installed package", _importable(files, rest))
        missing = [folder for folder in dict.fromkeys(folders) if folder not in sys.path]
        _inserted.intersection_update(sys.path)
        _inserted.update(missing)
        sys.path[:0] = missing
        _known[tuple(folders)] = label
        return mine


def check_loaded(label: str, files: Mapping[str, str], reference: str) -> None:
    """Refuse a module of the deployment's files that this process has imported from another file.

    Raises:
        ManifestError: there is one.
    """
    for name, file in files.items():
        loaded = loaded_file(name) if name != "__main__" else None
        if loaded and not _is_same(file, loaded):
            raise ManifestError(
                f"{reference}: deployment {label!r} has {name} in {file}, and this process has imported {loaded} under "
                "that name",
                hint=_HINT,
            )


def present() -> dict[tuple[str, ...], str]:
    """Return the folders of the deployments that can import modules now, with the deployments' names."""
    return {folders: label for folders, label in list(_known.items()) if set(folders) <= set(sys.path)}


def loaded_file(name: str) -> str | None:
    """Return the file of an imported module; None where there is none."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return file if isinstance(file, str) else None


def is_anothers(name: str, path: str, folders: Sequence[str]) -> bool:
    """Tell whether a loaded module lies in another deployment's folder, and would not be found without that one.

    Args:
        path: the module's file.
        folders: of the deployment that is asked about.
    """
    theirs = _inserted.difference(folders)
    if not path.startswith(tuple(map(within, theirs))):
        return False
    alone = [*folders, *(entry for entry in sys.path if entry not in theirs)]
    top = name.partition(".")[0]
    return not any(finder.find_spec(top, alone if finder is PathFinder else None) for finder in sys.meta_path)


def within(folder: str) -> str:
    """Return what the paths of a folder's files begin with."""
    return folder.rstrip(os.sep) + os.sep


def _importable(files: Mapping[str, str], path: list[str]) -> dict[str, str]:
    """Find modules with the top-level names of these files along a path; Python's own are left out."""
    own = [name for name in files if name.isidentifier() and name not in sys.stdlib_module_names]
    specs = {name: PathFinder.find_spec(name, path) for name in own}
    return {name: spec.origin for name, spec in specs.items() if spec is not None and spec.origin}


def _refuse_clash(reference: str, label: str, mine: Mapping[str, str], whose: str, theirs: Mapping[str, str]) -> None:
    for name in sorted((mine.keys() | _tops(mine)) & (theirs.keys() | _tops(theirs))):
        here, there = mine.get(name, _BARE), theirs.get(name, _BARE)
        if here != there and not _is_same(here, there):
            raise ManifestError(
                f"{reference}: deployment {label!r} has {name} in {here}, and {whose} in the same process has it in "
                f"{there}",
                hint=_HINT,
            )


def _tops(files: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in files}


def _is_same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
