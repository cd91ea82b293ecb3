"""Which models one server serves: one manifest, several, a folder of them, or a ``host.toml``."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tailcut.errors import ManifestError, TailcutError
from tailcut.manifest import overrides as over
from tailcut.manifest.keys import ENVIRONMENT_PREFIX, dotted, meant
from tailcut.manifest.loading import FILE_NAME, HOST_SECTIONS, Manifest, Shared, absolute, load, manifest_file, parse
from tailcut.manifest.reading import read_as
from tailcut.manifest.schema.host import HostFile
from tailcut.manifest.schema.observe import Observe
from tailcut.manifest.schema.server import ServerSettings

HOST_FILE = "host.toml"
HISTORY_FILE = ".tailcut/history.sqlite"
"""Where the history is whose path is not set, relative to the manifest."""

_ENTRY = re.compile(r"\[models\.\d+\]")
_MODELS = "host"
"""Name of a host of several models in its log lines, where they are of no model."""


@dataclass(frozen=True)
class Hosted:
    """One model of a host.

    Attributes:
        file: its manifest's, absolute; it is read again where its links lead by then.
        manifest: as it was read; None where it could not be.
        error: why not.
        required: whether the host is ready only while this model is.
        listed: its name while it has failed, where another model has the name of its folder; else empty.
    """

    file: Path
    manifest: Manifest | None
    error: TailcutError | None = None
    required: bool = True
    listed: str = ""

    @property
    def name(self) -> str:
        """Of the model; of its folder where the manifest cannot be read."""
        if self.manifest is not None:
            return self.manifest.deployment.name
        return self.listed or self.file.parent.name

    def loaded(self) -> Manifest:
        """Return the manifest.

        Raises:
            TailcutError: it could not be read.
        """
        if self.manifest is None:
            raise self.error or ManifestError(f"{self.file}: cannot be read", hint="mend the manifest")
        return self.manifest


@dataclass(frozen=True)
class HostManifest:
    """The models of a server, and the server.

    Attributes:
        name: of the model where there is one; in log lines.
        server: settings of the server.
        observe: what is seen of it.
        directory: relative paths of both start there.
        models: in the order in which they were named; of a folder in alphabetical order.
        folder: whose subfolders are the models, later ones too; None where the models are named.
        read: reads a model's manifest (anew).
    """

    name: str
    server: ServerSettings
    directory: Path
    models: tuple[Hosted, ...]
    folder: Path | None = None
    read: Callable[[Path], Manifest] | None = None
    observe: Observe = field(default_factory=Observe)

    @classmethod
    def of(cls, manifest: Manifest) -> HostManifest:
        """Return the host of one model, whose manifest has the server's settings."""
        deployment = manifest.deployment
        hosted = Hosted(manifest.directory / FILE_NAME, manifest)
        return cls(deployment.name, deployment.server, manifest.directory, (hosted,), observe=deployment.observe)

    @property
    def is_single(self) -> bool:
        """Whether it is of one model and stays so."""
        return len(self.models) == 1 and self.folder is None

    @property
    def history_file(self) -> Path:
        """File of the history, whether it is kept or not."""
        return (self.directory / (self.observe.history.path or HISTORY_FILE)).resolve()

    def read_again(self, hosted: Hosted) -> Hosted:
        """Read a model's manifest again; what is wrong with it by now is its error."""
        if self.read is None:
            return hosted
        try:
            return replace(hosted, manifest=self.read(hosted.file), error=None)
        except TailcutError as error:
            return replace(hosted, manifest=None, error=error)

    def look(self) -> list[Hosted]:
        """Read the models of ``folder`` that have no name in ``models``; none where the models are named."""
        if self.folder is None:
            return []
        required = {hosted.file for hosted in self.models if hosted.listed}
        known = {hosted.file for hosted in self.models} - required
        return [
            self.read_again(Hosted(file, None, required=file in required))
            for file in _files_in(self.folder)
            if file not in known
        ]


