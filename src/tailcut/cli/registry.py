"""``tailcut registry``: list, compare, verify, promote and clear up what was built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from tailcut.cli._registry import AsJson, Model, Place, Which, chosen, load_named, open_registry
from tailcut.cli._versions import differences, list_rows, list_table, live_code_lines, summary
from tailcut.cli.console import ExitCode, note, print_error, write
from tailcut.cli.options import ManifestPaths, ModelName, Settings, examples
from tailcut.code.digest import few
from tailcut.common.fingerprint import LIVE, Machine
from tailcut.errors import ArtifactError, ManifestError, NotServable
from tailcut.manifest import Manifest
from tailcut.manifest.answer_settings import other_settings
from tailcut.registry import Promotion, Registry, Version, read_machine
from tailcut.registry.checking import Check, Trial, nothing
from tailcut.registry.exporting import export as export_variant
from tailcut.registry.records import ARCHIVE
from tailcut.report.builds.figures import refusals, size, variants_table
from tailcut.report.document import aligned

OtherMachine = Annotated[
    Path | None,
    typer.Option(
        "--machine", metavar="FILE", help="Judge for the machine in this file, printed by `tailcut registry machine`."
    ),
]

Quick = Annotated[bool, typer.Option("--quick", help="Check only size and SHA-256; open no variant.")]


def register(app: typer.Typer) -> None:
    """Add the group of commands to the application."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    for command, pairs in _COMMANDS.items():
        group.command(command.__name__.replace("_versions", "").replace("_", "-"), epilog=examples(*pairs))(command)
    app.add_typer(group, name="registry", help="List, compare, promote, verify and clean up built versions.")


def list_versions(
    manifest: ManifestPaths = None,
    model: ModelName = "",
    settings: Settings = None,
    place: Place = None,
    as_json: AsJson = False,
) -> None:
    """List every model's versions, newest first; the promoted one is marked.

    Unreadable entries are listed too; the exit code is then 1.
    """
    registry = open_registry(manifest, model, settings, place)[0]
    rows, errors = list_rows(registry)
    if as_json:
        _print_json(rows)
    elif rows:
        write(list_table(rows))
    for error in errors:
        print_error(error.message, error.hint)
    if errors:
        raise typer.Exit(ExitCode.FAILED)
    if not rows:
        note(f"{registry.url} holds no model yet; build one with `tailcut build`")


def show(
    manifest: ManifestPaths = None,
    settings: Settings = None,
    model: Model = "",
    version: Which = "promoted",
    place: Place = None,
    machine: OtherMachine = None,
    as_json: AsJson = False,
) -> None:
    """Show a version's variants with their evidence, and the evidence that does not hold on this machine."""
    with chosen(manifest, model, settings, place, _read_machine(machine)) as (registry, name):
        record = registry.version(name, version)
    if as_json:
        _print_json(record)
        return
    write(f"{record.model} version {record.id}, built {record.created[:19]} UTC")
    write(aligned(variants_table(record, registry.promotion(name))))
    here = _on_this_machine(registry, record)
    for line in (*refusals(record), *live_code_lines(record), *here, *summary(record)):
        write(line)


def machine() -> None:
    """Print the machine facts that variants depend on, as JSON: processor, cores, quota, memory, GPU, packages."""
    _print_json(read_machine())


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A version's id, 'latest' or 'promoted'.")] = "promoted",
    new: Annotated[str, typer.Argument(metavar="NEW", help="The version to compare it with.")] = "latest",
    manifest: ManifestPaths = None,
    settings: Settings = None,
    model: Model = "",
    place: Place = None,
    as_json: AsJson = False,
) -> None:
    """Compare two versions: variants, artifacts, settings, metrics, machines and the manifests they were built from."""
    with chosen(manifest, model, settings, place) as (registry, name):
        found = registry.diff(name, old, new)
    if as_json:
        _print_json(found)
        return
    for line in differences(found):
        write(line)


def verify(
    manifest: ManifestPaths = None,
    model: ModelName = "",
    settings: Settings = None,
    place: Place = None,
    quick: Quick = False,
) -> None:
    """Check every record and artifact, open every variant and run rows on it; exit code 1 if any is bad.

    An intact variant that cannot be served here is listed with what it lacks; it is bad only if it is promoted.
    Versions built with other code than the manifest's folder holds are named; the registry itself is intact.
    """
    registry = open_registry(manifest, model, settings, place)[0]
    bad = 0
    for what, error in registry.verify(_smoke_test(manifest, model, settings, place, registry, quick=quick)):
        if error is None:
            write(f"ok {what}")
        elif isinstance(error, NotServable):
            write(f"not servable here {what}: {error.message}")
            note(f"hint: {error.hint}")
        else:
            bad += 1
            print_error(error.message, error.hint)
    for line in other_code(registry, manifest, model, settings, place):
        note(line)
    if bad:
        raise typer.Exit(ExitCode.FAILED)


