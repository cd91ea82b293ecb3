"""``tailcut registry``: list, compare, verify, promote and clear up what was built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from tailcut.cli._code import code, code_check, other_code
from tailcut.cli._export import export
from tailcut.cli._listing import list_rows, list_table, live_code_lines
from tailcut.cli._registry import AsJson, Model, Place, Which, as_typed, only_model, open_registry
from tailcut.cli._smoke import Quick, smoke_test
from tailcut.cli._versions import differences, print_table, refusals, size, summary, table
from tailcut.cli.console import ExitCode, note, print_error, write
from tailcut.cli.options import DEFAULT_MANIFEST, ManifestPath, Settings, examples
from tailcut.common.fingerprint import Machine
from tailcut.errors import ManifestError, NotServable
from tailcut.registry import Promotion, Registry, Version, read_machine

OtherMachine = Annotated[
    Path | None,
    typer.Option(
        "--machine", metavar="FILE", help="Judge for this machine, as `tailcut registry machine` printed it there."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the group of commands to the application."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    for command, pairs in _COMMANDS.items():
        group.command(command.__name__.replace("_versions", "").replace("_", "-"), epilog=examples(*pairs))(command)
    app.add_typer(group, name="registry", help="List, compare, promote, verify and clear up what was built.")


def list_versions(
    manifest: ManifestPath = DEFAULT_MANIFEST, settings: Settings = None, place: Place = None, as_json: AsJson = False
) -> None:
    """List every model's versions, newest first; the promoted one is marked.

    What cannot be read is listed as such, and the exit code is 1 then.
    """
    registry = open_registry(manifest, settings, place)[0]
    rows, errors = list_rows(registry)
    if as_json:
        _print_json(rows)
    elif rows:
        print_table(list_table(rows))
    for error in errors:
        print_error(error.message, error.hint)
    if errors:
        raise typer.Exit(ExitCode.FAILED)
    if not rows:
        note(f"{registry.url} holds no model yet; `tailcut build` makes one")


def show(
    manifest: ManifestPath = DEFAULT_MANIFEST,
    settings: Settings = None,
    model: Model = "",
    version: Which = "promoted",
    place: Place = None,
    machine: OtherMachine = None,
    as_json: AsJson = False,
) -> None:
    """Show a version's variants with their evidence, and which of it does not hold on this machine."""
    registry, named = open_registry(manifest, settings, place, _read_machine(machine))
    name = model or named or only_model(registry)
    with as_typed(registry, model, name):
        record = registry.version(name, version)
    if as_json:
        _print_json(record)
        return
    write(f"{record.model} version {record.id}, built {record.created[:19]} UTC")
    print_table(table(record, registry.promotion(name)))
    here = _on_this_machine(registry, record)
    for line in (*refusals(record), *live_code_lines(record), *here, *summary(record)):
        write(line)


def machine() -> None:
    """Print what variants depend on of this machine, as JSON: processor, cores, quota, memory, GPU, packages."""
    _print_json(read_machine())


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A version's id, 'latest' or 'promoted'.")] = "promoted",
    new: Annotated[str, typer.Argument(metavar="NEW", help="The version to compare it with.")] = "latest",
    manifest: ManifestPath = DEFAULT_MANIFEST,
    settings: Settings = None,
    model: Model = "",
    place: Place = None,
    as_json: AsJson = False,
) -> None:
    """Compare two versions: variants, artifacts, settings, metrics, machines and the manifests they were built from."""
    registry, named = open_registry(manifest, settings, place)
    name = model or named or only_model(registry)
    with as_typed(registry, model, name):
        found = registry.diff(name, old, new)
    if as_json:
        _print_json(found)
        return
    for line in differences(found):
        write(line)


def verify(
    manifest: ManifestPath = DEFAULT_MANIFEST, settings: Settings = None, place: Place = None, quick: Quick = False
) -> None:
    """Check every record and artifact, open every variant and run rows on it; the exit code is 1 where one is bad.

    What is whole, and cannot be served here, is listed with what it lacks. It is bad where it is promoted.
    Versions that were built with other code than the manifest's folder has are named; that is no fault of the registry.
    """
    registry = open_registry(manifest, settings, place)[0]
    bad = 0
    for what, error in registry.verify(smoke_test(manifest, settings, place, registry, quick=quick)):
        if error is None:
            write(f"ok {what}")
        elif isinstance(error, NotServable):
            write(f"not servable here {what}: {error.message}")
            note(f"hint: {error.hint}")
        else:
            bad += 1
            print_error(error.message, error.hint)
    for line in other_code(registry, manifest, settings, place):
        note(line)
    if bad:
        raise typer.Exit(ExitCode.FAILED)