def load_host(
    paths: Sequence[Path],
    *,
    environment: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
    keep_unset: bool = False,
) -> HostManifest:
    """Load what ``tailcut serve`` is given.

    Flags and variables that begin with ``server`` or ``observe`` set the host's; flags that begin with a model's name
    and a colon set that model's; all others set every model's.

    Args:
        paths: of manifests or their folders; or one: a host.toml, its folder, or a folder of models.
        environment, overrides, keep_unset: see ``load``.

    Raises:
        ManifestError: as ``load``; two models have one name; a folder has no model; a model sets the server; or a
            flag sets a model that is not there. In a folder of models one broken manifest is no error: its model has
            failed, and can be loaded once it is mended.
    """
    values = _Values(os.environ if environment is None else environment, overrides, keep_unset)
    found = _loaded(paths, values)
    _refuse_unknown(found, overrides)
    return found


def is_one_manifest(paths: Sequence[Path]) -> bool:
    """Whether the paths name one manifest, which then owns its server."""
    return len(paths) == 1 and _host_file(paths[0]) is None and not _is_folder_of_models(paths[0])


@dataclass(frozen=True)
class _Values:
    """What is put over the files; see ``load``."""

    environment: Mapping[str, str]
    overrides: Sequence[str]
    keep_unset: bool


def _loaded(paths: Sequence[Path], values: _Values) -> HostManifest:
    if is_one_manifest(paths):
        file = _named(paths[0])
        alone = partial(load, environment=values.environment, overrides=values.overrides, keep_unset=values.keep_unset)
        manifest = alone(file)
        return replace(HostManifest.of(manifest), models=(Hosted(file, manifest),), read=alone)
    if len(paths) == 1:
        host_file = _host_file(paths[0])
        return _of_host_file(host_file, values) if host_file else _of_folder(absolute(paths[0]), {}, "", values)
    shared = _shared({}, values)
    files = [_named_beside_others(path) for path in paths]
    read = _Reader(values, Shared({}), tuple(files))
    return _of_files([(file, True) for file in files], shared, Path.cwd(), read)


def _of_files(
    files: Sequence[tuple[Path, bool]], shared: HostFile, directory: Path, read: Callable[[Path], Manifest]
) -> HostManifest:
    """Return the host of models that are named one by one, each with whether it is required."""
    _refuse_twice([file for file, _ in files])
    models = tuple(Hosted(file, read(file), required=required) for file, required in files)
    _refuse_clashes(models)
    return HostManifest(_MODELS, shared.server, directory, models, read=read, observe=shared.observe)


def _refuse_unknown(host: HostManifest, overrides: Sequence[str]) -> None:
    names = [hosted.name for hosted in host.models]
    for override in over.from_flags(overrides):
        if override.model and override.parts[0] in HOST_SECTIONS:
            raise ManifestError(
                f"--set {override.model}:{dotted(override.parts)}: [{override.parts[0]}] is of no model",
                hint=f"write --set {dotted(override.parts)}={override.text}",
            )
        if override.model and override.model not in names and all(hosted.error is None for hosted in host.models):
            raise ManifestError(
                f"--set {override.model}:{dotted(override.parts)}: there is no model {override.model!r} here",
                hint=f"the models are {', '.join(map(repr, names))}; without a name and a colon all are set",
            )


