"""``tailcut parity``: the pilot's answers beside the deployment's."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailcut.cli._load_flags import read_header, seconds
from tailcut.cli.console import ExitCode, check_files, note, usage, write
from tailcut.cli.options import AppFolder, FieldPairs, ManifestPaths, ModelName, Settings, examples, load_subject

if TYPE_CHECKING:
    from tailcut.manifest.subject import CommandSubject
    from tailcut.parity.plan import ParityPlan
    from tailcut.report.parity.file import ParityRecord


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "parity",
        epilog=examples(
            ("tailcut parity --pilot pilot.app:app --payloads log.jsonl", "an application, started here"),
            ("tailcut parity --pilot http://127.0.0.1:8000/predict --payloads log.jsonl", "a running pilot"),
            ("tailcut parity", "the pilot and the traffic of the manifest's [ladder]"),
            (
                "tailcut parity --pilot pilot:app --payloads log.jsonl --map 'scores[].late=risk'",
                "an explicit mapping of fields",
            ),
            ("tailcut parity --from parity.json --html parity.html", "an HTML page from a stored comparison"),
        ),
    )(parity)


def parity(
    manifest: ManifestPaths = None,
    model: ModelName = "",
    settings: Settings = None,
    pilot: Annotated[
        str,
        typer.Option(
            metavar="URL_OR_APP",
            help="A URL, or module:attribute of an ASGI application, which is then started.",
            show_default="the manifest's ladder.pilot",
        ),
    ] = "",
    payloads: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help="The pilot's request bodies: a .jsonl file with one per line, or module:callable "
            "(seed) that yields them.",
            show_default="the manifest's ladder.traffic",
        ),
    ] = "",
    path: Annotated[
        str, typer.Option(help="The pilot's route.", show_default="the URL's, or the only POST route")
    ] = "",
    header: Annotated[
        list[str] | None, typer.Option(metavar="'NAME: VALUE'", help="Header of requests to the pilot; repeatable.")
    ] = None,
    requests: Annotated[int, typer.Option(help="Maximum number of requests.")] = 500,
    concurrency: Annotated[int, typer.Option(help="Concurrent requests.")] = 1,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Compare this variant, and judge its values; repeatable.",
            show_default="all servable variants",
        ),
    ] = None,
    deployment: Annotated[
        str, typer.Option(metavar="URL", help="Compare a running deployment instead of starting variants.")
    ] = "",
    deployment_header: Annotated[
        list[str] | None,
        typer.Option(metavar="'NAME: VALUE'", help="Header of requests to --deployment; repeatable."),
    ] = None,
    request: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FORM",
            help="Where the pilot's request holds the deployment's input: entities=PATH, rows=PATH, or rows.FIELD=PATH"
            " once per field.",
            show_default="by the payload's field names",
        ),
    ] = None,
    mapping: FieldPairs = None,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=ABS,REL",
            help="Numbers are equal within ABS + REL of the pilot's value; without a field: all outputs. Two"
            " integers are equal exactly, unless their field is named. float32 has 7 digits, of which sums in another"
            " order lose up to three; near 0 the absolute part counts.",
            show_default="1e-5,1e-4",
        ),
    ] = None,
    timeout: Annotated[str, typer.Option(help="Time limit of one request.")] = "30s",
    app_dir: AppFolder = Path("."),
    ready: Annotated[str, typer.Option(help="Maximum start time of the pilot and of each variant.")] = "120s",
    causes: Annotated[bool, typer.Option("--causes/--no-causes", help="Look for the causes of differences.")] = True,
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the whole result as JSON.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the result as an HTML page.")] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Show a comparison written by --json; sends nothing.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of payloads from module:callable.")] = 0,
) -> None:
    """Send the same requests to the pilot and to the deployment, and compare their answers.

    Each servable variant is compared in turn, with prediction and feature caches off unless --set turns one on. Fields
    of the replies are compared where their names are equal, or as --map says. Where answers differ, tailcut looks for
    the cause in the inputs of the model, where the pilot is an application.
    Exit code 0: equal; 1: answers differ; 2: wrong flag, or a wrong file named by a flag; 3: one side could not be
    reached, no answers could be compared, or fields of both sides have no pair.
    """
    from tailcut.report.parity.file import load_parity

    with usage():
        check_files(json_path, html)
        if from_ is not None:
            record = load_parity(from_)
    if from_ is None:
        from tailcut.common.redaction import command_without_secrets
        from tailcut.parity.analysis.mapping import parse_pair
        from tailcut.parity.analysis.request_form import parse_form
        from tailcut.parity.analysis.tolerance import parse_tolerance
        from tailcut.parity.plan import ParityPlan

        sys.path[:0] = [str(app_dir.resolve()), ""]  # payload modules of the application's and of the current folder
        with usage():
            plan = ParityPlan(
                pilot=pilot,
                payloads=payloads,
                path=path,
                requests=requests,
                concurrency=concurrency,
                variants=tuple(variant or ()),
                deployment=deployment,
                pairs=tuple(parse_pair(text) for text in mapping or ()),
                form=parse_form(request) if request else None,
                tolerances=dict(parse_tolerance(text) for text in tolerance or ()),
                headers=tuple(read_header(text) for text in header or ()),
                deployment_headers=tuple(read_header(text) for text in deployment_header or ()),
                timeout_s=seconds("--timeout", timeout),
                directory=app_dir.resolve(),
                ready_s=seconds("--ready", ready),
                seed=seed,
                explain=causes,
                command=shlex.join(command_without_secrets(["tailcut", *sys.argv[1:]])),
            )
        record = _run(load_subject(manifest, model, settings, keep_unset=True), plan)
    _show(record, json_path, html)
    if not record.equal:
        raise typer.Exit(ExitCode.FAILED)


def _run(subject: CommandSubject, plan: ParityPlan) -> ParityRecord:
    from tailcut.parity.run import run

    return run(subject, plan, tell=note)


def _show(record: ParityRecord, json_path: Path | None, html: Path | None) -> None:
    from tailcut.report.document import terminal
    from tailcut.report.html import html as page
    from tailcut.report.parity.document import parity_document
    from tailcut.report.parity.file import save_parity
    from tailcut.system.atomic_files import write_file

    document = parity_document(record)
    if json_path is not None:
        save_parity(record, json_path)
        note(f"wrote {json_path}")
    if html is not None:
        write_file(html, page(document).encode())
        note(f"wrote {html}")
    write(terminal(document))
