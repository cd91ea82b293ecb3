"""What ``tailcut profile`` does: read its flags, record the target, and work everything out of that."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast, get_args

import msgspec

import tailcut
from tailcut.cli._load_flags import objectives
from tailcut.cli.console import note, usage
from tailcut.cli.options import load_subject
from tailcut.cli.progress import ProgressLine
from tailcut.common.redaction import command_without_secrets
from tailcut.common.slo import Objectives
from tailcut.errors import ManifestError, ProfileError, TailcutError
from tailcut.manifest.host import is_one_manifest

if TYPE_CHECKING:
    from tailcut.load import LoadPlan
    from tailcut.manifest import Manifest
    from tailcut.manifest.subject import CommandSubject
    from tailcut.profiler.attribution.layers import ModelLayers
    from tailcut.profiler.child_channel import Loop
    from tailcut.profiler.layers.search import InputShape
    from tailcut.profiler.payload_log import PayloadLog
    from tailcut.profiler.payloads.diversity import Diversity
    from tailcut.profiler.records import Recording
    from tailcut.report.profile.json import Kind, ProfileReport

DEFAULT_RATE = 50.0


@dataclass(frozen=True)
class Wanted:
    """What was asked for.

    Attributes:
        kind, target: an application's reference, a URL, or the path of a manifest.
        subject: a deployment, or what an application's or a URL's traffic, set-up and SLO come from; None: none.
        plan: of the load; its ``url`` is the path, or the URL.
        slo: empty: the manifest's.
        directory: that an application is imported from and runs in.
        loop: the application's event loop.
        ready_s: longest wait for the application's start.
        layers: a model whose layers are wanted; empty: those that the target runs; None: none.
        shapes: of its inputs.
        log: of payloads, in which repeats are counted; None: the payloads.
        command: the command line, for the record.
    """

    kind: Kind
    target: str
    subject: CommandSubject | None
    plan: LoadPlan
    slo: Objectives
    directory: Path
    loop: Loop
    ready_s: float
    layers: str | None
    shapes: tuple[InputShape, ...]
    log: Path | None
    command: str

    @property
    def manifest(self) -> Manifest | None:
        """Of the subject; None where there is none."""
        return self.subject.manifest if self.subject is not None else None


def kind_of(target: str) -> Kind:
    """Tell an application ("module:attribute"), a URL and a deployment (a path) apart."""
    if target.lower().startswith(("http://", "https://")):
        return "url"
    path = Path(target or ".")
    if not target or path.is_dir() or path.suffix == ".toml":
        return "deployment"
    if ":" in target or path.suffix == ".py":
        return "pilot"  # a file's name too: who gave it is told how to write it
    raise ManifestError(
        f"{target!r} is neither an application nor a deployment nor a URL",
        hint="give module:attribute (for example app:app), a folder with a tailcut.toml, or http://...",
    )


def read_wanted(
    target: str,
    manifest: list[Path] | None,
    model: str,
    settings: list[str] | None,
    plan: LoadPlan,
    slo: str,
    app_dir: Path,
    loop: str,
    ready_s: float,
    layers: str,
    shape: list[str] | None,
    log: Path | None,
) -> Wanted:
    """Put together what was asked for, and what the manifest adds to it."""
    kind = kind_of(target)
    paths = _manifest_paths(kind, target, manifest)
    subject = load_subject(paths, model, settings, keep_unset=True) if paths else None
    loaded = subject.manifest if subject is not None else None
    if subject is not None and kind == "deployment":
        subject.refuse_missing()
    with usage():
        if kind == "pilot":
            _check_application(target, app_dir)
        return Wanted(
            kind=kind,
            target=target,
            subject=subject,
            plan=_plan(kind, target, plan, loaded),
            slo=objectives(slo),
            directory=app_dir,
            loop=_loop(loop),
            ready_s=ready_s,
            layers=None if layers == "off" else layers,
            shapes=read_shapes(shape or []),
            log=log,
            command=shlex.join(command_without_secrets(["tailcut", *sys.argv[1:]])),
        )


def _check_application(target: str, app_dir: Path) -> None:
    from tailcut.profiler.diagnosis import check_target

    check_target(target)
    if not app_dir.is_dir():
        raise ProfileError(f"there is no folder {app_dir}", hint="give the application's folder with --app-dir")


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
    import msgspec

    from tailcut.load.payloads import check_payloads
    from tailcut.load.plan import check_plan, parse_url

    changes: dict[str, object] = {}
    if plan.rate is None:
        changes["rate"] = manifest.deployment.slo.rate if manifest is not None else DEFAULT_RATE
    if plan.url and not plan.url.startswith("/"):
        changes["url"] = f"/{plan.url}"
    if manifest is not None:
        ladder = manifest.deployment.ladder
        if not plan.payloads and ladder.traffic:
            _importable(manifest)
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


def _importable(manifest: Manifest) -> None:
    """Put the manifest's folders on the import path, for its traffic."""
    folders = [str((manifest.directory / folder).resolve()) for folder in manifest.deployment.python_path]
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]


