"""Which registry a command means, and which model of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tailcut.cli.options import load_subject, manifest_paths
from tailcut.common.fingerprint import Machine
from tailcut.errors import ManifestError, NotInRegistry
from tailcut.manifest import Manifest
from tailcut.manifest.host import is_one_manifest
from tailcut.registry import Registry

Place = Annotated[
    str | None,
    typer.Option("--registry", metavar="PLACE", help="The registry's folder or URL; with it the manifest is not read."),
]
Model = Annotated[str, typer.Option(metavar="NAME", help="Model name; default: the manifest's.")]
Which = Annotated[str, typer.Option("--version", metavar="ID", help="A version's id, 'latest' or 'promoted'.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def load_named(given: list[Path] | None, model: str, settings: list[str] | None) -> Manifest:
    """Load the manifest that a command of the registry is about.

    Args:
        given: what ``--manifest`` names.
        model: what ``--model`` names: of several manifests one; of a single one another model of its registry.
    """
    name = "" if is_one_manifest(manifest_paths(given)) else model
    return load_subject(given, name, settings, keep_unset=True).manifest


def open_registry(
    manifest: list[Path] | None,
    model: str,
    settings: list[str] | None,
    place: str | None,
    machine: Machine | None = None,
) -> tuple[Registry, str]:
    """Find the registry and the manifest's model; with a place given no manifest is read and the name is empty."""
    if place is not None:
        registry = Registry(place, machine=machine)
        if registry.folder is not None and not registry.folder.is_dir():
            is_file = registry.folder.exists()
            raise ManifestError(
                f"--registry: {place} is {'not a folder' if is_file else 'not found'}",
                hint="give the folder or URL that the manifest has in registry.path",
            )
        return registry, ""
    loaded = load_named(manifest, model, settings)
    registry = Registry.of(loaded, machine=machine)
    if registry.folder is not None and registry.folder.exists() and not registry.folder.is_dir():
        raise ManifestError(f"registry.path: {registry.url} is not a folder", hint="set it to a folder, or to a URL")
    return registry, loaded.deployment.name


@contextmanager
def chosen(
    manifest: list[Path] | None,
    model: str,
    settings: list[str] | None,
    place: str | None,
    machine: Machine | None = None,
) -> Iterator[tuple[Registry, str]]:
    """Yield the registry and the model that a command is about.

    A name that was typed wrong ends as a wrong command line; a model that was not built yet is none.
    """
    registry, named = open_registry(manifest, model, settings, place, machine)
    name = model or named or only_model(registry)
    try:
        yield registry, name
    except NotInRegistry as error:
        if model or name in registry.models():
            raise ManifestError(error.message, hint=error.hint) from error
        raise


def only_model(registry: Registry) -> str:
    """Return the name of the only model of a registry.

    Raises:
        ManifestError: there are several, or none.
    """
    models = registry.models()
    if len(models) != 1:
        raise ManifestError(
            f"{registry.url} holds {len(models)} models ({', '.join(models) or 'none'})",
            hint="name one with --model NAME",
        )
    return models[0]
