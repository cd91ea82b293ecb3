"""``tailcut check``: try the whole path once, and say what was seen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailcut.cli.console import ExitCode, exit_code, note, print_error, write
from tailcut.cli.options import DEFAULT_MANIFEST, ManifestPath, Settings, examples, load_manifest, manifest_option

if TYPE_CHECKING:
    from tailcut.cli._check_report import Report

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
            ("tailcut check --json | jq .request.stages_ms", "output for programs"),
        ),
    )(check)


def check(
    manifest: ManifestPath = DEFAULT_MANIFEST,
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
    stages are reported as not tried. Input limits that the source model proves and the manifest lacks are proposed,
    where that model can be loaded here. References that only build and ladder use (holdout.source, ladder.setup,
    ladder.traffic) are imported but not called.
    Exit code 0: everything works; 1: loaded, but the row or such a reference failed; 2, 3, 4: loading failed.
    """
    import msgspec

    wanted, given = _entity(entity), _row(row)
    loaded = load_manifest(manifest, settings, variant)
    groups = loaded.deployment.features.groups
    if wanted is not msgspec.UNSET and given is not None:
        raise typer.BadParameter("give --entity or --row, not both")
    if wanted is not msgspec.UNSET and not groups:
        raise typer.BadParameter("--entity needs feature groups, and the manifest has none; give --row")
    from tailcut.cli._inspection import LOADING, Inspection

    inspection = Inspection(loaded, wanted, given)
    try:
        error = asyncio.run(inspection.run())
    except Exception:
        note(f"failed at: {inspection.step}")
        raise
    report = inspection.report
    if error is None:
        from tailcut.cli._limits import undeclared

        report.limits = undeclared(loaded, inspection.inputs)
    write(_as_json(report) if as_json else "\n".join(_lines(report)))
    if error is not None:
        print_error(f"{inspection.step}: {error.explained}", error.hint)
        raise typer.Exit(exit_code(error) if inspection.step in LOADING else ExitCode.FAILED)
    if report.untried:
        stages = ", ".join(one.stage for one in report.untried)
        note(f"not tried: {stages}; {'--entity' if groups else '--row'} JSON tries every stage")


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


def _as_json(report: Report) -> str:
    import msgspec

    encoded = msgspec.json.encode(report, enc_hook=_plain)
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
    for bound in report.limits:
        from tailcut.cli._limits import text, where

        yield _line(
            "limit", f"{' '.join(filter(None, (bound.input, where(bound))))}: {text(bound)}; not in the manifest"
        )
    if report.references:
        yield _line("imported", f"{', '.join(report.references)} (not called)")
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
