"""``tailcut check``: try the whole path once, and say what was seen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailcut.cli.console import ExitCode, exit_code, note, print_error, write
from tailcut.cli.options import (
    ManifestPaths,
    ModelName,
    Settings,
    examples,
    load_host,
    load_subject,
    manifest_option,
    manifest_paths,
)

if TYPE_CHECKING:
    from tailcut.cli._inspection import Report
    from tailcut.manifest import Manifest
    from tailcut.manifest.host import HostManifest

_LABEL = 14
_ORIGINS = {"kept row": "of the holdout, kept by the build", "example tensors": "invented"}
_LONGEST_VALUE = 40


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "check",
        epilog=examples(
            ("tailcut check", "load ./tailcut.toml and run the model once"),
            ("tailcut check --entity '{\"flight\": 4711}'", "through the feature groups too"),
            ("tailcut check --row '{\"age\": 41.0}' --variant onnx", "through preprocess, with one variant"),
            ("tailcut check -m risk -m minilm", "a model, and the one that computes its features"),
            ("tailcut check --json | jq .request.stages_ms", "output for programs"),
        ),
    )(check)


def check(
    manifest: ManifestPaths = None,
    model: ModelName = "",
    settings: Settings = None,
    variant: Annotated[str | None, manifest_option("serve.variant")] = None,
    entity: Annotated[
        str | None, typer.Option(metavar="JSON", help="Entity to look up in the feature groups, as in a request.")
    ] = None,
    row: Annotated[str | None, typer.Option(metavar="JSON", help="Feature row to send instead of an entity.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Load everything, send one row through every stage and report each stage.

    Without --entity and --row the model runs a holdout row kept by its version, else zeros of the right shape; earlier
    stages are reported as not tried. Files of tokens, the webhook's secret and the collector's settings are
    read; nothing is sent to the webhook or the collector. A history or request log that cannot be written is a warning.
    Of several models all are checked. --entity, --row and --variant are for the one that --model names; with one of
    these flags only that model is checked, and those that compute its features.
    Exit code 0: everything works; 1: loaded, but the row failed; 2, 3, 4: loading failed; of
    several models that of the first that failed.
    """
    import msgspec

    wanted, given = _entity(entity), _row(row)
    if wanted is not msgspec.UNSET and given is not None:
        raise typer.BadParameter("give --entity or --row, not both")
    is_about_one = wanted is not msgspec.UNSET or given is not None or variant is not None
    models, subject = _models(manifest, model, settings, variant, is_about_one=is_about_one)
    if wanted is not msgspec.UNSET and subject is not None and not subject.deployment.features.groups:
        raise typer.BadParameter("--entity needs feature groups, and the manifest has none; give --row")
    from tailcut.cli._inspection import LOADING, inspect

    name = subject.deployment.name if subject is not None else ""
    found = asyncio.run(inspect(models, name, wanted, given))
    reports = [seen.report for seen in found]
    write(_as_json(reports) if as_json else "\n\n".join("\n".join(_lines(report)) for report in reports))
    for seen in found:
        where = f"{seen.report.deployment}: " if len(found) > 1 else ""
        if seen.error is not None:
            print_error(f"{where}{seen.step}: {seen.error.explained}", seen.error.hint)
        elif seen.report.untried:
            note(f"{where}{_not_tried(seen.report)}")
        for warning in seen.report.warnings:
            note(f"{where}warning: {warning}")
    for seen in found:
        if seen.error is not None:
            raise typer.Exit(exit_code(seen.error) if seen.step in LOADING else ExitCode.FAILED)


def _models(
    given: list[Path] | None, model: str, settings: list[str] | None, variant: str | None, *, is_about_one: bool
) -> tuple[HostManifest, Manifest | None]:
    """Load the models that are checked, and the one that the flags are about; None where they are about none."""
    from tailcut.manifest.host import is_one_manifest
    from tailcut.manifest.subject import missing_of, refuse_missing

    if model or is_about_one or is_one_manifest(manifest_paths(given)):
        subject = load_subject(given, model, settings, variant)
        subject.refuse_missing()
        return subject.host, subject.manifest
    models = load_host(manifest_paths(given), settings)
    for need, folder in missing_of(models):
        for hosted in models.models:
            if hosted.error is not None:
                raise hosted.error  # it may be that one
        refuse_missing([need], folder)
    return models, None


