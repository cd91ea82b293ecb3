"""``tailcut profile``: where the milliseconds of an application, a deployment or a URL go."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, cast

import msgspec
import typer

import tailcut
from tailcut.cli.console import ExitCode, check_files, note, save_json, save_page, usage, write
from tailcut.cli.options import (
    AppFolder,
    Headers,
    HtmlFile,
    JsonFile,
    ManifestPaths,
    Method,
    ModelName,
    ReadyTime,
    ResultFile,
    Seed,
    ServicePath,
    Settings,
    Timeout,
    Warmup,
    command_line,
    examples,
    load_subject,
    objectives,
    one_of,
    payloads_option,
    rate_option,
    read_headers,
    seconds,
    slo_option,
)
from tailcut.cli.progress import ProgressLine
from tailcut.errors import ManifestError, ProfileError, TailcutError
from tailcut.load import LoadPlan
from tailcut.load.payloads import check_payloads
from tailcut.load.plan import check_plan, intended_times, parse_url
from tailcut.load.surroundings import surroundings
from tailcut.manifest import Manifest
from tailcut.manifest.host import is_one_manifest
from tailcut.manifest.references import folders_of
from tailcut.manifest.subject import CommandSubject
from tailcut.profiler import pilot
from tailcut.profiler import plan as pilot_plan
from tailcut.profiler.attribution.layers import ModelLayers
from tailcut.profiler.child_channel import Loop
from tailcut.profiler.deployments.deployment import record_deployment
from tailcut.profiler.diagnosis import check_target
from tailcut.profiler.layers.search import InputShape, LayersSpec, find_layers, parse_shape
from tailcut.profiler.outside import record_url
from tailcut.profiler.payload_log import PayloadLog, read_payload_log, sent_payloads
from tailcut.profiler.records import Recording, save_recording
from tailcut.report.document import Document, terminal
from tailcut.report.profile.document import layers_section, profile_document
from tailcut.report.profile.json import Kind, ProfileReport, advice_of, load_report, make_report

DEFAULT_RATE = 50.0


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
    payloads: Annotated[str, payloads_option("the manifest's ladder.traffic, else requests without a body")] = "",
    rate: Annotated[float | None, rate_option("the manifest's slo.rate, else 50")] = None,
    duration: Annotated[
        str,
        typer.Option(
            help="Duration of the recording at most; an application's stops after 1,000 requests, or as many as the "
            "percentiles in --slo need."
        ),
    ] = "12s",
    warmup: Warmup = "2s",
    slo: Annotated[str, slo_option("the manifest's, if any")] = "",
    path: ServicePath = "",
    method: Method = "",
    header: Headers = None,
    timeout: Timeout = "10s",
    app_dir: AppFolder = Path("."),
    ready: ReadyTime = "120s",
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
    json_path: JsonFile = None,
    html: HtmlFile = None,
    raw: Annotated[Path | None, typer.Option(metavar="FILE", help="Write traced requests, spans and samples.")] = None,
    from_: ResultFile = None,
    seed: Seed = 0,
) -> None:
    """Show where the time goes, how much each lever would save, and which levers do not pay.

    An ASGI application runs unchanged, in its own process, under open-loop load. A deployment is served and loaded.
    A URL is measured from the client, with the stages of its Server-Timing header. Exit code 0: profiled, SLO met or
    not given; 1: SLO missed; 2: wrong flag, or a wrong file named by a flag; 3: the target could not be profiled.
    """
    if from_ is not None:
        with usage():
            _refuse_others(
                context, "--from, which shows a stored profile", {"from_", "html"},
                "leave them out; only --html works with --from",
            )  # fmt: skip
            check_files(html)
            report = load_report(from_)
        raise typer.Exit(_show(report, None, html))
    if manifest is None and (usual := os.environ.get("TAILCUT_MANIFEST")):
        manifest = [Path(usual)]
    with usage("--shape"):
        shapes = tuple(map(parse_shape, shape or ()))
    if not target and manifest is None and layers not in {"", "off"}:
        with usage():
            _refuse_others(
                context, "--layers alone", {"layers", "shape", "app_dir", "json_path"},
                "name a target, or leave them out; --shape, --app-dir and --json go with --layers",
            )  # fmt: skip
            check_files(json_path)
        found = find_layers(LayersSpec(model=layers, shapes=shapes, folders=(str(app_dir.resolve()),)))
        write(terminal(Document(title="", sections=(layers_section(found),))))
        save_json(found, json_path)
        return
    sys.path[:0] = [str(app_dir.resolve()), ""]  # payload modules of the application's and of the current folder
    with usage():
        plan = LoadPlan(
            url=path,
            rate=rate,
            duration_s=seconds("--duration", duration),
            warmup_s=seconds("--warmup", warmup),
            payloads=payloads,
            method=method,
            headers=read_headers(header),
            timeout_s=seconds("--timeout", timeout),
            slo=objectives(slo),
            seed=seed,
        )
        check_files(json_path, html, raw)
        ready_s = seconds("--ready", ready)
        kind = kind_of(target)
        paths = _manifest_paths(kind, target, manifest)
        subject = load_subject(paths, model, settings, keep_unset=True) if paths else None
        if subject is not None and kind == "deployment":
            subject.refuse_missing()
        if kind == "pilot":
            check_target(target)
            if not app_dir.is_dir():
                raise ProfileError(f"there is no folder {app_dir}", hint="give the application's folder with --app-dir")
        wanted = Wanted(
            kind=kind,
            target=target,
            subject=subject,
            plan=_plan(kind, target, plan, subject.manifest if subject is not None else None),
            directory=app_dir,
            loop=cast(Loop, one_of("--loop", loop, "asyncio", "uvloop", "auto")),
            ready_s=ready_s,
            layers=None if layers == "off" else layers,
            shapes=shapes,
            log=log,
        )
    raise typer.Exit(_show(_profile(wanted, raw, levers=levers), json_path, html))


def _refuse_others(context: typer.Context, what: str, allowed: Collection[str], hint: str) -> None:
    """Refuse what else stands on the command line: it would be left out without a word.

    Args:
        what: is done alone.
        allowed: names of the parameters that go with it.
    """
    sources = {one: context.get_parameter_source(one.name or "") for one in context.command.params}
    given = [
        max(one.opts, key=len)
        for one, source in sources.items()
        if source is not None and source.name == "COMMANDLINE" and one.name not in allowed
    ]
    if given:
        raise ManifestError(f"{', '.join(given)} with {what}", hint=hint)


def _show(report: ProfileReport, json_path: Path | None, html: Path | None) -> ExitCode:
    # Before the text, so that the files are complete even if the reader of the text closes the pipe.
    save_json(report, json_path)
    save_page(profile_document(report), html)
    write(terminal(profile_document(report, longest=60)))
    return ExitCode.OK if report.met else ExitCode.FAILED


# -- What is profiled --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """What was asked for.

    Attributes:
        kind, target: an application's reference, a URL, or the path of a manifest.
        subject: a deployment, or what an application's or a URL's traffic, set-up and SLO come from; None: none.
        plan: of the load; its ``url`` is the path, or the URL.
        directory: that an application is imported from and runs in.
        loop: the application's event loop.
        ready_s: longest wait for the application's start.
        layers: a model whose layers are wanted; empty: those that the target runs; None: none.
        shapes: of its inputs.
        log: of payloads, in which repeats are counted; None: the payloads.
    """

    kind: Kind
    target: str
    subject: CommandSubject | None
    plan: LoadPlan
    directory: Path
    loop: Loop
    ready_s: float
    layers: str | None
    shapes: tuple[InputShape, ...]
    log: Path | None


def kind_of(target: str) -> Kind:
    """Tell an application ("module:attribute"), a URL and a deployment (a path) apart."""
    if target.lower().startswith(("http://", "https://")):
        return "url"
    path = Path(target or ".")
    if not target or path.is_dir() or path.suffix == ".toml":
        return "deployment"
    if ":" in target or path.suffix == ".py":
        return "pilot"  # a file's name too: starting it explains how a reference is written
    raise ManifestError(
        f"{target!r} is neither an application nor a deployment nor a URL",
        hint="give module:attribute (for example app:app), a folder with a tailcut.toml, or http://...",
    )


def _manifest_paths(kind: str, target: str, manifest: list[Path] | None) -> list[Path]:
    given = manifest or []
    if kind != "deployment":
        return given
    if target and any(path.resolve() != Path(target).resolve() for path in given):
        named = " ".join(f"--manifest {path}" for path in given)
        raise ManifestError(
            f"both {target} and {named} name a deployment",
            hint="give one of them; of several models name each with --manifest",
        )
    if not target and not given and is_one_manifest([Path()]) and not Path("tailcut.toml").is_file():
        raise ManifestError(
            "no target was given, and this folder has no tailcut.toml",
            hint="name what to profile: an application (app:app), a folder with a tailcut.toml, or a URL",
        )
    return [Path(target)] if target else given or [Path()]


def _plan(kind: str, target: str, plan: LoadPlan, manifest: Manifest | None) -> LoadPlan:
    """Fill in what the flags left open."""
    changes: dict[str, object] = {}
    if plan.rate is None:
        changes["rate"] = manifest.deployment.slo.rate if manifest is not None else DEFAULT_RATE
    if plan.url and not plan.url.startswith("/"):
        changes["url"] = f"/{plan.url}"
    if manifest is not None:
        ladder = manifest.deployment.ladder
        if not plan.slo.latency and plan.slo.errors is None:
            changes["slo"] = manifest.deployment.slo.objectives
        if not plan.payloads and ladder.traffic:
            sys.path[:0] = [folder for folder in folders_of(manifest) if folder not in sys.path]
            changes["payloads"] = ladder.traffic
        if not plan.url and kind == "pilot":
            changes["url"] = ladder.pilot_path
    if kind == "url":
        if plan.url:
            raise ManifestError(f"--path {plan.url} was given together with a URL", hint="write the path into the URL")
        parse_url(target)
        changes["url"] = target
    if ":" not in plan.payloads or Path(plan.payloads).exists():
        check_payloads(plan)  # a function may need the set-up that is to come
    plan = msgspec.structs.replace(plan, **changes)
    check_plan(msgspec.structs.replace(plan, url=target if kind == "url" else "http://127.0.0.1:1/"))
    return plan


# -- How it is profiled ------------------------------------------------------------------------------------------------


def _profile(wanted: Wanted, raw: Path | None, *, levers: bool) -> ProfileReport:
    """Record the target and work everything out of the recording.

    Args:
        raw: file for the recording; None: none.
        levers: say what each can win.

    Raises:
        TailcutError: it cannot be profiled.
    """
    with _around(wanted) as environment:
        with usage():
            log, said = _payloads(wanted)
        diversity = log.diversity() if log is not None else None
        given = _given_layers(wanted, environment)
        if wanted.kind == "pilot":
            recording = _pilot(wanted, environment)
        elif wanted.kind == "deployment" and wanted.subject is not None:
            note(f"starting {wanted.subject.name}")
            with ProgressLine() as line:
                recording, _ = record_deployment(
                    wanted.subject, wanted.plan, environment=environment, on_progress=line.show
                )
        else:
            with ProgressLine() as line:
                recording, _ = record_url(wanted.plan, on_progress=line.show)
        own, notes = _own_layers(wanted, recording, environment)
    if raw is not None:
        save_recording(recording, raw)
        note(f"wrote {raw}")
    advice = None
    if levers and wanted.kind == "pilot":
        note("working out the gain of each lever")
        bodies, at_s = (log.bodies, log.at_s) if log is not None else ((), ())
        advice = advice_of(recording, wanted.plan.slo, diversity, bodies, at_s)
    return make_report(
        recording,
        kind=wanted.kind,
        slo=wanted.plan.slo,
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        tailcut=tailcut.__version__,
        command=command_line(),
        advice=advice,
        diversity=diversity,
        layers=(*given, *own),
        notes=(*said, *notes),
    )


@contextmanager
def _around(wanted: Wanted) -> Iterator[Mapping[str, str]]:
    """Enter the manifest's set-up, where the target needs it."""
    if wanted.subject is None or wanted.kind == "url":
        yield {}
        return
    with surroundings(wanted.subject.manifest, note) as (environment, _):
        yield environment