def promote(
    variant: Annotated[str, typer.Argument(metavar="VARIANT", help="Name of the variant to serve.")],
    manifest: ManifestPaths = None,
    settings: Settings = None,
    model: Model = "",
    version: Which = "latest",
    place: Place = None,
    force: Annotated[
        bool, typer.Option("--force", help="Promote a variant that was refused, or was built with other code.")
    ] = False,
    quick: Quick = False,
) -> None:
    """Open a variant and make it the one that is served; running servers follow.

    Each promotion can be rolled back.
    A variant built with other code than the manifest's folder holds is refused; the error names the files that differ.
    """
    with chosen(manifest, model, settings, place) as (registry, name):
        check = code_check(manifest, model, settings, place, force=force)
        trial = _smoke_test(manifest, model, settings, place, registry, quick=quick)
        _print_promotion(name, registry.promote(name, version, variant, force=force, check=check, trial=trial))


def rollback(
    manifest: ManifestPaths = None,
    settings: Settings = None,
    model: Model = "",
    place: Place = None,
    force: Annotated[
        bool, typer.Option("--force", help="Roll back to a variant that was built with other code.")
    ] = False,
    quick: Quick = False,
) -> None:
    """Serve the previous variant that can be opened; run it again to go back further.

    A variant built with other code than the manifest's folder holds is refused; the error names the files that differ.
    """
    with chosen(manifest, model, settings, place) as (registry, name):
        check = code_check(manifest, model, settings, place, force=force)
        trial = _smoke_test(manifest, model, settings, place, registry, quick=quick)
        _print_promotion(name, registry.rollback(name, check=check, trial=trial, notice=note))


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
    with chosen(manifest, model, settings, place) as (registry, name):
        for written in export_variant(registry, registry.version(name, version), variant, file, force=force):
            write(str(written))


def retire(
    version: Annotated[str, typer.Argument(metavar="ID", help="The version's id.")],
    manifest: ManifestPaths = None,
    settings: Settings = None,
    model: Model = "",
    place: Place = None,
) -> None:
    """Retire a version: it is no longer served, and gc may remove it. Building the same artifacts again restores it."""
    with chosen(manifest, model, settings, place) as (registry, name):
        record = registry.retire(name, version)
    write(f"{record.model} {record.id} retired")


def gc(
    manifest: ManifestPaths = None,
    model: ModelName = "",
    settings: Settings = None,
    place: Place = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, but remove nothing.")] = False,
) -> None:
    """Remove retired versions and unreferenced artifacts; the promoted version and the rollback target stay."""
    registry = open_registry(manifest, model, settings, place)[0]
    found = registry.collect_garbage(dry_run=dry_run)
    for path in found.files:
        write(path)
    for kept in found.kept:
        note(f"{kept} is retired but stays: it is promoted, or the target of a rollback")
    if not found.files:
        note("nothing to remove")
        return
    removed = "would be removed" if dry_run else "removed"
    note(f"{len(found.versions)} versions, {len(found.files)} files, {size(found.freed_bytes)} {removed}")


def _smoke_test(
    manifest: list[Path] | None,
    model: str,
    settings: list[str] | None,
    place: str | None,
    registry: Registry,
    *,
    quick: bool,
) -> Trial | None:
    """Return what opens a variant and runs rows on it; None for the quick check.

    Args:
        place: of the registry, where it was given in place of the manifest: then there is no code of the user's.
    """
    if quick:
        return None
    from tailcut.models.smoke_test import SmokeTest

    return SmokeTest(registry, load_named(manifest, model, settings) if place is None else None)


def code(
    version: Annotated[str, typer.Argument(metavar="ID", help="A version's id, 'latest' or 'promoted'.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write to; created if missing.")],
    manifest: ManifestPaths = None,
    settings: Settings = None,
    model: Model = "",
    place: Place = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files that differ.")] = False,
) -> None:
    """Write out the copy of your code that was kept with a version, and name its files."""
    with chosen(manifest, model, settings, place) as (registry, name):
        record = registry.version(name, version)
    for path in write_out(registry, record, folder, force=force):
        write(str(path))


def code_check(
    manifest: list[Path] | None, model: str, settings: list[str] | None, place: str | None, *, force: bool
) -> Check:
    """Return the check that a variant which is to be served was built with the manifest and its folder's code.

    Args:
        place: a registry that was named without a manifest; nothing is checked then.
        force: check nothing.
    """
    if place is not None or force:
        return nothing
    loaded = load_named(manifest, model, settings)

    def check(version: Version, variant: str) -> None:
        if version.model != loaded.deployment.name:
            if version.evidence.code is not None:
                raise ArtifactError(
                    f"variant {variant!r} of version {version.id} was built with the code of model {version.model!r}, "
                    f"but the manifest in {loaded.directory} is of {loaded.deployment.name!r}",
                    hint=f"run this with the manifest of {version.model!r}, or skip the comparison with --force",
                )
            return
        live = version.variants[variant].runtime in LIVE
        if differ := other_settings(loaded.deployment, version.manifest, live=live):
            raise ArtifactError(
                f"variant {variant!r} of version {version.id} was built with another manifest than the one in "
                f"{loaded.directory}: {few(differ)}",
                hint="restore that manifest (`tailcut registry show --json` prints it); or give --force and restart "
                "the servers to serve the variant with the current manifest",
            )
        lacks = _lacks(loaded, version, [variant])
        if lacks:
            raise ArtifactError(
                f"variant {variant!r} of version {version.id} was built with other code than {loaded.directory} has: "
                f"{few(lacks)}",
                hint=f"restore that code (`tailcut registry code {version.id} FOLDER` writes it); or give --force and "
                "restart the servers to serve the variant with the current code",
            )

    return check


