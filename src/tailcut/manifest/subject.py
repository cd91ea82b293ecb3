"""The one model that a command is about, and the models that compute features for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from tailcut.errors import ManifestError
from tailcut.manifest.host import Hosted, HostManifest, is_one_manifest, load_host
from tailcut.manifest.keys import keys_of, to_plain, to_toml
from tailcut.manifest.loading import FILE_NAME, HOST_SECTIONS, Manifest
from tailcut.manifest.overrides import from_flags
from tailcut.manifest.schema.server import ServerSettings

_OF_THE_PLACE = ("host", "port", "grpc_port", "tenant_header", "tokens", "management_tokens", "tls_cert", "tls_key")
"""Settings of the server that belong to where it serves, not to what is measured; the log files' are others."""
_NOT_SHARED = (*_OF_THE_PLACE, "access_log", "log")


class Need(NamedTuple):
    """A feature group whose columns a model computes.

    Attributes:
        of: the model whose group it is.
        group: its name.
        model: that computes its columns.
        directory: of the manifest that has the group.
    """

    of: str
    group: str
    model: str
    directory: Path


@dataclass(frozen=True)
class CommandSubject:
    """The model that a command is about.

    Attributes:
        file: its manifest's, absolute.
        manifest: as it was loaded.
        host: the model, and those that compute features for it, for it and nothing else.
        overrides: that all of them were loaded with.
        missing: feature groups whose model was not given.
        paths, model, keep_unset, environment: as ``find_subject`` was given them.
    """

    file: Path
    manifest: Manifest
    host: HostManifest
    overrides: tuple[str, ...]
    missing: tuple[Need, ...]
    paths: tuple[Path, ...]
    model: str
    keep_unset: bool
    environment: Mapping[str, str] | None = None

    @property
    def name(self) -> str:
        """Of the model."""
        return self.manifest.deployment.name

    @property
    def needed(self) -> tuple[Hosted, ...]:
        """The models that compute features for it, directly or for one another."""
        return tuple(hosted for hosted in self.host.models if hosted.file != self.file)

    def refuse_missing(self, way: str = "") -> None:
        """Refuse to go on without the models that compute its features.

        Args:
            way: how another model is given; by default the command's flag.

        Raises:
            ManifestError: one was not given, or its manifest cannot be read.
        """
        refuse_missing(self.missing, way)
        for hosted in self.host.models:
            if hosted.error is not None:
                raise hosted.error

    def own(self, settings: Sequence[str]) -> list[str]:
        """Return settings so that they set this model and none of those that compute its features."""
        return list(settings) if not self.needed else _of_model(self.name, settings)

    def again(self, before: Sequence[str] = (), *, keep_unset: bool = False) -> CommandSubject:
        """Load it anew.

        Args:
            before: settings that the given ones go over.
        """
        return find_subject(
            self.paths,
            model=self.model,
            overrides=[*before, *self.overrides],
            keep_unset=keep_unset,
            environment=self.environment,
        )

    @property
    def serving(self) -> tuple[list[Path], list[str]]:
        """Manifests and settings that serve it with the models that compute its features."""
        names = {hosted.name for hosted in self.host.models}
        given = [
            text
            for text, each in zip(self.overrides, from_flags(self.overrides), strict=True)
            if not each.model or each.model in names
        ]
        return [hosted.file for hosted in self.host.models], [*self._of_server(), *given]

    def _of_server(self) -> Iterator[str]:
        """Yield the settings of a server of several models: the manifests do not have them."""
        if is_one_manifest(self.paths):
            return
        for key in keys_of(ServerSettings).values():
            value = getattr(self.host.server, key.attribute)
            if key.name not in _NOT_SHARED and value != key.default:
                yield f"server.{key.name}={to_toml(to_plain(value))}"


