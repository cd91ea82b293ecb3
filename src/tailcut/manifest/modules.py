"""Modules of user code: a process holds one module of each name, so the deployments in it must agree on its content.

``sys.modules`` and ``sys.path`` belong to the process. Of two deployments with a ``my_model.py`` each, the second one
would run the functions of the first. So before a reference is imported, what it imports is read from the text of its
modules, and each name must lead to the same content as in a process of the deployment's own. Files that nothing
imports are no matter.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder, all_suffixes
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

from tailcut.errors import ManifestError

MAX_FILES = 20_000
"""Files below the folders of python_path: a start reads all of them."""

_IMPORTERS = ("import_module", "__import__")
_SUFFIXES = (".py", ".so", ".pyd")
_SKIPPED = {"__pycache__", "site-packages", "dist-packages", "node_modules"}
_HINT = (
    "a process holds one module of each name: rename one of the two files, move each into a package with a name of "
    "its own, or serve the deployments in two processes"
)


class Claim(NamedTuple):
    """What a deployment imports: the file of each name, where the deployment is alone in the process."""

    label: str
    files: dict[str, str]


_lock = threading.RLock()
_claims: dict[tuple[str, ...], Claim] = {}
"""By the folders of a deployment."""
_inserted: set[str] = set()
"""Folders that are on the import path because of a deployment."""


def python_files(folders: Iterable[str]) -> dict[str, str]:
    """Find every Python file below folders, but those of environments and hidden folders; an archive is one file.

    Returns:
        path by dotted module name; a file that no import finds, or whose name an earlier one has, is named by its path.

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
                stem = file.removesuffix(next(filter(file.endswith, all_suffixes()), ""))
                name = os.path.join(os.path.dirname(inside), stem).replace(os.sep, ".").removesuffix(".__init__")
                found[name if stem.isidentifier() and name not in found else inside] = os.path.join(above, file)
            seen.add(real)
            if len(found) > MAX_FILES:
                raise ManifestError(
                    f"python_path: {folder} has more than {MAX_FILES:,} Python files, and the start reads all of them",
                    hint="name the folder of this deployment's own code in python_path",
                )
    return found


def claim(label: str, folders: Sequence[str], module: str, reference: str) -> None:
    """Put a deployment's folders in front of the import path, where each deployment then imports its own modules.

    Args:
        label: name of the deployment.
        folders: its python_path, absolute.
        module: what is imported next.
        reference: what names it, for errors.

    Raises:
        ManifestError: under a name that a deployment imports the process has, or would import, another file.
    """
    with _lock:
        importlib.invalidate_caches()  # of two threads that do so at once one gets a KeyError
        present = {theirs: claim for theirs, claim in _claims.items() if set(theirs) <= set(sys.path)}
        files = dict(present[tuple(folders)].files) if tuple(folders) in present else {}
        if module not in files or module not in sys.modules:  # an imported module keeps its text
            files.update({name: file for name, file in imports(folders, [module]).items() if file is not None})
        mine = Claim(label, files)
        missing = [folder for folder in dict.fromkeys(folders) if folder not in sys.path]
        for theirs, claim in {**present, tuple(folders): mine}.items():
            _refuse_other_files(reference, claim, theirs, [*missing, *sys.path], _inserted.union(folders))
        _inserted.intersection_update(sys.path)
        _inserted.update(missing)
        sys.path[:0] = missing
        _claims[tuple(folders)] = mine


def check_loaded(folders: Sequence[str], reference: str) -> None:
    """Refuse another file that this process has imported, or would import, in the place of a deployment's.

    Raises:
        ManifestError: there is one.
    """
    with _lock:
        _refuse_other_files(reference, _claims[tuple(folders)], folders, sys.path, _inserted)