@dataclass(frozen=True)
class _Reader:
    """Reads the manifest of one of several models; its errors name the file.

    Attributes:
        server: the settings that the models share.
        files: all manifests, where they are named one by one.
    """

    values: _Values
    server: Shared
    files: tuple[Path, ...] = ()

    def __call__(self, file: Path) -> Manifest:
        server = self.server
        if other := next((each for each in self.files if each != file), None):
            server = replace(server, beside=str(other))
        try:
            return load(
                file,
                environment=self.values.environment,
                overrides=self.values.overrides,
                keep_unset=self.values.keep_unset,
                server=server,
            )
        except ManifestError as error:
            said = error.message if str(file) in error.message else f"{file}: {error.message}"
            hint = f"{error.hint}{self._of_flags(file, server)}"
            raise ManifestError(said, hint=hint, detail=error.detail) from None

    def _of_flags(self, file: Path, server: Shared) -> str:
        """Return what to do where a manifest is right without the flags and variables; else empty."""
        try:
            bare = {
                name: value
                for name, value in self.values.environment.items()
                if not name.startswith(ENVIRONMENT_PREFIX)
            }
            load(file, environment=bare, overrides=(), server=server)
        except TailcutError:
            return ""
        return (
            "; flags and variables set every model of the server: to set one, put its name before the key, as in --set "
            f"NAME:pool.threads=1, or write the key in its {FILE_NAME}"
        )


def _named(path: Path) -> Path:
    """Return the manifest that a path means which is no host's.

    Raises:
        ManifestError: there is none.
    """
    if path.is_dir() and not (path / FILE_NAME).is_file():
        raise ManifestError(
            f"{path.absolute()}: no {FILE_NAME}, no {HOST_FILE}, and no subfolder with a {FILE_NAME}",
            hint="write a manifest with `tailcut init`, or name the folder of one",
        )
    return manifest_file(path)


def _named_beside_others(path: Path) -> Path:
    """Return the manifest that one of several paths means.

    Raises:
        ManifestError: there is none, or the path is of several models.
    """
    if _host_file(path) is not None or _is_folder_of_models(path):
        raise ManifestError(
            f"{path.absolute()} is of several models, and is named beside others",
            hint=f"name it alone, name each manifest, or list all models in one {HOST_FILE}",
        )
    return _named(path)


def _host_file(path: Path) -> Path | None:
    """Return the host.toml that a path means, absolute; None where it means none."""
    if path.is_dir():
        file = path / HOST_FILE
        return absolute(file) if file.is_file() and not (path / FILE_NAME).is_file() else None
    return absolute(path) if path.name == HOST_FILE and path.is_file() else None


def _is_folder_of_models(path: Path) -> bool:
    return path.is_dir() and not (path / FILE_NAME).is_file() and bool(_files_in(path))


def _files_in(folder: Path) -> list[Path]:
    """Return the manifests in the subfolders of a folder; of one that a link beside it leads to, only its own."""
    try:
        found = [file for file in folder.glob(f"*/{FILE_NAME}") if not file.parent.name.startswith(".")]
        once: dict[Path, Path] = {}
        for file in sorted(found, key=lambda file: (file.parent.is_symlink(), file)):
            once.setdefault(_real(file), file)
        return sorted(once.values())
    except OSError as error:
        raise ManifestError(f"{folder}: cannot be read: {error.strerror}", hint="check its permissions") from None


def _of_host_file(file: Path, values: _Values) -> HostManifest:
    tree = parse(file)
    found = _read(file, tree)
    sections = {name: tree[name] for name in HOST_SECTIONS if name in tree}
    if not found.models:
        if not _files_in(file.parent):
            raise ManifestError(
                f"{file}: it names no models, and no subfolder has a {FILE_NAME}",
                hint='add [[models]] with path = "FOLDER" for each model',
            )
        return _of_folder(file.parent, sections, str(file), values)
    shared = _shared(sections, values)
    files = [(_listed(file, number, one.path), one.required) for number, one in enumerate(found.models)]
    return _of_files(files, shared, file.parent, _Reader(values, Shared(sections, str(file))))


def _listed(file: Path, number: int, path: str) -> Path:
    """Return the manifest that an entry of a host.toml means.

    Raises:
        ManifestError: there is none.
    """
    where = file.parent / path
    found = where / FILE_NAME if where.is_dir() else where
    if not found.is_file():
        raise ManifestError(
            f"{file}: models.{number}.path = {path!r}: {found} does not exist",
            hint=f"name a manifest, or the folder of a {FILE_NAME}, relative to {HOST_FILE}",
        )
    return manifest_file(where)


