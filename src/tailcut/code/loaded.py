"""The user's code as this process runs it: hashed when it was imported, whatever its files are later."""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Set
from hashlib import blake2b
from typing import Any, NamedTuple

from msgspec.structs import replace

from tailcut.code import data_files, on_disk
from tailcut.code.digest import SOURCE_FILES, Code, differing, digest, few, shown
from tailcut.code.graph import MOST_MODULES, Graph
from tailcut.code.imported import IMPORTED
from tailcut.code.listing import completed, listing, sha256_of
from tailcut.code.locating import Locator, loaded_user_modules
from tailcut.code.roots import module_of, root_of, source_reference
from tailcut.manifest import Manifest, resolve
from tailcut.manifest.references import folders_of

log = logging.getLogger("tailcut.server")

IMPORTS = threading.RLock()
"""Held while a deployment's modules are imported: what is new in ``sys.modules`` is then that deployment's."""


class Loading:
    """Notes what the import of the user's functions loads: begin it, import them, and end it."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._before = frozenset(sys.modules)
        self._began_s = time.time()

    def end(self, functions: Mapping[str, Callable[..., Any] | None]) -> LoadedCode:
        """Read the files of what was imported.

        Args:
            functions: that every variant's answers depend on, by the references that name them; None for one that
                was not imported.

        Raises:
            ManifestError: a data file is missing.
        """
        return LoadedCode(self._manifest, functions, self._before, self._began_s)


class Snapshot(NamedTuple):
    """What one variant runs of the user's code, read once: its version and what its executors may run agree.

    Attributes:
        digest: 16 bytes that change with whatever of the user's code a variant's answers depend on.
        imports: SHA-256 of the modules that opening the variant imports, by name.
        data: SHA-256 of the data files at the start, by name.
    """

    digest: bytes = b""
    imports: Mapping[str, str] = {}
    data: Mapping[str, str] = {}


class LoadedCode:
    """The user's code that this process has loaded for one deployment. Use ``Loading``. Threads may share it.

    Attributes:
        stale: files that have another text by now than what this process has imported, and goes on running.
    """

    def __init__(
        self,
        manifest: Manifest,
        functions: Mapping[str, Callable[..., Any] | None],
        before: frozenset[str],
        began_s: float,
    ) -> None:
        self._manifest = manifest
        self._locator = Locator(folders_of(manifest))
        self._graph = Graph(self._locator, began_s, before)
        imported = {reference: function for reference, function in functions.items() if function is not None}
        self._roots = {reference: root_of(function, self._locator) for reference, function in imported.items()}
        self._serving = self._modules([*functions, *manifest.deployment.model.trusted])
        self._source: Set[str] = set()
        self._lock = threading.RLock()  # around the graph; a fallback's source is imported while others ask for hashes
        self._guessed: Set[str] = set()
        self._graph.add(self._serving)
        self._beside = self._unnamed(self._serving, before)
        self._graph.add(self._beside)
        self._data = data_files.hashed(manifest)
        self._old_data = self._data_of_old_imports(before)
        # Whether modules hold what they read at their import, or read it again, is unknown.
        self._run_data = self._data | {name: f"unknown-{secrets.token_hex(8)}" for name in self._old_data}
        self.stale: tuple[str, ...] = ()
        self._listed: dict[bool, Code] = {False: self._listing(self._graph, set())}
        self._warn()
        self._warn_of_later_imports()

    def import_source(self) -> None:
        """Import what ``model.source`` names, where it is a callable, and read the files of what that loads.

        Raises:
            ManifestError: it cannot be imported.
        """
        reference = source_reference(self._manifest)
        if not reference or self._source:
            return
        with IMPORTS:
            before, began_s = frozenset(sys.modules), time.time()
            function = resolve(reference, self._manifest)
            with self._lock:
                if not self._source:
                    self._graph.began_s, self._graph.before = began_s, before
                    self._add_source(reference, function, before)

    def _add_source(self, reference: str, function: Callable[..., Any], before: frozenset[str]) -> None:
        self._roots[reference] = root_of(function, self._locator)
        source = self._modules([reference])
        self._graph.add(source)
        beside = self._unnamed(source, before)
        self._graph.add(beside)
        self._source = source | beside
        self._listed[True] = self._listing(self._graph, self._source)
        self._warn()

    def listing(self, *, live: bool) -> Code:
        """Return what a variant runs.

        Args:
            live: whether it runs the user's own object. What of that is not imported yet is read from the disk now.
        """
        with self._lock:
            return self._read(live=live)[1]

    def snapshot(self, *, live: bool) -> Snapshot:
        """Return what a variant runs, as ``listing`` reads it now."""
        named = {module_of(name) for name in self._manifest.deployment.model.trusted}
        with self._lock:
            graph, listed = self._read(live=live)
            reference = source_reference(self._manifest) if live else ""
            named |= {module_of(reference)} if reference else set()
            modules = {name: graph.modules[name].sha256 for name in graph.reached(named)}
            found = [digest(listed)]
            for name, root in sorted(self._roots.items()):
                if live or not self._is_source(name):
                    found += [name.encode(), root.bound]
        imports = {name: sha for name, sha in modules.items() if sha}
        return Snapshot(_hashed(*found), imports, self._data)

    def digest_of(self, references: Iterable[str]) -> bytes:
        """Return 16 bytes that change with the code of these functions, the declared data and what both use."""
        named = sorted(set(references))
        if not named:
            return b""
        data = {name: sha for name, sha in self._run_data.items() if not name.startswith(SOURCE_FILES)}
        with self._lock:
            modules = self._graph.reached(self._modules(named) | self._beside) | self._modules(named)
            found = listing(self._graph, modules, (), data, self._manifest.directory)
            return _hashed(digest(found), *(self._roots[name].bound for name in named if name in self._roots))

    def lacks(self, recorded: Code, *, live: bool) -> tuple[str, ...]:
        """Name the files of a version's code that this process runs in another form, or not at all."""
        wanted = recorded.part(live=live)
        here = completed(self.listing(live=live), wanted, self._locator, self._manifest.directory)
        guessed = self._guessed - set(wanted.modules)
        kept = {name: each for name, each in here.modules.items() if name not in guessed}
        return differing(wanted, replace(here, modules=kept))

    def changed(self) -> tuple[str, ...]:
        """Name the files that every variant runs and that have changed on the disk since they were imported."""
        here = self._listed[False]
        modules = {
            name: replace(each, sha256=sha256_of(self._graph.modules[name].place))
            for name, each in here.modules.items()
        }
        return differing(here, replace(here, modules=modules, data=data_files.hashed(self._manifest, strict=False)))

    def changed_data(self) -> tuple[str, ...]:
        """Name the data files that are not what they were at the start."""
        return on_disk.changed_data(self._manifest, self._data)

    def disk_lacks(self, recorded: Code, *, live: bool) -> tuple[str, ...]:
        """Name the files of a version's code that lie in the manifest's folder in another form, or not at all."""
        return on_disk.lacks(self._manifest, recorded, live=live)

    # -- Inside ------------------------------------------------------------------------------------------------------

    def _read(self, *, live: bool) -> tuple[Graph, Code]:
        reference = source_reference(self._manifest)
        if not live or not reference:
            return self._graph, self._listed[False]
        if self._source:
            return self._graph, self._listed[True]
        source = {module_of(reference)}
        graph = self._graph.copy()
        graph.add(source)
        return graph, self._listing(graph, source)

    def _data_of_old_imports(self, before: frozenset[str]) -> tuple[str, ...]:
        """Name the files of ``model.files`` that have changed since the modules were imported that may hold them."""
        own = {name: sha for name, sha in self._data.items() if not name.startswith(SOURCE_FILES)}
        paths = {name: str(self._manifest.directory / name) for name in own}
        imported_before = any(name in before for name in self._graph.modules)
        old = tuple(name for name in own if imported_before and IMPORTED.data_at(paths[name]) not in {None, own[name]})
        IMPORTED.note_data((paths[name], sha) for name, sha in own.items() if name not in old)
        return old

    def _is_source(self, reference: str) -> bool:
        return bool(self._source) and reference == source_reference(self._manifest)

    def _modules(self, references: Iterable[str]) -> set[str]:
        """Modules that define functions: those that the references name, and those of what the functions wrap."""
        found: set[str] = set()
        for reference in references:
            found |= {module_of(reference)} if ":" in reference else set()
            found |= set(self._roots[reference].modules) if reference in self._roots else set()
        return found

    def _unnamed(self, roots: Set[str], before: frozenset[str]) -> set[str]:
        """Find what these modules loaded beyond what their texts name: plugins, say.

        Where such a module had been imported before, by the application that tailcut is mounted in, it cannot be known
        what it loaded: then it may be anything of the user's that is loaded now.
        """
        named = self._graph.reached(roots)
        guesses = any(name in before and self._graph.modules[name].dynamic for name in named)
        candidates = list(sys.modules) if guesses else [name for name in list(sys.modules) if name not in before]
        found = set(loaded_user_modules(candidates, self._locator)) - named
        if guesses:
            self._guessed = self._guessed | found
        return found

    def _listing(self, graph: Graph, source: Set[str]) -> Code:
        serving = graph.reached(self._serving | self._beside) | self._serving
        only = (graph.reached(source) | source) - serving
        return listing(graph, serving, only, self._run_data, self._manifest.directory)

    def _warn(self) -> None:
        graph = self._graph
        if graph.uncertain:
            names = few(tuple(shown(name, self._listed[False]) for name in graph.uncertain))
            log.warning(
                "%s changed during its import or before tailcut read it, so the text that runs is unknown and this "
                "server shares no cached answers; restart it",
                names,
            )
            graph.uncertain.clear()
        modules = [shown(name, self._listed[False]) for name in dict.fromkeys(graph.stale)]
        before, self.stale = self.stale, (*modules, *self._old_data)
        if self.stale != before:
            log.warning(
                "%s changed on the disk after this process had imported the code: the server runs the code as it was "
                "imported, under the version of that code; restart it to run the new code",
                few(self.stale),
            )
        if graph.cut:
            log.warning(
                "the hooks import more than %d of your modules; changes to the others give no new version; install "
                "modules outside the deployment as a package",
                MOST_MODULES,
            )

    def _warn_of_later_imports(self) -> None:
        """Name the modules that may import more by computed names, where none of that was loaded at the start."""
        names = sorted(name for name in self._graph.reached(self._serving) if self._graph.modules[name].dynamic)
        if names and not self._beside and not any(name.endswith(".py") for name in self._data):
            log.warning(
                "%s may import modules by computed names after the start, and changes to these give no new version: "
                "import them at module level, or list their files in model.files",
                few(tuple(shown(name, self._listed[False]) for name in names)),
            )


def _hashed(*parts: bytes) -> bytes:
    found = blake2b(digest_size=16)
    for part in parts:
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.digest()