def imports(folders: Sequence[str], modules: Iterable[str]) -> dict[str, str | None]:
    """Find what modules import, at the top and in functions, and what those of the folders among them import.

    Names that a program computes (``import_module(name)``) are not seen. Of installed packages, also where their
    environment lies in one of the folders, and of tailcut, only the top name is looked up.

    Returns:
        the file of each name where the deployment is alone in the process; None where there is none, as of the
        function in ``from module import function``.
    """
    path = _alone(folders)
    own, ours = tuple(map(within, folders)), within(str(Path(__file__).parents[1]))

    def is_own(file: str) -> bool:
        return file.startswith(own) and not file.startswith(ours) and _SKIPPED.isdisjoint(Path(file).parts)

    found: dict[str, str | None] = {}
    waiting = [*modules]
    while waiting:
        name = waiting.pop()
        if name in {"", "__main__"} or name in found:
            continue
        found[name] = file = _origin(name, path)
        if file is not None and is_own(file) and file.endswith(".py"):
            package = name if os.path.basename(file) == "__init__.py" else name.rpartition(".")[0]
            names = [each for each in _imported_by(_read(file) or b"", package) if each not in found]
            tops = {each.partition(".")[0] for each in names}
            foreign = {top for top in tops if (place := _origin(top, path)) is not None and not is_own(place)}
            waiting += {top if (top := each.partition(".")[0]) in foreign else each for each in names}
        waiting.append(name.rpartition(".")[0])
    return found


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
    if not path.startswith(tuple(map(within, _inserted.difference(folders)))):
        return False
    alone = _alone(folders)
    top = name.partition(".")[0]
    return not any(finder.find_spec(top, alone if finder is PathFinder else None) for finder in sys.meta_path)


def within(folder: str) -> str:
    """Return what the paths of a folder's files begin with."""
    return folder.rstrip(os.sep) + os.sep


def _alone(folders: Sequence[str]) -> list[str]:
    """Return the import path of a process that has this deployment only."""
    return [*folders, *(entry for entry in sys.path if entry not in _inserted.difference(folders))]


def _origin(name: str, path: Iterable[str], *, loaded: bool = False) -> str | None:
    """Return the file that an import of a name finds along a path; None where it finds none.

    Args:
        loaded: prefer what this process has imported.
    """
    origin: str | None = None
    above = ""
    for part in name.split("."):
        above = f"{above}.{part}".strip(".")
        if file := loaded_file(above) if loaded else None:
            origin, path = file, getattr(sys.modules[above], "__path__", [])
        else:
            spec = PathFinder.find_spec(part, [*path])
            if spec is None:
                return None
            origin, path = spec.origin, spec.submodule_search_locations or []
    return origin


def _imported_by(text: bytes, package: str) -> Iterator[str]:
    """Yield the names that a module's text imports, with those that may be functions: ``from module import name``."""
    with suppress(SyntaxError, ValueError):  # the import says what is wrong
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                with suppress(ImportError):  # beyond the top
                    base = resolve_name("." * node.level + (node.module or ""), package)
                    yield from (base, *(f"{base}.{alias.name}" for alias in node.names))
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in _IMPORTERS:
                yield from (str(each.value) for each in node.args[:1] if isinstance(each, ast.Constant))


def _refuse_other_files(
    reference: str, claim: Claim, folders: Sequence[str], path: Sequence[str], inserted: set[str]
) -> None:
    own, others = (tuple(map(within, each)) for each in (folders, inserted.difference(folders)))
    for name, file in sorted(claim.files.items()):
        there = _origin(name, path, loaded=True)
        if (file.startswith(own) or (there or "").startswith(others)) and not _is_same(file, there):
            raise ManifestError(
                f"{reference}: deployment {claim.label!r} imports {name} from {file}, and this process "
                f"{'has imported' if name in sys.modules else 'would import'} {there or 'no file'} under that name",
                hint=_HINT,
            )


def _is_same(one: str, other: str | None) -> bool:
    return one == other or (other is not None and _read(one) is not None and _read(one) == _read(other))


def _read(file: str) -> bytes | None:
    with suppress(OSError):
        return Path(file).read_bytes()
    return None
