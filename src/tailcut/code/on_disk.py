"""The user's code as it lies in the manifest's folder now, found without importing any of it."""

from __future__ import annotations

from msgspec.structs import replace

from tailcut.code import data_files
from tailcut.code.graph import Graph
from tailcut.code.listing import completed, listing, sha256_of
from tailcut.code.locating import Locator, Place
from tailcut.code.roots import module_of, serving_references, source_reference
from tailcut.core.code import Code, differing
from tailcut.manifest import Manifest
from tailcut.manifest.references import folders_of


def on_disk(manifest: Manifest) -> Code:
    """List the code of a manifest's folder.

    Raises:
        ManifestError: a data file is missing.
    """
    return _listed(manifest, Locator(folders_of(manifest)))


def lacks(manifest: Manifest, recorded: Code, *, live: bool) -> tuple[str, ...]:
    """Name the files of a version's code that lie in the manifest's folder in another form, or not at all.

    Raises:
        ManifestError: a data file is missing.
    """
    locator = Locator(folders_of(manifest))
    wanted = recorded.part(live=live)
    here = _listed(manifest, locator).part(live=live)
    return differing(wanted, completed(here, wanted, locator, manifest.directory))


def changed(manifest: Manifest, recorded: Code) -> tuple[str, ...]:
    """Name the files that are not what they were when the code was listed; only files that were listed count."""
    folder = manifest.directory
    modules = {
        name: replace(each, sha256=sha256_of(Place("user", str(folder / each.file)))) if each.file else each
        for name, each in recorded.modules.items()
    }
    return differing(recorded, replace(recorded, modules=modules, data=data_files.hashed(manifest)))


def _listed(manifest: Manifest, locator: Locator) -> Code:
    serving = {module_of(reference) for reference in serving_references(manifest)}
    source = set(filter(None, [module_of(source_reference(manifest))]))
    graph = Graph(locator)
    graph.add(serving | source)
    reached = graph.reached(serving) | serving
    only = (graph.reached(source) | source) - reached
    return listing(graph, reached, only, data_files.hashed(manifest), manifest.directory)