def _loop(name: str) -> Loop:
    from tailcut.profiler import child_channel

    if name in get_args(child_channel.Loop):
        return cast(child_channel.Loop, name)
    raise ManifestError(f"--loop is {name!r}", hint="use asyncio, uvloop, or auto (uvicorn's choice)")


def read_shapes(texts: list[str]) -> tuple[InputShape, ...]:
    """Read --shape texts.

    Raises:
        ManifestError: one is written otherwise.
    """
    from tailcut.profiler.layers.search import parse_shape

    try:
        return tuple(parse_shape(text) for text in texts)
    except ProfileError as error:
        raise ManifestError(f"--shape: {error.message}", hint=error.hint) from error


@dataclass(frozen=True)
class Recorded:
    """What was found.

    Attributes:
        recording: of the target.
        diversity: of its payloads; None where there are none.
        log: those that it rests on, each once; None where there are none.
        layers: of the models that it runs.
        notes: why there are no layers, where there are none, and of the payloads.
    """

    recording: Recording
    diversity: Diversity | None
    log: PayloadLog | None
    layers: tuple[ModelLayers, ...]
    notes: tuple[str, ...]


def record(asked: Wanted) -> Recorded:
    """Record the target; also find the slow layers, and say why there are none where there are none.

    Raises:
        TailcutError: it cannot be profiled.
    """
    with _around(asked) as environment, _sendable(asked) as wanted:
        with usage():
            log, said = _payloads(wanted)
        diversity = log.diversity() if log is not None else None
        given = _given_layers(wanted, environment)
        if wanted.kind == "pilot":
            recording = _pilot(wanted, environment)
        elif wanted.kind == "deployment":
            recording = _deployment(wanted, environment)
        else:
            from tailcut.profiler.outside import record_url

            with ProgressLine() as line:
                recording, _ = record_url(wanted.plan, on_progress=line.show)
        found, notes = _own_layers(wanted, recording, environment)
    return Recorded(recording, diversity, log, (*given, *found), (*said, *notes))


def only_layers(model: str, shapes: tuple[InputShape, ...], directory: Path) -> ModelLayers:
    """Time the layers of a model, and nothing else."""
    from tailcut.profiler.layers.search import LayersSpec, find_layers

    return find_layers(LayersSpec(model=model, shapes=shapes, folders=(str(directory.resolve()),)))


def report_of(wanted: Wanted, found: Recorded, *, levers: bool) -> ProfileReport:
    """Work everything out of a recording.

    Args:
        levers: say what each can win.
    """
    from tailcut.report.profile.json import advice_of, make_report

    slo = _slo(wanted)
    advice = None
    if levers and wanted.kind == "pilot":
        note("working out the gain of each lever")
        bodies, at_s = (found.log.bodies, found.log.at_s) if found.log is not None else ((), ())
        advice = advice_of(found.recording, slo, found.diversity, bodies, at_s)
    return make_report(
        found.recording,
        kind=wanted.kind,
        slo=slo,
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        tailcut=tailcut.__version__,
        command=wanted.command,
        advice=advice,
        diversity=found.diversity,
        layers=found.layers,
        notes=found.notes,
    )