def _of_folder(
    folder: Path,
    sections: Mapping[str, Any],
    where: str,
    values: _Values,
) -> HostManifest:
    read = _Reader(values, Shared(sections, where, beside=f"the others of {folder}"))
    shared = _shared(sections, values)
    empty = HostManifest(_MODELS, shared.server, folder, (), folder, read, shared.observe)
    models = [replace(hosted, required=True) for hosted in empty.look()]
    if all(hosted.error is not None for hosted in models) and (error := models[0].error) is not None:
        raise error
    names = {hosted.name for hosted in models if hosted.manifest is not None}
    models = [
        # Its folder's name is all that it has until it is mended, and is the other one's.
        replace(hosted, listed=str(hosted.file.parent)) if hosted.manifest is None and hosted.name in names else hosted
        for hosted in models
    ]
    _refuse_clashes(models)
    return replace(empty, models=tuple(models))


def _read(file: Path, tree: Mapping[str, Any]) -> HostFile:
    """Check a host.toml.

    Raises:
        ManifestError: an unknown key, or a wrong value; it names the file.
    """
    keys = (*HOST_SECTIONS, "models")
    for name in tree:
        if name not in keys:
            meaning = meant(name, keys, "its keys are [server], [observe] and [[models]]")
            raise ManifestError(
                f"{file}: {dotted([name])}: no such key in {HOST_FILE}",
                hint=f"{meaning}; settings of a model belong in its {FILE_NAME}",
            )
    try:
        return read_as(HostFile, tree, {})
    except ManifestError as error:
        hint = _ENTRY.sub("[[models]]", error.hint).replace("of the manifest", f"of {HOST_FILE}")
        raise ManifestError(f"{file}: {error.message}", hint=hint) from None


def _shared(sections: Mapping[str, Any], values: _Values) -> HostFile:
    """Return the host's sections, with those flags and variables that set them."""
    whole: dict[str, Any] = {name: copy.deepcopy(section) for name, section in sections.items()}
    origins: dict[str, str] = {}
    for override in (*over.from_environment(values.environment), *over.from_flags(values.overrides)):
        if override.parts == ("name",):
            raise ManifestError(
                f"name = {override.text!r} is set by a flag or a variable, but the server has several models",
                hint=f"write name in each model's {FILE_NAME}",
            )
        if override.parts[0] in HOST_SECTIONS and not override.model:
            origins[dotted(over.put(whole, override))] = override.origin
    return read_as(HostFile, whole, origins)


def _refuse_twice(files: Sequence[Path]) -> None:
    seen: dict[Path, Path] = {}
    for file in files:
        first = seen.get(_real(file))
        if first is not None:
            by_link = "" if first == file else f": a link makes it the same as {first}"
            raise ManifestError(f"{file} is named twice{by_link}", hint="name each model once")
        seen[_real(file)] = file


def _real(file: Path) -> Path:
    """Return where a manifest's folder really is, to compare it: the path may lead elsewhere tomorrow."""
    return file.parent.resolve() / file.name


def _refuse_clashes(models: Sequence[Hosted]) -> None:
    """Refuse models that have one name, and those whose features come from one another in a circle."""
    seen: dict[str, Hosted] = {}
    for hosted in models:
        first = seen.setdefault(hosted.name, hosted)
        if first is not hosted:
            raise ManifestError(
                f"two models have the name {hosted.name!r}: {first.file} and {hosted.file}",
                hint="give one of them another name; clients address a model by its name",
            )
    refuse_cycles(hosted.manifest for hosted in models if hosted.manifest is not None)


def refuse_cycles(manifests: Iterable[Manifest]) -> None:
    """Refuse models whose features come from one another in a circle.

    Raises:
        ManifestError: there is such a circle; it is named.
    """
    deployments = [manifest.deployment for manifest in manifests]
    needs = {each.name: [group.model for group in each.features.groups if group.model] for each in deployments}
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
