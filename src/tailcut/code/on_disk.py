"""The user's code as it lies in the manifest's folder now, found without importing any of it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from tailcut.code import data_files
from tailcut.code.digest import Code, differing
from tailcut.code.graph import Graph
from tailcut.code.listing import completed, listing, sha256_at, sha256_of
from tailcut.code.locating import Locator
from tailcut.code.roots import module_of, serving_modules, source_reference
from tailcut.manifest import Manifest
from tailcut.manifest.references import folders_of


def lacks(manifest: Manifest, recorded: Code, *, live: bool) -> tuple[str, ...]:
    """Name the files of a version's code that lie in the manifest's folder in another form, or not at all."""
    locator = Locator(folders_of(manifest))
    wanted = recorded.part(live=live)
    here = _listed(manifest, locator).part(live=live)
    return differing(wanted, completed(here, wanted, locator, manifest.directory))


def changed_data(manifest: Manifest, hashes: Mapping[str, str]) -> tuple[str, ...]:
    """Name the data files that do not have these hashes, or are new or gone."""
    here = data_files.hashed(manifest, strict=False)
    return tuple(sorted(name for name in {*hashes, *here} if hashes.get(name) != here.get(name)))


def unlike(manifest: Manifest, hashes: Mapping[str, str]) -> tuple[str, ...]:
    """Name the modules whose files do not have these hashes: of those that are loaded, else of those to be found."""
    locator = Locator(folders_of(manifest))
    return tuple(name for name, sha in hashes.items() if sha256_of(locator.loaded_or_found(name)) != sha)


def changed(manifest: Manifest, recorded: Code) -> tuple[str, ...]:
    """Name the files that are not what they were when the code was listed; only files that were listed count."""
    folder = manifest.directory
    locator = Locator(folders_of(manifest))
    modules = {
        name: replace(each, sha256=sha256_at(folder / each.file, name, locator)) if each.file else each
        for name, each in recorded.modules.items()
    }
    return differing(recorded, replace(recorded, modules=modules, data=data_files.hashed(manifest, strict=False)))


def _listed(manifest: Manifest, locator: Locator) -> Code:
    serving = serving_modules(manifest)
    source = set(filter(None, [module_of(source_reference(manifest))]))
    graph = Graph(locator)
    graph.add(serving | source)
    reached = graph.reached(serving) | serving
    only = (graph.reached(source) | source) - reached
    return listing(graph, reached, only, data_files.hashed(manifest, strict=False), manifest.directory)
