"""Which models one server serves: one manifest, several, a folder of them, or a ``host.toml``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tailcut.errors import ManifestError, TailcutError
from tailcut.manifest import overrides as over
from tailcut.manifest.keys import dotted, nearest
from tailcut.manifest.loading import FILE_NAME, Manifest, Shared, load, manifest_file, parse
from tailcut.manifest.reading import read_as
from tailcut.manifest.schema.host import HostFile
from tailcut.manifest.schema.server import Server

HOST_FILE = "host.toml"
_MODELS = "host"
"""Name of a host of several models in its log lines, where they are of no model."""


@dataclass(frozen=True)
class Hosted:
    """One model of a host.

    Attributes:
        file: its manifest's, absolute.
        manifest: as it was read; None where it could not be.
        error: why not.
        required: whether the host is ready only while this model is.
    """

    file: Path
    manifest: Manifest | None
    error: TailcutError | None = None
    required: bool = True

    @property
    def name(self) -> str:
        """Of the model; of its folder where the manifest cannot be read."""
        return self.manifest.deployment.name if self.manifest is not None else self.file.parent.name


@dataclass(frozen=True)
class HostManifest:
    """The models of a server, and the server.

    Attributes:
        name: of the model where there is one; in log lines.
        server: settings of the server.
        directory: relative paths of ``server`` start there.
        models: in the order in which they were named; of a folder in alphabetical order.
        folder: whose subfolders are the models, later ones too; None where the models are named.
        read: reads a model's manifest (anew).
    """

    name: str
    server: Server
    directory: Path
    models: tuple[Hosted, ...]
    folder: Path | None = None
    read: Any = None

    @classmethod
    def of(cls, manifest: Manifest) -> HostManifest:
        """Return the host of one model, whose manifest has the server's settings."""
        deployment = manifest.deployment
        hosted = Hosted(manifest.directory / FILE_NAME, manifest)
        return cls(deployment.name, deployment.server, manifest.directory, (hosted,))

    @property
    def is_single(self) -> bool:
        """Whether it is of one model and stays so."""
        return len(self.models) == 1 and self.folder is None

    def read_again(self, hosted: Hosted) -> Hosted:
        """Read a model's manifest again; what is wrong with it by now is its error."""
        if self.read is None:
            return hosted
        try:
            return replace(hosted, manifest=self.read(hosted.file), error=None)
        except TailcutError as error:
            return replace(hosted, manifest=None, error=error)

    def look(self) -> list[Hosted]:
        """Read the models of ``folder`` that are in none of ``models``; none where the models are named."""
        if self.folder is None:
            return []
        known = {hosted.file for hosted in self.models}
        return [
            self.read_again(Hosted(file, None, required=False)) for file in _files_in(self.folder) if file not in known
        ]


def load_host(
    paths: Sequence[Path],
    *,
    environment: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
) -> HostManifest:
    """Load what ``tailcut serve`` is given.

    Flags and variables that begin with ``server`` set the host's; all others set every model's.

    Args:
        paths: of manifests or their folders; or one: a host.toml, its folder, or a folder of models.
        environment, overrides: see ``load``.

    Raises:
        ManifestError: as ``load``; two models have one name; a folder has no model; or a model sets the server. The
            manifests of a folder that nobody named are not errors: they are read again when the model is loaded.
    """
    environment = os.environ if environment is None else environment
    if len(paths) == 1 and (file := _host_file(paths[0])) is not None:
        return _of_host_file(file, environment, overrides)
    if len(paths) == 1 and _is_folder_of_models(paths[0]):
        return _of_folder(paths[0].resolve(), {}, "", environment, overrides)
    if len(paths) == 1:
        read: Any = partial(load, environment=environment, overrides=overrides)
        manifest = read(paths[0])
        hosted = Hosted(manifest_file(paths[0]), manifest)
        return replace(HostManifest.of(manifest), models=(hosted,), read=read)
    read = partial(load, environment=environment, overrides=overrides, server=Shared({}))
    models = tuple(Hosted(manifest_file(path), read(path)) for path in paths)
    _refuse_same_names(models)
    refuse_cycles(models)
    return HostManifest(_MODELS, _server({}, environment, overrides), Path.cwd(), models, read=read)


def _host_file(path: Path) -> Path | None:
    """Return the host.toml that a path means, absolute; None where it means none."""
    if path.is_dir():
        file = path / HOST_FILE
        return file.resolve() if file.is_file() and not (path / FILE_NAME).is_file() else None
    return path.resolve() if path.name == HOST_FILE and path.is_file() else None


def _is_folder_of_models(path: Path) -> bool:
    return path.is_dir() and not (path / FILE_NAME).is_file() and bool(_files_in(path))