def promote(
    variant: Annotated[str, typer.Argument(metavar="VARIANT", help="Name of the variant to serve.")],
    manifest: ManifestPath = DEFAULT_MANIFEST,
    settings: Settings = None,
    model: Model = "",
    version: Which = "latest",
    place: Place = None,
    force: Annotated[
        bool, typer.Option("--force", help="Promote it although it was refused, or was built with other code.")
    ] = False,
    quick: Quick = False,
) -> None:
    """Make a variant the one that is served, once it was opened; a running server follows.

    Each promotion can be rolled back.
    A variant that was built with other code than the manifest's folder has is refused, with the files that differ.
    """
    registry, named = open_registry(manifest, settings, place)
    name = model or named or only_model(registry)
    check = code_check(manifest, settings, place, force=force)
    trial = smoke_test(manifest, settings, place, registry, quick=quick)
    with as_typed(registry, model, name):
        _print_promotion(name, registry.promote(name, version, variant, force=force, check=check, trial=trial))


def rollback(
    manifest: ManifestPath = DEFAULT_MANIFEST,
    settings: Settings = None,
    model: Model = "",
    place: Place = None,
    force: Annotated[bool, typer.Option("--force", help="Roll back although it was built with other code.")] = False,
    quick: Quick = False,
) -> None:
    """Serve what was served before and can be opened; again, what was served before that.

    A variant that was built with other code than the manifest's folder has is refused, with the files that differ.
    """
    registry, named = open_registry(manifest, settings, place)
    name = model or named or only_model(registry)
    check = code_check(manifest, settings, place, force=force)
    trial = smoke_test(manifest, settings, place, registry, quick=quick)
    with as_typed(registry, model, name):
        _print_promotion(name, registry.rollback(name, check=check, trial=trial, notice=note))


def retire(
    version: Annotated[str, typer.Argument(metavar="ID", help="The version's id.")],
    manifest: ManifestPath = DEFAULT_MANIFEST,
    settings: Settings = None,
    model: Model = "",
    place: Place = None,
) -> None:
    """Serve a version no more, and let gc remove it. Building the same artifacts again brings it back."""
    registry, named = open_registry(manifest, settings, place)
    name = model or named or only_model(registry)
    with as_typed(registry, model, name):
        record = registry.retire(name, version)
    write(f"{record.model} {record.id} retired")


def gc(
    manifest: ManifestPath = DEFAULT_MANIFEST,
    settings: Settings = None,
    place: Place = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
) -> None:
    """Remove retired versions and artifacts that nothing refers to; what is served and the way back stay."""
    registry = open_registry(manifest, settings, place)[0]
    found = registry.collect_garbage(dry_run=dry_run)
    for path in found.files:
        write(path)
    for kept in found.kept:
        note(f"{kept} is retired and stays: it is promoted, or what a rollback goes to")
    if not found.files:
        note("there is nothing to remove")
        return
    removed = "would be removed" if dry_run else "removed"
    note(f"{len(found.versions)} versions, {len(found.files)} files, {size(found.freed_bytes)} {removed}")


_COMMANDS: dict[Callable[..., None], tuple[tuple[str, str], ...]] = {
    list_versions: (("tailcut registry list", "versions, newest first"),),
    show: (
        ("tailcut registry show", "the promoted version"),
        ("tailcut registry show --version latest --json", "all evidence of the last build"),
        ("tailcut registry show --machine machine.json", "would it be trusted there?"),
    ),
    machine: (("tailcut registry machine > machine.json", "keep what this machine is"),),
    diff: (
        ("tailcut registry diff", "what the last build changed against what is served"),
        ("tailcut registry diff 5e6b4acf3f59 latest --json", "two versions, for programs"),
    ),
    code: (("tailcut registry code 5e6b4acf3f59 old", "the hooks that it was built with, into the folder old"),),
    verify: (
        ("tailcut registry verify", "can everything be served here?"),
        ("tailcut registry verify --quick", "hashes alone"),
    ),
    promote: (
        ("tailcut registry promote onnx", "serve the onnx variant of the last build"),
        ("tailcut registry promote onnx --version 5e6b4acf3f59", "of an older build"),
    ),
    rollback: (("tailcut registry rollback", "serve what was served before"),),
    export: (
        ("tailcut registry export promoted onnx model.onnx", "for use without tailcut; beside it model.onnx.json"),
        ("tailcut registry export 5e6b4acf3f59 lightgbm model.txt --force", "of an older build, over what is there"),
    ),
    retire: (("tailcut registry retire 5e6b4acf3f59", "this version is not served any more"),),
    gc: (
        ("tailcut registry gc --dry-run", "what could be removed, and how much that is"),
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
        raise ManifestError(f"--machine: {file} describes no machine: {error}", hint=_PRINTED) from error


_PRINTED = "run `tailcut registry machine > machine.json` on that machine"


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
