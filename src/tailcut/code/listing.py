"""Writes down the modules of a graph as a ``Code``."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from msgspec.structs import replace

from tailcut.code import distributions
from tailcut.code.digest import Code, CodeFile, Distribution, Role
from tailcut.code.graph import Graph
from tailcut.code.locating import Locator, Place


def listing(
    graph: Graph, serving: Collection[str], source: Collection[str], data: dict[str, str], directory: Path
) -> Code:
    """List modules, data files and distributions with what runs them.

    Args:
        serving: names of modules, of the graph or installed, that every variant runs.
        source: those that only a variant of the user's own object runs.
    """
    modules: dict[str, CodeFile] = {}
    found: dict[str, Distribution] = {}
    roles: tuple[tuple[Role, Collection[str]], ...] = (("serving", serving), ("source", source))
    for role, names in roles:
        own = sorted(name for name in names if name in graph.modules)
        for name in own:
            module = graph.modules[name]
            if module.sha256 and name not in modules:
                file = _relative(module.place.origin, directory)
                modules[name] = CodeFile(sha256=module.sha256, role=role, file=file)
        places = {**_installed(names, graph.locator), **graph.packages(own)}
        if own or places:
            found.setdefault("python", Distribution(version=f"{sys.version_info[0]}.{sys.version_info[1]}", role=role))
        for name, version in distributions.versions(places.items()).items():
            found.setdefault(name, Distribution(version=version, role=role))
    return Code(modules=modules, data=data, distributions=found, cut=graph.cut)


def completed(there: Code, wanted: Code, locator: Locator, directory: Path) -> Code:
    """Add modules of ``wanted`` that analysis has not reached and that are there all the same.

    A plugin is found by its name, and a module of a folder that only the running code knows by its path.
    """
    added: dict[str, CodeFile] = {}
    for name, each in wanted.modules.items():
        if name not in there.modules:
            places = (locator.loaded_or_found(name), Place("user", str(directory / each.file) if each.file else ""))
            sha = next(filter(None, map(sha256_of, places)), "")
            if sha:
                added[name] = replace(each, sha256=sha)
    return replace(there, modules={**there.modules, **added})


def _installed(names: Iterable[str], locator: Locator) -> dict[str, Place]:
    tops = {name.partition(".")[0] for name in names if locator.find(name).kind == "installed"}
    return {top: locator.find(top) for top in sorted(tops)}


def sha256_of(place: Place) -> str:
    """Hash the file of a module; empty where there is none, or it cannot be read."""
    if not place.origin:
        return ""
    try:
        return hashlib.sha256(place.read()).hexdigest()
    except OSError:
        return ""


def sha256_at(file: Path, name: str, locator: Locator) -> str:
    """Hash the file of a module at its path; one that lies in an archive is read by what imports it from there."""
    return sha256_of(Place("user", str(file))) or sha256_of(locator.loaded_or_found(name))


def _relative(origin: str, directory: Path) -> str:
    """Path from the manifest's folder, also of a file outside it; links in the paths of folders do not matter."""
    folder, name = os.path.split(origin)
    return Path(os.path.relpath(os.path.join(os.path.realpath(folder), name), os.path.realpath(directory))).as_posix()