def _pilot(wanted: Wanted, environment: Mapping[str, str]) -> Recording:
    load = wanted.plan
    return pilot.record(
        pilot_plan.PilotPlan(
            target=wanted.target, payloads=load.payloads, path=load.url, method=load.method, headers=load.headers,
            rate=load.rate or DEFAULT_RATE, duration_s=load.duration_s, warmup_s=load.warmup_s,
            timeout_s=load.timeout_s, directory=str(wanted.directory), environment=dict(environment),
            loop=wanted.loop, ready_s=wanted.ready_s, layers=wanted.layers == "", seed=load.seed,
            max_requests=pilot_plan.max_requests_for(load.slo),
        ),
        on_step=note,
    )  # fmt: skip


def _given_layers(wanted: Wanted, environment: Mapping[str, str]) -> tuple[ModelLayers, ...]:
    """Find the layers of the model that was named, before the load: what is wrong with it shows at once."""
    if not wanted.layers:
        return ()
    note(f"timing the layers of {wanted.layers}")
    spec = LayersSpec(
        model=wanted.layers,
        shapes=wanted.shapes,
        manifest=str(wanted.subject.file) if wanted.subject is not None else "",
        overrides=wanted.subject.overrides if wanted.subject is not None else (),
        folders=(str(wanted.directory.resolve()),),
    )
    return (find_layers(spec, environment=environment or None),)