def find_subject(
    paths: Sequence[Path],
    *,
    model: str = "",
    environment: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
    own: Sequence[str] = (),
    keep_unset: bool = False,
) -> CommandSubject:
    """Load what a command is given, and find the model that it is about.

    Args:
        paths: as ``load_host`` takes them.
        model: name of the model; by default the one that computes features for no other.
        environment, overrides, keep_unset: see ``load_host``.
        own: overrides that set this model only.

    Raises:
        ManifestError: as ``load_host``; there is no such model; or several compute features for no other.
    """
    one = is_one_manifest(paths)
    from_flags(overrides)  # refuses a single text in place of a list
    given = [*overrides, *(own if one else ())]
    host = load_host(paths, environment=environment, overrides=given, keep_unset=keep_unset)
    chosen = _chosen(host, model)
    if own and not one:
        given = [*overrides, *_of_model(chosen.name, own)]
        host = load_host(paths, environment=environment, overrides=given, keep_unset=keep_unset)
        chosen = _chosen(host, chosen.name)
    manifest = chosen.loaded()
    models, missing = _ordered([chosen], host)
    name = host.name if len(models) > 1 else chosen.name
    served = replace(host, name=name, models=models, folder=None)
    return CommandSubject(
        chosen.file, manifest, served, tuple(given), missing, tuple(paths), model, keep_unset, environment
    )


def needs_of(manifest: Manifest) -> list[Need]:
    """List the feature groups of a model that other models compute."""
    deployment = manifest.deployment
    groups = [group for group in deployment.features.groups if group.model]
    return [Need(deployment.name, group.name, group.model, manifest.directory) for group in groups]


def missing_of(host: HostManifest) -> tuple[Need, ...]:
    """List the feature groups whose model is none of the host's."""
    return _ordered(host.models, host)[1]


def refuse_missing(missing: Sequence[Need], way: str = "") -> None:
    """Refuse feature groups whose model was not given.

    Args:
        way: how another model is given; by default the command's flag.

    Raises:
        ManifestError: it names the first group, its model and the way out.
    """
    for need in missing:
        beside = need.directory.parent / need.model / FILE_NAME
        guessed = str(beside) if beside.is_file() else f"path/to/{need.model}/{FILE_NAME}"
        raise ManifestError(
            f'model {need.of!r}: features.groups "{need.group}": its columns come from model {need.model!r}, which was '
            "not given",
            hint=(way or "add -m {}").format(guessed),
        )


def in_order(host: HostManifest) -> tuple[Hosted, ...]:
    """List the models so that each comes after those that compute its features; there is no circle."""
    return _ordered(host.models, host)[0]


def _ordered(models: Iterable[Hosted], host: HostManifest) -> tuple[tuple[Hosted, ...], tuple[Need, ...]]:
    """Return models, each after those of the host that compute its features, and the groups whose model is missing."""
    by_name = {hosted.name: hosted for hosted in host.models}
    found: dict[str, Hosted] = {}
    missing: list[Need] = []

    def visit(hosted: Hosted) -> None:
        if hosted.name in found:
            return
        for need in needs_of(hosted.manifest) if hosted.manifest is not None else ():
            if need.model in by_name:
                visit(by_name[need.model])
            else:
                missing.append(need)
        found[hosted.name] = hosted

    for hosted in models:
        visit(hosted)
    return tuple(found.values()), tuple(missing)


def _of_model(name: str, settings: Sequence[str]) -> list[str]:
    """Return settings that set this model only; those of the server, which is of no model, stay."""
    return [
        text if each.model or each.parts[0] in HOST_SECTIONS else f"{name}:{text}"
        for text, each in zip(settings, from_flags(settings), strict=True)
    ]


def _chosen(host: HostManifest, model: str) -> Hosted:
    names = ", ".join(repr(hosted.name) for hosted in host.models)
    if model:
        for hosted in host.models:
            if hosted.name == model:
                return hosted
        raise ManifestError(f"--model {model}: there is no such model here", hint=f"the models are {names}")
    for hosted in host.models:
        if hosted.error is not None:
            raise hosted.error  # whether it needs another, or another it, is not known
    sources = {need.model for each in host.models if each.manifest is not None for need in needs_of(each.manifest)}
    found = [hosted for hosted in host.models if hosted.name not in sources]
    if len(found) == 1:
        return found[0]
    several = ", ".join(repr(hosted.name) for hosted in found)
    raise ManifestError(
        f"{len(found)} models compute features for no other, and the command is about one: {several}",
        hint="name it with --model NAME",
    )