def _not_tried(report: Report) -> str:
    stages = ", ".join(one.stage for one in report.untried)
    return f"not tried: {stages}; {'--entity' if report.groups_opened else '--row'} JSON tries every stage"


def _entity(text: str | None) -> object:
    import msgspec

    return msgspec.UNSET if text is None else _decoded(text, "--entity")


def _row(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    row = _decoded(text, "--row")
    if not isinstance(row, dict):
        raise typer.BadParameter(f"--row is {text!r}; it must be a JSON object, one value per feature column")
    return row


def _decoded(text: str, flag: str) -> object:
    import msgspec

    from tailcut.common.json_values import UNREADABLE, decode

    try:
        return decode(msgspec.json.Decoder(), text.encode("utf-8", "surrogateescape"))
    except UNREADABLE as error:
        raise typer.BadParameter(
            f"{flag} is {text!r}, which is not JSON: {error}; strings need double quotes"
        ) from None


def _as_json(reports: list[Report]) -> str:
    """One report, or those of several models under one."""
    import msgspec

    several = {"ok": all(report.ok for report in reports), "models": reports}
    encoded = msgspec.json.encode(several if len(reports) > 1 else reports[0], enc_hook=_plain)
    return msgspec.json.format(encoded, indent=2).decode()


def _plain(value: Any) -> Any:
    """A feature source's value as JSON: NumPy's as Python's, anything else as its text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _lines(report: Report) -> Iterator[str]:
    """The report for people: a label and what was seen, one thing per line."""
    origins = ", ".join(f"{count} from the {origin}" for origin, count in report.origins.items())
    yield _line("deployment", f"{report.deployment} ({origins or 'all defaults'}), {report.directory}")
    yield from _model(report)
    yield from _features(report)
    if report.inputs and report.origin in _ORIGINS:
        yield _line("row", _ORIGINS[report.origin])
    for label, tensors in (("inputs", report.inputs), ("outputs", report.outputs)):
        for tensor in tensors:
            shown = ", ".join(_short(value) for value in tensor.sample)
            yield _line(label, f"{tensor.name} {tensor.datatype} {tensor.shape}: {shown}")
    if report.outputs and any(step.name == "postprocess" for step in report.steps):
        yield _line("answer", bytes(report.answer).decode())
    yield _line("steps", ", ".join(f"{step.name} {step.ms:.2f} ms" for step in report.steps))
    if report.request is not None:
        stages = ", ".join(f"{name} {ms:.3f}" for name, ms in report.request.stages_ms.items())
        total = f"total {report.request.total_ms:.3f} ms, cache {report.request.cache}"
        yield _line("once more", f"{stages}, {total}")
    for one in report.untried:
        yield _line("not tried", f"{one.stage}: {one.what}")
    seen = "ok, except for the stages not tried" if report.untried else "ok"
    yield _line("result", seen if report.failure is None else f"failed at {report.failure.step}")


def _model(report: Report) -> Iterator[str]:
    if (seen := report.variant) is not None:
        yield _line(
            "variant",
            f"{seen.name} ({seen.runtime}), version {seen.version}, {seen.size_bytes:,} bytes, "
            f"SHA-256 {seen.sha256[:12]} as recorded",
        )
        if seen.refused:
            yield _line("", f"refused by the build: {seen.refused}")
        if report.unjudged:
            yield _line("", f"unjudged: {report.unjudged}")
    if report.executor:
        yield _line("executor", f"{report.executors} x {report.executor} ({report.executor_reason})")
        if report.rows_alone:
            yield _line("", "each row runs alone: other rows in its batch would change its answer")
        batches = ", ".join(f"{rows}: {ms:.2f} ms" for rows, ms in report.warm_up_ms.items())
        yield _line("batches", f"rows: median of the warm-up: {batches or 'not warmed up'}")


def _features(report: Report) -> Iterator[str]:
    if report.groups_opened and not report.groups:
        yield _line("features", f"opened: {', '.join(report.groups_opened)}")
    for group in report.groups:
        key = ", ".join(f"{name}={_short(value)}" for name, value in group.key.items())
        ttl = f"TTL {group.ttl_s:g} s" + (f" by {group.ttl}" if ":" in group.ttl else "")
        yield _line("features", f"{group.name} of {key}: {ttl}, source {group.source_ms:.2f} ms")
        yield _line("", ", ".join(f"{name}={_short(value)}" for name, value in group.values.items()))
    if report.fresh_for_s is not None:
        yield _line("", f"all fresh for {report.fresh_for_s:g} s")


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
