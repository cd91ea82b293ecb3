"""``tailcut registry``: list, show, verify and promote what was built."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tailcut.cli._versions import print_table, refusals, summary, table
from tailcut.cli.console import ExitCode, note, print_error, write
from tailcut.cli.options import DEFAULT_MANIFEST, ManifestPath, Settings, examples, load_manifest
from tailcut.errors import ArtifactError, ManifestError
from tailcut.registry import Registry, Version

Folder = Annotated[
    Path | None,
    typer.Option("--registry", metavar="FOLDER", help="The registry's folder; the manifest is not read where given."),
]
Model = Annotated[str, typer.Option(metavar="NAME", help="Model; the manifest's where not given.")]
Which = Annotated[str, typer.Option("--version", metavar="ID", help="A version's id, 'latest' or 'promoted'.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Add the group of commands to the application."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    group.command("list", epilog=examples(("tailcut registry list", "versions, newest first")))(list_versions)
    group.command(
        "show",
        epilog=examples(
            ("tailcut registry show", "the promoted version"),
            ("tailcut registry show --version latest --json", "all evidence of the last build"),
        ),
    )(show)
    group.command("verify", epilog=examples(("tailcut registry verify", "check every artifact's hash")))(verify)
    group.command(
        "promote",
        epilog=examples(
            ("tailcut registry promote onnx", "serve the onnx variant of the last build"),
            ("tailcut registry promote onnx --version 5e6b4acf3f59", "roll back to an older build"),
        ),
    )(promote)
    app.add_typer(group, name="registry", help="List, promote and verify the variants in the registry.")


def list_versions(
    manifest: ManifestPath = DEFAULT_MANIFEST, settings: Settings = None, folder: Folder = None, as_json: AsJson = False
) -> None:
    """List every model's versions, newest first; the promoted one is marked."""
    registry = _open(manifest, settings, folder)[0]
    versions = registry.list()
    if as_json:
        _print_json([_brief(registry, version) for version in versions])
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    found = Table("model", "version", "created (UTC)", "variants", "promoted", box=SIMPLE_HEAD, pad_edge=False)
    for version in versions:
        brief = _brief(registry, version)
        variants = ", ".join(brief["variants"])
        found.add_row(version.model, version.id, version.created[:19], variants, brief["promoted"] or "")
    print_table(found)
    if not versions:
        note(f"{registry.root} holds no model yet; `tailcut build` makes one")


def show(
    manifest: ManifestPath = DEFAULT_MANIFEST,
    settings: Settings = None,
    model: Model = "",
    version: Which = "promoted",
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Show a version's variants with their evidence."""
    registry, named = _open(manifest, settings, folder)
    name = model or named or _only_model(registry)
    record = registry.version(name, version)
    if as_json:
        _print_json(record)
        return
    write(f"{record.model} version {record.id}, built {record.created[:19]} UTC")
    print_table(table(record, registry.promotion(name)))
    for line in (*refusals(record), *summary(record)):
        write(line)


def verify(manifest: ManifestPath = DEFAULT_MANIFEST, settings: Settings = None, folder: Folder = None) -> None:
    """Check size and SHA-256 of every artifact of every version; the exit code is 1 where one is bad."""
    registry = _open(manifest, settings, folder)[0]
    bad = 0
    for version in registry.list():
        for name, record in version.variants.items():
            if not record.sha256:
                continue
            try:
                variant = registry.variant(version.model, name, version.id)
            except ArtifactError as error:
                bad += 1
                print_error(error.message, error.hint)
            else:
                write(f"ok {version.model} {version.id} {name} {variant.sha256}")
    if bad:
        raise typer.Exit(ExitCode.FAILED)


def promote(
    variant: Annotated[str, typer.Argument(metavar="VARIANT", help="Name of the variant to serve.")],
    manifest: ManifestPath = DEFAULT_MANIFEST,
    settings: Settings = None,
    model: Model = "",
    version: Which = "latest",
    folder: Folder = None,
    force: Annotated[bool, typer.Option("--force", help="Promote it although it was refused.")] = False,
) -> None:
    """Make a variant the one that is served from the next start on; an older version is a roll-back."""
    registry, named = _open(manifest, settings, folder)
    name = model or named or _only_model(registry)
    promotion = registry.promote(name, version, variant, force=force)
    write(f"{name} {promotion.version} {promotion.variant}")


def _open(manifest: Path, settings: list[str] | None, folder: Path | None) -> tuple[Registry, str]:
    """Find the registry and the manifest's model; with a folder given no manifest is read and the name is empty."""
    if folder is not None:
        return Registry(folder), ""
    loaded = load_manifest(manifest, settings, keep_unset=True)
    return Registry(loaded.directory / loaded.deployment.registry.path), loaded.deployment.name


def _only_model(registry: Registry) -> str:
    models = registry.models()
    if len(models) != 1:
        raise ManifestError(
            f"{registry.root} holds {len(models)} models ({', '.join(models) or 'none'})",
            hint="name one with --model NAME",
        )
    return models[0]


def _brief(registry: Registry, version: Version) -> dict[str, Any]:
    promotion = registry.promotion(version.model)
    here = promotion is not None and promotion.version == version.id
    return {
        "model": version.model,
        "version": version.id,
        "created": version.created,
        "variants": [name for name, each in version.variants.items() if each.sha256],
        "promoted": promotion.variant if promotion is not None and here else None,
    }


def _print_json(value: object) -> None:
    import msgspec

    write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