def other_code(
    registry: Registry, manifest: list[Path] | None, model: str, settings: list[str] | None, place: str | None
) -> Iterator[str]:
    """Say which versions of the manifest's model were built with other code than the manifest's folder has."""
    if place is not None:
        return
    loaded = load_named(manifest, model, settings)
    name = loaded.deployment.name
    for found, record in registry.scan(name):
        if isinstance(record, ArtifactError):
            continue
        try:
            version = registry.version(name, found)
        except ArtifactError:  # `registry verify` has named it
            continue
        built = [name for name, each in version.variants.items() if each.sha256]
        if lacks := _lacks(loaded, version, built):
            yield f"{name} {found} needs other code than {loaded.directory} has: {few(lacks)}"


def write_out(registry: Registry, version: Version, folder: Path, *, force: bool) -> list[Path]:
    """Write the copy of a version's code into a folder.

    Raises:
        ArtifactError: the registry keeps none, or it is damaged.
        ManifestError: a file is there and differs, without ``force``.
    """
    from tailcut.code.archive import extract

    kept = registry.file(version, ARCHIVE)
    if kept is None:
        raise ArtifactError(
            f"{registry.url} keeps no copy of the code of model {version.model!r} version {version.id}",
            hint="`tailcut registry show --json` prints its hashes; set registry.keep_code = true, and `tailcut build` "
            "keeps a copy from now on",
        )
    return extract(kept, folder, force=force)


def _lacks(manifest: Manifest, version: Version, variants: list[str]) -> tuple[str, ...]:
    from tailcut.code.files import lacks

    code = version.evidence.code
    if code is None:
        return ()
    live = any(version.variants[name].runtime in LIVE for name in variants)
    return lacks(manifest, code, live=live)


_COMMANDS: dict[Callable[..., None], tuple[tuple[str, str], ...]] = {
    list_versions: (("tailcut registry list", "versions, newest first"),),
    show: (
        ("tailcut registry show", "the promoted version"),
        ("tailcut registry show --version latest --json", "all evidence of the last build"),
        ("tailcut registry show --machine machine.json", "is its evidence valid on that machine?"),
    ),
    machine: (("tailcut registry machine > machine.json", "write the facts of this machine to a file"),),
    diff: (
        ("tailcut registry diff", "compare the promoted version with the last build"),
        ("tailcut registry diff 5e6b4acf3f59 latest --json", "two versions, as JSON"),
    ),
    code: (("tailcut registry code 5e6b4acf3f59 old", "write its hooks to the folder old"),),
    verify: (
        ("tailcut registry verify", "open every variant"),
        ("tailcut registry verify --quick", "check sizes and hashes only"),
    ),
    promote: (
        ("tailcut registry promote onnx", "serve the onnx variant of the last build"),
        ("tailcut registry promote onnx --version 5e6b4acf3f59", "serve it from an older build"),
    ),
    rollback: (("tailcut registry rollback", "serve the previous variant"),),
    export: (
        ("tailcut registry export promoted onnx model.onnx", "for use without tailcut; writes model.onnx.json too"),
        (
            "tailcut registry export 5e6b4acf3f59 lightgbm model.txt --force",
            "from an older build; overwrite existing files",
        ),
    ),
    retire: (("tailcut registry retire 5e6b4acf3f59", "stop serving this version"),),
    gc: (
        ("tailcut registry gc --dry-run", "show what would be removed, and its size"),
        ("tailcut registry gc", "remove it"),
    ),
}


def _read_machine(file: Path | None) -> Machine | None:
    """Read what ``tailcut registry machine`` printed."""
    import msgspec

    if file is None:
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=Machine)
    except OSError as error:
        raise ManifestError(f"--machine: cannot read {file}: {error.strerror}", hint=_PRINTED) from error
    except msgspec.MsgspecError as error:
        raise ManifestError(f"--machine: {file} is not a machine description: {error}", hint=_PRINTED) from error


_PRINTED = "make the file with `tailcut registry machine > machine.json` on that machine"


def _on_this_machine(registry: Registry, record: Version) -> Iterator[str]:
    """What of a version's evidence does not hold on this machine."""
    for name, each in record.variants.items():
        found = registry.trust(record, name)
        if each.sha256 and found.level != "trusted":
            yield f"{name} is {_LEVELS.get(found.level, found.level)} here: {found.reason}"


_LEVELS = {"remeasure": "to be measured again"}


def _print_promotion(model: str, promotion: Promotion) -> None:
    write(f"{model} {promotion.version} {promotion.variant}")


def _print_json(value: object) -> None:
    import msgspec

    write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
