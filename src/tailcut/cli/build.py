"""``tailcut build``: make the variants, judge them, keep them, promote the best."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tailcut import builder
from tailcut.builder import host_capabilities, sources
from tailcut.builder.plan import applicable
from tailcut.builder.progress import Progress, ProgressLog
from tailcut.builder.recipes.base import Subject
from tailcut.cli._versions import live_code_lines, summary
from tailcut.cli.console import ExitCode, note, write
from tailcut.cli.options import (
    HtmlFile,
    JsonFile,
    ManifestPaths,
    ModelName,
    Settings,
    examples,
    load_subject,
    manifest_option,
)
from tailcut.errors import BuildError, TailcutError
from tailcut.manifest import Manifest
from tailcut.manifest.subject import CommandSubject, needs_of
from tailcut.registry import Promotion, Version
from tailcut.report.builds.document import build_document
from tailcut.report.builds.figures import refusals, variants_table
from tailcut.report.document import aligned
from tailcut.report.html import html as page
from tailcut.serving.deployment_loader import find_variant
from tailcut.serving.variant_checks import answering_version


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "build",
        epilog=examples(
            ("tailcut build", "build every variant of ./tailcut.toml and promote the best"),
            ("tailcut build --quantize", "the INT8 recipes too"),
            ("tailcut build --replay requests/", "also compare the variants' answers to logged requests"),
            ("tailcut build --set quality.budget.auc=0.002 --json build.json", "a tighter budget; write the evidence"),
        ),
    )(build)


def build(
    manifest: ManifestPaths = None,
    model: ModelName = "",
    settings: Settings = None,
    recipes: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Try only these recipes, separated by commas (build.recipes).")
    ] = None,
    quantize: Annotated[
        bool | None, typer.Option("--quantize/--no-quantize", help="Try the INT8 recipes (build.quantize).")
    ] = None,
    time_limit: Annotated[str | None, manifest_option("build.step_timeout", "--time-limit")] = None,
    from_registry: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION",
            help="Start from the portable base of this version (promoted, latest or an id) instead of model.source.",
        ),
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(
            metavar="LOG",
            help="Also compare each variant with the source model on the rows of this request log "
            "(holdout.request_log).",
        ),
    ] = None,
    list_recipes: Annotated[
        bool, typer.Option("--list", help="List recipes and whether each applies on this machine; build nothing.")
    ] = False,
    json_path: JsonFile = None,
    html: HtmlFile = None,
) -> None:
    """Build variants of the model, judge their quality and speed, store them in the registry, promote the best.

    A variant is refused if its quality drops by more than quality.budget, if it is not shown to be faster or cheaper
    here than the variant that it was made from, or if it could not be made. The version records the reason; other
    variants are not affected. Each step runs in its own process. Exit code 0: the promoted variant meets the SLO, or
    speed was not judged (build.rounds = 0); 1: no variant meets it (the fastest that passed is still promoted), or
    nothing was built (the registry is unchanged).
    """
    flags = (
        _recipes(recipes),
        None if quantize is None else f"build.quantize={str(quantize).lower()}",
        time_limit,
        None if replay is None else f"holdout.request_log={Path(replay).absolute()}",
    )
    subject = load_subject(manifest, model, settings, *flags, keep_unset=True)
    if list_recipes:
        _list(subject.manifest)
        return
    recorded = _feature_models(subject)
    with told() as progress:
        version, promotion = builder.build(
            subject.manifest, from_registry=from_registry or "", progress=progress, feature_models=recorded
        )
    if json_path is not None:
        content = msgspec.json.encode({"version": version, "promotion": promotion})
        _write(json_path, msgspec.json.format(content, indent=2) + b"\n")
    if html is not None:
        _write(html, page(build_document(version, promotion)).encode())
    _print(version, promotion)
    choice = version.evidence.choice
    fails = subject.manifest.deployment.build.rounds and choice is not None and not choice.meets_slo
    raise typer.Exit(ExitCode.FAILED if fails else ExitCode.OK)


@contextmanager
def told() -> Iterator[Progress]:
    """Write a line on stderr for each finished step of the build inside, and each reason that no table tells."""
    log = ProgressLog()

    def tell(lines: list[str]) -> None:
        for line in lines:
            note(line)

    error: str | None = ""
    try:
        yield lambda event: tell(log.take(event))
        error = None
    except TailcutError as ended:
        error = ended.message
        raise
    except KeyboardInterrupt:
        tell(log.stopped())
        raise
    finally:
        tell(log.close(error))


def _feature_models(subject: CommandSubject) -> dict[str, str]:
    """Return the version of each model that computes features, for the record.

    Raises:
        TailcutError: one was given and cannot be served, so that it has no version.
    """
    given = {hosted.name: hosted for hosted in subject.host.models}
    found: dict[str, str] = {}
    for need in needs_of(subject.manifest):
        hosted = given.get(need.model)
        if hosted is None:
            note(
                f'model {need.model!r} of features.groups "{need.group}" was not given: its version is not recorded, '
                "and servers will call this build unjudged; add its manifest with -m"
            )
        else:
            found[need.model] = answering_version(find_variant(hosted.loaded()))
    return found


def _print(version: Version, promotion: Promotion) -> None:
    write(aligned(variants_table(version, promotion)))
    choice = version.evidence.choice
    chosen = [] if choice is None else [f"chosen: {choice.why}"]
    for line in (*refusals(version), *live_code_lines(version), *summary(version), *chosen):
        write(line)
    note(f"promoted {promotion.variant!r} of {version.model} version {version.id}; next: tailcut serve")


def _write(path: Path, content: bytes) -> None:
    """Write a report of a build that is already kept.

    Raises:
        BuildError: the file is not writable.
    """
    try:
        path.write_bytes(content)
    except OSError as error:
        raise BuildError(
            f"cannot write {path}: {error.strerror}; the build itself is in the registry",
            hint="choose another file",
        ) from error


def _list(manifest: Manifest) -> None:
    """Print every recipe with whether it applies here; what a callable gives is only known once it is called."""
    machine, kind = host_capabilities.look(), sources.kind_of_path(manifest)
    found = applicable(Subject(kind=kind, deployment=manifest.deployment), machine)
    of_trees = applicable(Subject(kind=kind, trees=not kind, deployment=manifest.deployment), machine)
    for each, same in zip(found, of_trees, strict=True):
        unless = ", unless the model is an ensemble of trees" if same.why_not else ""
        write(f"{each.name:14} {each.summary}")
        write(f"{'':14} {each.why_not or f'applies{unless}'}")


def _recipes(names: str | None) -> str | None:
    """Turn names with commas between into an override."""
    if names is None:
        return None
    quoted = ", ".join(f'"{name.strip()}"' for name in names.split(",") if name.strip())
    return f"build.recipes=[{quoted}]"