def _slo(wanted: Wanted) -> Objectives:
    if wanted.manifest is None or wanted.slo.latency or wanted.slo.errors is not None:
        return wanted.slo
    from tailcut.ladder.climb import objectives_of

    return objectives_of(wanted.manifest.deployment)


@contextmanager
def _around(wanted: Wanted) -> Iterator[Mapping[str, str]]:
    """Enter the manifest's set-up, where the target needs it."""
    if wanted.manifest is None or wanted.kind == "url":
        yield {}
        return
    from tailcut.profiler.deployments.surroundings import surroundings

    with surroundings(wanted.manifest, note) as environment:
        yield environment


@contextmanager
def _sendable(wanted: Wanted) -> Iterator[Wanted]:
    """Where the payloads are a log with times, send what it holds, without the times."""
    file = Path(wanted.plan.payloads)
    if not wanted.plan.payloads or not file.is_file():
        yield wanted
        return
    from tailcut.profiler.payload_log import read_payload_log

    with usage("--payloads"):
        log = read_payload_log(file, rate=wanted.plan.rate or DEFAULT_RATE)
    if not log.timed:
        yield wanted
        return
    with TemporaryDirectory(prefix="tailcut-profile-") as folder:
        bare = Path(folder) / "payloads.jsonl"
        bare.write_bytes(b"\n".join(log.bodies))
        yield replace(wanted, plan=msgspec.structs.replace(wanted.plan, payloads=str(bare)), log=wanted.log or file)


def _pilot(wanted: Wanted, environment: Mapping[str, str]) -> Recording:
    from tailcut.profiler import pilot, plan

    load = wanted.plan
    return pilot.record(
        plan.PilotPlan(
            target=wanted.target, payloads=load.payloads, path=load.url, method=load.method, headers=load.headers,
            rate=load.rate or DEFAULT_RATE, duration_s=load.duration_s, warmup_s=load.warmup_s,
            timeout_s=load.timeout_s, directory=str(wanted.directory), environment=dict(environment),
            loop=wanted.loop, ready_s=wanted.ready_s, layers=wanted.layers == "", seed=load.seed,
            max_requests=plan.max_requests_for(_slo(wanted)),
        ),
        on_step=note,
    )  # fmt: skip


def _deployment(wanted: Wanted, environment: Mapping[str, str]) -> Recording:
    from tailcut.profiler.deployments.deployment import record_deployment

    assert wanted.subject is not None
    note(f"starting {wanted.subject.name}")
    with ProgressLine() as line:
        recording, _ = record_deployment(wanted.subject, wanted.plan, environment=environment, on_progress=line.show)
    return recording


def _given_layers(wanted: Wanted, environment: Mapping[str, str]) -> tuple[ModelLayers, ...]:
    """Find the layers of the model that was named, before the load: what is wrong with it shows at once."""
    if not wanted.layers:
        return ()
    from tailcut.profiler.layers.search import LayersSpec, find_layers

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
    from tailcut.profiler.layers.search import LayersSpec, find_layers

    note("timing the layers of the served variant")
    spec = LayersSpec(shapes=wanted.shapes, manifest=str(wanted.subject.file), overrides=wanted.subject.overrides)
    try:
        return (find_layers(spec, environment=environment),), ()
    except TailcutError as error:
        return (), (f"no slow layers: {error.explained}; {error.hint}",)


def _payloads(wanted: Wanted) -> tuple[PayloadLog | None, tuple[str, ...]]:
    """What is asked for, each payload once: the log, the file of payloads, or what their function yields."""
    from tailcut.load.plan import intended_times
    from tailcut.profiler.payload_log import read_payload_log, sent_payloads

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
