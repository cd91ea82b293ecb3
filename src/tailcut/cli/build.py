"""``tailcut build``: make the variants, judge them, keep them, promote the best."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailcut.cli.console import ExitCode, note, write
from tailcut.cli.options import ManifestPaths, ModelName, Settings, examples, load_subject, manifest_option
from tailcut.errors import BuildError, ManifestError, TailcutError

if TYPE_CHECKING:
    from tailcut.builder.progress import Progress
    from tailcut.manifest import Manifest
    from tailcut.manifest.subject import CommandSubject
    from tailcut.registry import Promotion, Version


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
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write version and evidence as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write plot and tables as an HTML page.")] = None,
) -> None:
    """Build variants of the model, judge their quality and speed, store them in the registry, promote the best.

    A variant is refused if its quality drops by more than quality.budget, if it is not shown to be faster or cheaper
    here than the variant that it was made from, or if it could not be made. The version records the reason; other
    variants are not affected. Each step runs in its own process. Exit code 0: the promoted variant meets the SLO, or
    speed was not judged (build.rounds = 0); 1: no variant meets it (the fastest that passed is still promoted), or
    nothing was built (the registry is unchanged).
    """
    from tailcut.builder import build as make

    flags = (_recipes(recipes), _quantize(quantize), time_limit, _logged(replay))
    subject = load_subject(manifest, model, settings, *flags, keep_unset=True)
    if list_recipes:
        _list(subject.manifest)
        return
    recorded = _feature_models(subject)
    with told() as progress:
        version, promotion = make(
            subject.manifest, from_registry=from_registry or "", progress=progress, feature_models=recorded
        )
    _write_reports(version, promotion, json, html)
    _print(version, promotion)
    choice = version.evidence.choice
    fails = subject.manifest.deployment.build.rounds and choice is not None and not choice.meets_slo
    raise typer.Exit(ExitCode.FAILED if fails else ExitCode.OK)


@contextmanager
def told() -> Iterator[Progress]:
    """Write a line on stderr for each finished step of the build inside, and each reason that no table tells."""
    from tailcut.builder.progress import ProgressLog

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
    from tailcut.manifest.subject import needs_of
    from tailcut.serving.deployment_loader import find_variant
    from tailcut.serving.variant_checks import answering_version

    given = {hosted.name: hosted for hosted in subject.host.models}
    found: dict[str, str] = {}
    for need in needs_of(subject.manifest):
        hosted = given.get(need.model)
        if hosted is None:
            note(
                f'model {need.model!r} of features.groups "{need.group}" was not given: its version is not recorded, '
                "and servers will call this build unjudged; add its manifest with -m"
            )
        elif hosted.manifest is None:
            raise hosted.error or ManifestError(f"{hosted.file}: cannot be read", hint="mend the manifest")
        else:
            found[need.model] = answering_version(find_variant(hosted.manifest))
    return found


def _print(version: Version, promotion: Promotion) -> None:
    from tailcut.cli._versions import live_code_lines, summary
    from tailcut.report.builds.figures import refusals, variants_table
    from tailcut.report.document import aligned

    write(aligned(variants_table(version, promotion)))
    choice = version.evidence.choice
    chosen = [] if choice is None else [f"chosen: {choice.why}"]
    for line in (*refusals(version), *live_code_lines(version), *summary(version), *chosen):
        write(line)
    note(f"promoted {promotion.variant!r} of {version.model} version {version.id}; next: tailcut serve")


def _write_reports(version: Version, promotion: Promotion, json: Path | None, html: Path | None) -> None:
    """Write the whole record as JSON, and as a page, where a file is named for it."""
    import msgspec

    from tailcut.report.builds.document import build_document
    from tailcut.report.html import html as page

    if json is not None:
        content = msgspec.json.encode({"version": version, "promotion": promotion})
        _write(json, msgspec.json.format(content, indent=2) + b"\n")
    if html is not None:
        _write(html, page(build_document(version, promotion)).encode())


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
    from tailcut.builder import host_capabilities, sources
    from tailcut.builder.plan import applicable
    from tailcut.builder.recipes.base import Subject

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


def _logged(path: str | None) -> str | None:
    """Turn a path, which is relative to the current folder, into an override."""
    return None if path is None else f"holdout.request_log={Path(path).absolute()}"


def _quantize(wanted: bool | None) -> str | None:
    return None if wanted is None else f"build.quantize={str(wanted).lower()}"
