"""``tailcut profile``: where the milliseconds of an application, a deployment or a URL go."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tailcut.cli._load_flags import read_header, seconds
from tailcut.cli.console import ExitCode, check_files, note, usage, write
from tailcut.cli.options import AppFolder, ManifestPaths, ModelName, Settings, examples
from tailcut.errors import ManifestError

if TYPE_CHECKING:
    from tailcut.cli._profiling import Wanted
    from tailcut.profiler.layers.search import InputShape
    from tailcut.report.profile.json import ProfileReport


class Alone(NamedTuple):
    """Something that is done without the rest: what it is called, and the names of the parameters that go with it."""

    what: str
    allowed: tuple[str, ...]
    hint: str


_KEPT = Alone(
    "--from, which shows a stored profile", ("from_", "html"), "leave them out; only --html works with --from"
)
_LAYERS = Alone(
    "--layers alone",
    ("layers", "shape", "app_dir", "json_path", "html"),
    "name a target, or leave them out; --shape, --app-dir and --json go with --layers",
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "profile",
        epilog=examples(
            ("tailcut profile app:app --payloads bodies.jsonl --slo p95=25ms", "an unchanged ASGI application"),
            (
                "tailcut profile app:app --path /predict --payloads bodies.jsonl --rate 50 --html profile.html",
                "as an HTML page",
            ),
            ("tailcut profile", "the deployment of ./tailcut.toml, from its own timings"),
            ("tailcut profile pilot.app:app -m tailcut.toml", "a pilot, with the manifest's traffic, setup and SLO"),
            (
                "tailcut profile http://127.0.0.1:8000/predict --payloads bodies.jsonl",
                "a URL, measured from the client",
            ),
            ("tailcut profile --from profile.json --html profile.html", "an HTML page from a stored profile"),
        ),
    )(profile)


def profile(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="module:attribute of an ASGI application, a tailcut.toml or its folder, or a URL.",
            show_default="./tailcut.toml",
        ),
    ] = "",
    payloads: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help="Request bodies: a .jsonl file with one per line, or module:callable (seed) that yields them.",
            show_default="the manifest's ladder.traffic, else requests without a body",
        ),
    ] = "",
    rate: Annotated[
        float | None, typer.Option(help="Requests per second.", show_default="the manifest's slo.rate, else 50")
    ] = None,
    duration: Annotated[
        str,
        typer.Option(
            help="Duration of the recording at most; an application's stops after 1,000 requests, or as many as the "
            "percentiles in --slo need."
        ),
    ] = "12s",
    warmup: Annotated[str, typer.Option(help="Load before the recording; not counted.")] = "2s",
    slo: Annotated[
        str,
        typer.Option(
            metavar="OBJECTIVES", help="SLO, for example p95=25ms,errors=0.1%.", show_default="the manifest's"
        ),
    ] = "",
    path: Annotated[
        str,
        typer.Option(
            help="Path that receives the requests, for example /predict.",
            show_default="the only suitable route, or the URL's",
        ),
    ] = "",
    method: Annotated[str, typer.Option(help="HTTP method.", show_default="POST with payloads, else GET")] = "",
    header: Annotated[
        list[str] | None, typer.Option(metavar="'NAME: VALUE'", help="Request header; repeatable.")
    ] = None,
    timeout: Annotated[str, typer.Option(help="A request fails this long after its intended send time.")] = "10s",
    app_dir: AppFolder = Path("."),
    ready: Annotated[str, typer.Option(help="Maximum start time of the application.")] = "60s",
    loop: Annotated[
        str,
        typer.Option(metavar="NAME", help="The application's event loop: asyncio, uvloop, or auto (uvicorn's choice)."),
    ] = "auto",
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Count repeated requests in this log: JSON lines, {"time": ..., "payload": ...} or payloads only.',
            show_default="the payloads",
        ),
    ] = None,
    levers: Annotated[
        bool,
        typer.Option("--levers/--no-levers", help="Say what each lever can win."),
    ] = True,
    layers: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="Time the layers of this model: an .onnx file, or module:callable that returns a torch module; off: "
            "none. Without a target, only the layers are timed.",
            show_default="the model that the target runs",
        ),
    ] = "",
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DIMS", help="Shape of an input of that model, for example ids=1x128:INT64; repeatable."
        ),
    ] = None,
    manifest: ManifestPaths = None,
    model: ModelName = "",
    settings: Settings = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the whole result as JSON.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the result as an HTML page.")] = None,
    raw: Annotated[Path | None, typer.Option(metavar="FILE", help="Write traced requests, spans and samples.")] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Show a profile written by --json; runs nothing.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of arrivals and payloads.")] = 0,
) -> None:
    """Show where the time goes, how much each lever would save, and which levers do not pay.

    An ASGI application runs unchanged, in its own process, under open-loop load. A deployment is served and loaded.
    A URL is measured from the client, with the stages of its Server-Timing header. Exit code 0: profiled, SLO met or
    not given; 1: SLO missed; 2: wrong flag, or a wrong file named by a flag; 3: the target could not be profiled.
    """
    if from_ is not None:
        from tailcut.report.profile.json import load_report

        with usage():
            _refuse_others(context, _KEPT)
            check_files(html)
            report = load_report(from_)
        raise typer.Exit(_show(report, None, html))
    if manifest is None and (usual := os.environ.get("TAILCUT_MANIFEST")):
        manifest = [Path(usual)]
    if not target and manifest is None and layers not in {"", "off"}:
        from tailcut.cli._profiling import read_shapes

        with usage():
            _refuse_others(context, _LAYERS)
            check_files(json_path)
        raise typer.Exit(_only_layers(layers, read_shapes(shape or []), app_dir, json_path, html))
    from concurrent.futures import ThreadPoolExecutor  # noqa: F401  (not with a queue.py of the user's)

    from tailcut.cli._profiling import read_wanted
    from tailcut.load import LoadPlan

    sys.path[:0] = [str(app_dir.resolve()), ""]  # payload modules of the application's and of the current folder
    with usage():
        plan = LoadPlan(
            url=path,
            rate=rate,
            duration_s=seconds("--duration", duration),
            warmup_s=seconds("--warmup", warmup),
            payloads=payloads,
            method=method,
            headers=tuple(read_header(text) for text in header or ()),
            timeout_s=seconds("--timeout", timeout),
            seed=seed,
        )
        check_files(json_path, html, raw)
        ready_s = seconds("--ready", ready)
    wanted = read_wanted(target, manifest, model, settings, plan, slo, app_dir, loop, ready_s, layers, shape, log)
    raise typer.Exit(_profile(wanted, levers, json_path, html, raw))


def _refuse_others(context: typer.Context, alone: Alone) -> None:
    """Refuse what else stands on the command line: it would be left out without a word."""
    sources = {one: context.get_parameter_source(one.name or "") for one in context.command.params}
    given = [
        max(one.opts, key=len)
        for one, source in sources.items()
        if source is not None and source.name == "COMMANDLINE" and one.name not in alone.allowed
    ]
    if given:
        raise ManifestError(f"{', '.join(given)} with {alone.what}", hint=alone.hint)


def _profile(wanted: Wanted, levers: bool, json_path: Path | None, html: Path | None, raw: Path | None) -> ExitCode:
    from tailcut.cli._profiling import record, report_of

    found = record(wanted)
    if raw is not None:
        from tailcut.profiler.records import save_recording

        save_recording(found.recording, raw)
        note(f"wrote {raw}")
    return _show(report_of(wanted, found, levers=levers), json_path, html)


def _only_layers(
    model: str, shapes: tuple[InputShape, ...], app_dir: Path, json_path: Path | None, html: Path | None
) -> ExitCode:
    import msgspec

    from tailcut.cli._profiling import only_layers
    from tailcut.report.document import Document, terminal
    from tailcut.report.profile.document import layers_section
    from tailcut.system.atomic_files import write_file

    if html is not None:
        raise ManifestError("--html with --layers alone", hint="an HTML page needs a target; --json writes the layers")
    found = only_layers(model, shapes, app_dir)
    write(terminal(Document(title="", sections=(layers_section(found),))))
    if json_path is not None:
        write_file(json_path, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        note(f"wrote {json_path}")
    return ExitCode.OK


def _show(report: ProfileReport, json_path: Path | None, html: Path | None) -> ExitCode:
    from tailcut.report.document import terminal
    from tailcut.report.html import html as page
    from tailcut.report.profile.document import profile_document
    from tailcut.report.profile.json import save_report
    from tailcut.system.atomic_files import write_file

    # Before the text, so that the files are complete even if the reader of the text closes the pipe.
    if json_path is not None:
        save_report(report, json_path)
        note(f"wrote {json_path}")
    if html is not None:
        write_file(html, page(profile_document(report)).encode())
        note(f"wrote {html}")
    write(terminal(profile_document(report, longest=60)))
    return ExitCode.OK if report.met else ExitCode.FAILED
