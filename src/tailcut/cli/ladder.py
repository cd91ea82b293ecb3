"""``tailcut ladder``: the before/after table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tailcut.cli.console import ExitCode, note, usage, write
from tailcut.cli.options import (
    FieldPairs,
    ManifestPaths,
    ModelName,
    Seed,
    Settings,
    command_line,
    examples,
    load_subject,
    numbers,
    seconds,
)
from tailcut.ladder import LadderOptions, climb
from tailcut.ladder import short as shortened
from tailcut.parity.analysis.mapping import parse_pair
from tailcut.report.document import terminal
from tailcut.report.ladder.document import ladder_document, write_reports
from tailcut.report.ladder.file import LadderRecord, load_ladder


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "ladder",
        epilog=examples(
            ("tailcut ladder", "measure every rung of ./tailcut.toml"),
            ("tailcut ladder --short --out /tmp/ladder", "a quick look"),
            ("tailcut ladder --only-rungs pilot,onnx --rate 100,400", "some rungs, other rates"),
            ("tailcut ladder --from ladder/ladder.json", "write the reports again"),
        ),
    )(ladder)


def ladder(
    manifest: ManifestPaths = None,
    model: ModelName = "",
    settings: Settings = None,
    rate: Annotated[
        str,
        typer.Option(
            metavar="R,R,...", help="Requests per second, beside the comfortable rate; empty: that one alone."
        ),
    ] = "200",
    rounds: Annotated[int | None, typer.Option(help="Measurements per rung.", show_default="3")] = None,
    duration: Annotated[str, typer.Option(help="Duration per rung, rate and round.", show_default="15s")] = "",
    short: Annotated[bool, typer.Option("--short", help="Fewer and shorter measurements.")] = False,
    only_rungs: Annotated[str, typer.Option(metavar="NAMES", help="Run only these rungs, separated by commas.")] = "",
    comfortable: Annotated[
        float | None, typer.Option(metavar="RATE", help="Comfortable rate; default: 70 % of the pilot's capacity.")
    ] = None,
    capacity: Annotated[bool, typer.Option(help="Search for the capacity of each rung.")] = True,
    parity: Annotated[
        int, typer.Option(metavar="N", help="Answers per rung that are compared with the pilot's; 0: none.")
    ] = 50,
    mapping: FieldPairs = None,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For reports, logs and raw samples.")] = Path("ladder"),
    from_file: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Write the reports of this ladder.json again.")
    ] = None,
) -> None:
    """Measure the pilot and then each rung, with one more lever per rung, under the same traffic.

    Writes ladder.json, ladder.md, ladder.html and ladder.png; prints the table to stdout. Exit code 1: a rung failed.
    """
    if from_file is not None:
        _report(load_ladder(from_file), from_file.parent)
        return
    with usage():
        options = LadderOptions(
            out=out, rates=numbers("--rate", rate, least=0.01) if rate else (),
            only=tuple(part.strip() for part in only_rungs.split(",") if part.strip()), seed=seed,
            command=command_line(), comfortable_rate=comfortable, capacity=capacity, parity=parity,
            pairs=tuple(map(parse_pair, mapping or ())),
        )  # fmt: skip
    options = shortened(options) if short else options
    if rounds is not None:
        options = msgspec.structs.replace(options, rounds=rounds)
    if duration:
        options = msgspec.structs.replace(options, duration_s=seconds("--duration", duration))
    record = climb(load_subject(manifest, model, settings, keep_unset=True), options, tell=note)
    _report(record, out)
    if any(rung.failed or rung.capacity_failed for rung in record.rungs):
        raise typer.Exit(ExitCode.FAILED)


def _report(record: LadderRecord, folder: Path) -> None:
    written, missing = write_reports(record, folder)
    write(terminal(ladder_document(record)))
    for path in written:
        note(f"wrote {path}")
    if missing:
        note(f"no picture: {missing}")