def _own_layers(
    wanted: Wanted, recording: Recording, environment: Mapping[str, str]
) -> tuple[tuple[ModelLayers, ...], tuple[str, ...]]:
    """Layers of the model that the target runs, where it can be had."""
    if wanted.layers != "":
        return (), ()
    if wanted.kind != "deployment" or wanted.subject is None:
        return recording.layers, ()
    note("timing the layers of the served variant")
    spec = LayersSpec(shapes=wanted.shapes, manifest=str(wanted.subject.file), overrides=wanted.subject.overrides)
    try:
        return (find_layers(spec, environment=environment),), ()
    except TailcutError as error:
        return (), (f"no slow layers: {error.explained}; {error.hint}",)


def _payloads(wanted: Wanted) -> tuple[PayloadLog | None, tuple[str, ...]]:
    """What is asked for, each payload once: the log, the file of payloads, or what their function yields."""
    plan = wanted.plan
    rate = plan.rate or DEFAULT_RATE
    if not plan.payloads:
        return (read_payload_log(wanted.log, rate=rate) if wanted.log else None), ()
    count = int(intended_times(plan).size)
    sent = sent_payloads(plan.payloads, rate=rate, count=count, seed=plan.seed)
    file = wanted.log or (Path(plan.payloads) if Path(plan.payloads).is_file() else None)
    times = count / len(sent.bodies)
    said = f"{len(sent.bodies)} payloads were sent {times:.3g} times over: what repeats only by that is counted nowhere"
    return sent if file is None else read_payload_log(file, rate=rate), (said,) if times > 1 else ()