def _files_in(folder: Path) -> list[Path]:
    """Return the manifests in the subfolders of a folder."""
    try:
        return sorted(file.resolve() for file in folder.glob(f"*/{FILE_NAME}") if not file.parent.name.startswith("."))
    except OSError as error:
        raise ManifestError(f"{folder}: cannot be read: {error.strerror}", hint="check its permissions") from None


def _of_host_file(file: Path, environment: Mapping[str, str], overrides: Sequence[str]) -> HostManifest:
    tree = parse(file)
    found = _read(file, tree)
    server = tree.get("server", {})
    if not found.models:
        if not _files_in(file.parent):
            raise ManifestError(
                f"{file}: it names no models, and no subfolder has a {FILE_NAME}",
                hint='add [[models]] with path = "FOLDER" for each model',
            )
        return _of_folder(file.parent, server, str(file), environment, overrides)
    read: Any = partial(load, environment=environment, overrides=overrides, server=Shared(server, str(file)))
    models = []
    for one in found.models:
        path = file.parent / one.path
        models.append(Hosted(manifest_file(path), read(path), required=one.required))
    _refuse_same_names(models)
    refuse_cycles(models)
    settings = _server(server, environment, overrides)
    return HostManifest(_MODELS, settings, file.parent, tuple(models), read=read)


def _of_folder(
    folder: Path,
    server: Mapping[str, Any],
    where: str,
    environment: Mapping[str, str],
    overrides: Sequence[str],
) -> HostManifest:
    read: Any = partial(load, environment=environment, overrides=overrides, server=Shared(server, where))
    settings = _server(server, environment, overrides)
    empty = HostManifest(_MODELS, settings, folder, (), folder, read)
    models = [replace(hosted, required=True) for hosted in empty.look()]
    if all(hosted.error is not None for hosted in models) and (error := models[0].error) is not None:
        raise error
    _refuse_same_names(models)
    refuse_cycles(models)
    return replace(empty, models=tuple(models))


def _read(file: Path, tree: Mapping[str, Any]) -> HostFile:
    """Check a host.toml.

    Raises:
        ManifestError: an unknown key, or a wrong value; it names the file.
    """
    keys = ("server", "models")
    for name in tree:
        if name not in keys:
            close = nearest(name, keys)
            meant = f"did you mean {close}?" if close else "its keys are [server] and [[models]]"
            raise ManifestError(
                f"{file}: {dotted([name])}: no such key in {HOST_FILE}",
                hint=f"{meant}; settings of a model belong in its {FILE_NAME}",
            )
    try:
        return read_as(HostFile, tree, {})
    except ManifestError as error:
        raise ManifestError(f"{file}: {error.message}", hint=error.hint) from None


def _server(tree: Mapping[str, Any], environment: Mapping[str, str], overrides: Sequence[str]) -> Server:
    """Return the server's settings, with those flags and variables that set them."""
    whole: dict[str, Any] = {"server": dict(tree)}
    for override in (*over.from_environment(environment), *over.from_flags(overrides)):
        if override.parts[0] == "server":
            over.put(whole, override)
    return read_as(HostFile, whole, {}).server


def _refuse_same_names(models: Sequence[Hosted]) -> None:
    for name, first, second in _pairs(models):
        raise ManifestError(
            f"two models have the name {name!r}: {first.file} and {second.file}",
            hint="give one of them another name; clients address a model by its name",
        )


def _pairs(models: Sequence[Hosted]) -> Iterator[tuple[str, Hosted, Hosted]]:
    seen: dict[str, Hosted] = {}
    for hosted in models:
        if hosted.name in seen:
            yield hosted.name, seen[hosted.name], hosted
        seen.setdefault(hosted.name, hosted)


def dependencies_of(manifest: Manifest) -> list[str]:
    """Return the models that a deployment's features come from."""
    return [group.model for group in manifest.deployment.features.groups if group.model]


def refuse_cycles(models: Iterable[Hosted]) -> None:
    """Refuse models whose features come from one another in a circle.

    Raises:
        ManifestError: there is such a circle; it is named.
    """
    needs = {hosted.name: dependencies_of(hosted.manifest) for hosted in models if hosted.manifest is not None}
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        if name in way:
            circle = " -> ".join((*way[way.index(name) :], name))
            raise ManifestError(
                f"features come from one another in a circle: {circle}",
                hint="remove one of these feature groups; a model cannot wait for its own answer",
            )
        if name not in done:
            for other in needs.get(name, ()):
                visit(other, (*way, name))
            done.add(name)

    for name in needs:
        visit(name, ())
