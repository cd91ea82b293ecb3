"""``tailcut registry export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailcut.cli._registry import Model, Place, as_typed, only_model, open_registry
from tailcut.cli.console import write
from tailcut.cli.options import ManifestPaths, Settings
from tailcut.registry.exporting import export as export_variant


def export(
    version: Annotated[str, typer.Argument(metavar="VERSION", help="A version's id, 'latest' or 'promoted'.")],
    variant: Annotated[str, typer.Argument(metavar="VARIANT", help="Name of the variant to export.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")],
    manifest: ManifestPaths = None,
    settings: Settings = None,
    model: Model = "",
    place: Place = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a variant's artifact to FILE, and what it takes, gives and needs to FILE.json."""
    registry, named = open_registry(manifest, model, settings, place)
    name = model or named or only_model(registry)
    with as_typed(registry, model, name):
        for written in export_variant(registry, registry.version(name, version), variant, file, force=force):
            write(str(written))
