"""What ``tailcut profile`` does once its flags are read: record the target, and work everything out of that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tailcut
from tailcut.cli.console import note
from tailcut.cli.progress import ProgressLine
from tailcut.core.slo import Objectives
from tailcut.errors import ManifestError, TailcutError

if TYPE_CHECKING:
    from tailcut.core.profiling.diversity import Diversity
    from tailcut.core.profiling.layers import ModelLayers
    from tailcut.core.profiling.records import Recording
    from tailcut.load import LoadPlan
    from tailcut.manifest import Manifest
    from tailcut.profile.layers import InputShape
    from tailcut.report.profile_json import Kind, ProfileReport

DEFAULT_RATE = 50.0


@dataclass(frozen=True)
class Wanted:
    """What was asked for.

    Attributes:
        kind, target: an application's reference, a URL, or the path of a manifest.
        manifest: of a deployment, or what an application's or a URL's traffic, set-up and SLO come from; None: none.
        manifest_path: where it was loaded from.
        overrides: over the manifest.
        plan: of the load; its ``url`` is the path, or the URL.
        slo: empty: the manifest's.
        directory: that an application is imported from and runs in.
        loop: the application's event loop.
        overhead: whether what profiling costs is measured.
        layers: a model whose layers are wanted; empty: those that the target runs; None: none.
        shapes: of its inputs.
        times: file with the time of each line of the payloads; None: none.
        command: the command line, for the record.
    """

    kind: Kind
    target: str
    manifest: Manifest | None
    manifest_path: Path
    overrides: tuple[str, ...]
    plan: LoadPlan
    slo: Objectives
    directory: Path
    loop: Literal["asyncio", "uvloop"]
    overhead: bool
    layers: str | None
    shapes: tuple[InputShape, ...]
    times: Path | None
    command: str


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
        f"{target!r} is no application, no deployment and no URL",
        hint="give module:attribute (such as app:app), a folder with a tailcut.toml, or http://...",
    )


@dataclass(frozen=True)
class Recorded:
    """What was found.

    Attributes:
        recording: of the target.
        diversity: of its payloads; None where there are none.
        layers: of the models that it runs.
        notes: why there are no layers, where there are none.
    """

    recording: Recording
    diversity: Diversity | None
    layers: tuple[ModelLayers, ...]
    notes: tuple[str, ...]


def record(wanted: Wanted) -> Recorded:
    """Record the target; also find the slow layers, and say why there are none where there are none.

    Raises:
        TailcutError: it cannot be profiled.
    """
    with _around(wanted) as environment:
        diversity = _diversity(wanted)
        given = _given_layers(wanted, environment)
        if wanted.kind == "pilot":
            recording = _pilot(wanted, environment)
        elif wanted.kind == "deployment":
            recording = _deployment(wanted, environment)
        else:
            from tailcut.profile.url import record_url

            with ProgressLine() as line:
                recording, _ = record_url(wanted.plan, on_progress=line.show)
        found, notes = _own_layers(wanted, recording, environment)
    return Recorded(recording, diversity, (*given, *found), notes)


def only_layers(model: str, shapes: tuple[InputShape, ...], directory: Path) -> ModelLayers:
    """Time the layers of a model, and nothing else."""
    from tailcut.profile.layers import LayersSpec, find_layers

    return find_layers(LayersSpec(model=model, shapes=shapes, folders=(str(directory.resolve()),)))


def report_of(wanted: Wanted, found: Recorded) -> ProfileReport:
    """Work everything out of a recording."""
    from tailcut.report.profile_json import make_report

    return make_report(
        found.recording,
        kind=wanted.kind,
        slo=_slo(wanted),
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        tailcut=tailcut.__version__,
        command=wanted.command,
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
    from tailcut.profile.surroundings import surroundings

    with surroundings(wanted.manifest, note) as environment:
        yield environment


def _pilot(wanted: Wanted, environment: Mapping[str, str]) -> Recording:
    from tailcut.profile.pilot import PilotPlan
    from tailcut.profile.pilot import record as record_pilot

    plan = wanted.plan
    return record_pilot(
        PilotPlan(
            target=wanted.target,
            payloads=plan.payloads,
            path=plan.url,
            method=plan.method,
            headers=plan.headers,
            rate=plan.rate or DEFAULT_RATE,
            duration_s=plan.duration_s,
            warmup_s=plan.warmup_s,
            timeout_s=plan.timeout_s,
            directory=str(wanted.directory),
            environment=dict(environment),
            loop=wanted.loop,
            overhead_rounds=3 if wanted.overhead else 0,
            seed=plan.seed,
        ),
        on_step=note,
    )


def _deployment(wanted: Wanted, environment: Mapping[str, str]) -> Recording:
    from tailcut.profile.deployment import record_deployment

    assert wanted.manifest is not None
    note(f"starting {wanted.manifest.deployment.name}")
    with ProgressLine() as line:
        recording, _ = record_deployment(
            wanted.manifest,
            wanted.manifest_path,
            wanted.plan,
            overrides=wanted.overrides,
            environment=environment,
            on_progress=line.show,
        )
    return recording


def _given_layers(wanted: Wanted, environment: Mapping[str, str]) -> tuple[ModelLayers, ...]:
    """Find the layers of the model that was named, before the load: what is wrong with it shows at once."""
    if not wanted.layers:
        return ()
    from tailcut.profile.layers import LayersSpec, find_layers

    note(f"timing the layers of {wanted.layers}")
    manifest = str(wanted.manifest_path.resolve()) if wanted.manifest is not None else ""
    spec = LayersSpec(
        model=wanted.layers,
        shapes=wanted.shapes,
        manifest=manifest,
        overrides=wanted.overrides,
        folders=(str(wanted.directory.resolve()),),
    )
    return (find_layers(spec, environment=environment or None),)


def _own_layers(
    wanted: Wanted, recording: Recording, environment: Mapping[str, str]
) -> tuple[tuple[ModelLayers, ...], tuple[str, ...]]:
    """Layers of the model that the target runs, where it can be had."""
    if wanted.layers != "":
        return (), ()
    if wanted.kind != "deployment":
        return getattr(recording, "layers", ()), ()
    from tailcut.profile.layers import LayersSpec, find_layers

    note("timing the layers of the served variant")
    spec = LayersSpec(shapes=wanted.shapes, manifest=str(wanted.manifest_path.resolve()), overrides=wanted.overrides)
    try:
        return (find_layers(spec, environment=environment),), ()
    except TailcutError as error:
        return (), (f"no slow layers: {error.explained}; {error.hint}",)


def _diversity(wanted: Wanted) -> Diversity | None:
    """How alike the payloads are: of the whole log where they are a file, else of those that were sent."""
    from tailcut.core.profiling.diversity import read_diversity, sample_for

    payloads = wanted.plan.payloads
    if not payloads:
        return None
    if not Path(payloads).is_file():
        times, bodies = sent(wanted)
        return read_diversity(zip(times, bodies, strict=True), timed=False, sample=sample_for(len(bodies)))
    lines = [line.strip() for line in Path(payloads).read_bytes().splitlines() if line.strip()]
    logged = _times(wanted, len(lines))
    laid = [number / (wanted.plan.rate or DEFAULT_RATE) for number in range(len(lines))] if logged is None else logged
    return read_diversity(zip(laid, lines, strict=True), timed=logged is not None, sample=sample_for(len(lines)))


def sent(wanted: Wanted) -> tuple[list[float], list[bytes]]:
    """When each request of the run was due, in seconds, and its body; by the requests' numbers."""
    from tailcut.load.payloads import build_requests
    from tailcut.load.plan import Target, intended_times

    times = intended_times(wanted.plan)
    anywhere = Target(host="127.0.0.1", port=1, path="/", tls=False)
    requests = build_requests(wanted.plan, anywhere, int(times.size))
    return (times / 1e9).tolist(), [request.partition(b"\r\n\r\n")[2] for request in requests]


def _times(wanted: Wanted, count: int) -> list[float] | None:
    """When each line of the log was sent; None where nobody says it."""
    if wanted.times is None:
        return None
    from tailcut.load.plan import read_trace

    found: list[float] = read_trace(wanted.times).tolist()
    if len(found) != count or any(later < before for before, later in pairwise(found)):
        raise ManifestError(
            f"--times {wanted.times} has {len(found)} times, --payloads {wanted.plan.payloads} has {count} bodies",
            hint="one time per body, in seconds, never going back",
        )
    return found
