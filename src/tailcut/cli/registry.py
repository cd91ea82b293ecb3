"""``tailcut registry``: list, compare, verify, promote and clear up what was built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tailcut.cli._versions import differences, list_rows, list_table, live_code_lines, summary
from tailcut.cli.console import ExitCode, note, print_error, write
from tailcut.cli.options import ManifestPaths, ModelName, Settings, examples, load_subject, manifest_paths
from tailcut.code.archive import extract
from tailcut.code.digest import few
from tailcut.code.files import lacks
from tailcut.common.fingerprint import LIVE, Machine
from tailcut.errors import ArtifactError, ManifestError, NotInRegistry, NotServable
from tailcut.manifest import Manifest
from tailcut.manifest.answer_settings import other_settings
from tailcut.manifest.host import is_one_manifest
from tailcut.models.smoke_test import try_variant
from tailcut.registry import Promotion, Registry, Version, read_machine
from tailcut.registry.checking import Check, Trial, nothing
from tailcut.registry.exporting import export as export_variant
from tailcut.registry.records import ARCHIVE
from tailcut.report.builds.figures import refusals, size, variants_table
from tailcut.report.document import aligned

Place = Annotated[
    str | None,
    typer.Option("--registry", metavar="PLACE", help="The registry's folder or URL; with it the manifest is not read."),
]
Model = Annotated[str, typer.Option(metavar="NAME", help="Model name; default: the manifest's.")]
Which = Annotated[str, typer.Option("--version", metavar="ID", help="A version's id, 'latest' or 'promoted'.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
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
    registry = RegistryTarget(manifest, model, settings, place).registry
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
    with RegistryTarget(manifest, model, settings, place, _read_machine(machine)).chosen() as (registry, name):
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
    with RegistryTarget(manifest, model, settings, place).chosen() as (registry, name):
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
    target = RegistryTarget(manifest, model, settings, place)
    bad = 0
    for what, error in target.registry.verify(target.trial(quick=quick)):
        if error is None:
            write(f"ok {what}")
        elif isinstance(error, NotServable):
            write(f"not servable here {what}: {error.message}")
            note(f"hint: {error.hint}")
        else:
            bad += 1
            print_error(error.message, error.hint)
    for line in _other_code(target):
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
    target = RegistryTarget(manifest, model, settings, place)
    with target.chosen() as (registry, name):
        check, trial = target.check(force=force), target.trial(quick=quick)
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
    target = RegistryTarget(manifest, model, settings, place)
    with target.chosen() as (registry, name):
        check, trial = target.check(force=force), target.trial(quick=quick)
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
    with RegistryTarget(manifest, model, settings, place).chosen() as (registry, name):
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
    with RegistryTarget(manifest, model, settings, place).chosen() as (registry, name):
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
    registry = RegistryTarget(manifest, model, settings, place).registry
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
    with RegistryTarget(manifest, model, settings, place).chosen() as (registry, name):
        record = registry.version(name, version)
    kept = registry.file(record, ARCHIVE)
    if kept is None:
        raise ArtifactError(
            f"{registry.url} keeps no copy of the code of model {record.model!r} version {record.id}",
            hint="`tailcut registry show --json` prints its hashes; set registry.keep_code = true, and `tailcut build` "
            "keeps a copy from now on",
        )
    for path in extract(kept, folder, force=force):
        write(str(path))


# -- The registry that a command means, and the model of it ------------------------------------------------------------


class RegistryTarget:
    """The registry that a command means.

    Args:
        manifest: what ``--manifest`` names.
        model: what ``--model`` names: of several manifests one; of a single one another model of its registry.
        settings: what ``--set`` says.
        place: of the registry; with it no manifest is read.
        machine: the machine that evidence is judged for; None: this one.
    """

    def __init__(
        self,
        manifest: list[Path] | None,
        model: str,
        settings: list[str] | None,
        place: str | None,
        machine: Machine | None = None,
    ) -> None:
        self._model = model
        self.loaded: Manifest | None = None
        if place is None:
            name = "" if is_one_manifest(manifest_paths(manifest)) else model
            self.loaded = load_subject(manifest, name, settings, keep_unset=True).manifest
            self.registry = Registry.of(self.loaded, machine=machine)
        else:
            self.registry = Registry(place, machine=machine)
        folder = self.registry.folder
        if folder is not None and folder.exists() and not folder.is_dir():
            where = f"registry.path: {self.registry.url}" if place is None else f"--registry: {place}"
            raise ManifestError(f"{where} is not a folder", hint="give a folder, or a URL")
        if place is not None and folder is not None and not folder.exists():
            raise ManifestError(
                f"--registry: {place} is not found",
                hint="give the folder or URL that the manifest has in registry.path",
            )

    @contextmanager
    def chosen(self) -> Iterator[tuple[Registry, str]]:
        """Yield the registry and the model that a command is about.

        A name that was typed wrong ends as a wrong command line; a model that was not built yet is none.

        Raises:
            ManifestError: no model is named, and the registry has several or none.
        """
        name = self._model or (self.loaded.deployment.name if self.loaded is not None else "")
        models = [name] if name else self.registry.models()
        if len(models) != 1:
            raise ManifestError(
                f"{self.registry.url} holds {len(models)} models ({', '.join(models) or 'none'})",
                hint="name one with --model NAME",
            )
        try:
            yield self.registry, models[0]
        except NotInRegistry as error:
            if self._model or models[0] in self.registry.models():
                raise ManifestError(error.message, hint=error.hint) from error
            raise

    def trial(self, *, quick: bool) -> Trial | None:
        """Return what opens a variant and runs rows on it; None for the quick check."""
        return None if quick else partial(try_variant, self.registry, self.loaded)

    def check(self, *, force: bool) -> Check:
        """Return the check that a variant which is to be served was built with the manifest and its folder's code.

        Args:
            force: check nothing; nor is anything checked without a manifest.
        """
        loaded = self.loaded
        if loaded is None or force:
            return nothing

        def check(version: Version, variant: str) -> None:
            if version.model != loaded.deployment.name:
                if version.evidence.code is not None:
                    raise ArtifactError(
                        f"variant {variant!r} of version {version.id} was built with the code of model "
                        f"{version.model!r}, but the manifest in {loaded.directory} is of {loaded.deployment.name!r}",
                        hint=f"run this with the manifest of {version.model!r}, or skip the comparison with --force",
                    )
                return
            live = version.variants[variant].runtime in LIVE
            if differ := other_settings(loaded.deployment, version.manifest, live=live):
                raise ArtifactError(
                    f"variant {variant!r} of version {version.id} was built with another manifest than the one in "
                    f"{loaded.directory}: {few(differ)}",
                    hint="restore that manifest (`tailcut registry show --json` prints it); or give --force and "
                    "restart the servers to serve the variant with the current manifest",
                )
            if lacking := _lacks(loaded, version, [variant]):
                raise ArtifactError(
                    f"variant {variant!r} of version {version.id} was built with other code than {loaded.directory} "
                    f"has: {few(lacking)}",
                    hint=f"restore that code (`tailcut registry code {version.id} FOLDER` writes it); or give --force "
                    "and restart the servers to serve the variant with the current code",
                )

        return check


def _other_code(target: RegistryTarget) -> Iterator[str]:
    """Say which versions of the manifest's model were built with other code than the manifest's folder has."""
    loaded = target.loaded
    if loaded is None:
        return
    name = loaded.deployment.name
    for found, record in target.registry.scan(name):
        if isinstance(record, ArtifactError):
            continue
        try:
            version = target.registry.version(name, found)
        except ArtifactError:  # `registry verify` has named it
            continue
        built = [name for name, each in version.variants.items() if each.sha256]
        if lacking := _lacks(loaded, version, built):
            yield f"{name} {found} needs other code than {loaded.directory} has: {few(lacking)}"


def _lacks(manifest: Manifest, version: Version, variants: list[str]) -> tuple[str, ...]:
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
            level = "to be measured again" if found.level == "remeasure" else found.level
            yield f"{name} is {level} here: {found.reason}"


def _print_promotion(model: str, promotion: Promotion) -> None:
    write(f"{model} {promotion.version} {promotion.variant}")


def _print_json(value: object) -> None:
    write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
