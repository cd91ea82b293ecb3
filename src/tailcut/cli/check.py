"""``tailcut check``: try the whole path once, stage by stage, then once more as a request; and say what was seen."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Annotated, Any, Literal

import msgspec
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
from tailcut.common.json_values import UNREADABLE, decode
from tailcut.common.tensors import DATATYPE_OF, Arrays
from tailcut.common.timings import STAGE_NAMES
from tailcut.errors import InferenceError, TailcutError
from tailcut.features import FeatureService
from tailcut.manifest import Deployment, FeatureGroup, Manifest, parse_duration, resolve
from tailcut.manifest.host import HostManifest, is_one_manifest
from tailcut.manifest.subject import in_order, missing_of, refuse_missing
from tailcut.pipeline.request_context import RequestContext
from tailcut.pipeline.row_transform import encode_answer, limited_inputs
from tailcut.protocol.auth import Guard
from tailcut.protocol.data_plane import DataPlane
from tailcut.serving.deployment_loader import Opened, find_variant
from tailcut.serving.engine import Engine
from tailcut.serving.host import Host
from tailcut.serving.observation import check_observation, unwritable

_LOADING = ("manifest", "artifact", "load", "server")
"""The steps that need no row: what fails here is the deployment's set-up and not an answer."""
_PATIENCE_S = 30.0
"""For the first row: a cold database is slow once, which the SLO's timeout is not about."""
_STOP_S = 2.0
_SAMPLE = 6
_LABEL = 14
_ORIGINS = {"kept row": "of the holdout, kept by the build", "example tensors": "invented"}
_LONGEST_VALUE = 40

Origin = Literal["entity", "row", "kept row", "example tensors"]


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
    wanted = msgspec.UNSET if entity is None else _decoded(entity, "--entity")
    given = _row(row)
    if wanted is not msgspec.UNSET and given is not None:
        raise typer.BadParameter("give --entity or --row, not both")
    is_about_one = wanted is not msgspec.UNSET or given is not None or variant is not None
    models, subject = _models(manifest, model, settings, variant, is_about_one=is_about_one)
    if wanted is not msgspec.UNSET and subject is not None and not subject.deployment.features.groups:
        raise typer.BadParameter("--entity needs feature groups, and the manifest has none; give --row")
    name = subject.deployment.name if subject is not None else ""
    found = asyncio.run(inspect(models, name, wanted, given))
    reports = [report for report, _ in found]
    write(_as_json(reports) if as_json else "\n\n".join("\n".join(_lines(report)) for report in reports))
    for report in reports:
        where = f"{report.deployment}: " if len(found) > 1 else ""
        if report.failure is not None:
            print_error(f"{where}{report.failure.step}: {report.failure.message}", report.failure.hint)
        elif report.untried:
            stages = ", ".join(one.stage for one in report.untried)
            flag = "--entity" if report.groups_opened else "--row"
            note(f"{where}not tried: {stages}; {flag} JSON tries every stage")
        for warning in report.warnings:
            note(f"{where}warning: {warning}")
    for report, error in found:
        if report.failure is not None and error is not None:
            raise typer.Exit(exit_code(error) if report.failure.step in _LOADING else ExitCode.FAILED)


def _models(
    given: list[Path] | None, model: str, settings: list[str] | None, variant: str | None, *, is_about_one: bool
) -> tuple[HostManifest, Manifest | None]:
    """Load the models that are checked, and the one that the flags are about; None where they are about none."""
    if model or is_about_one or is_one_manifest(manifest_paths(given)):
        subject = load_subject(given, model, settings, variant)
        subject.refuse_missing()
        return subject.host, subject.manifest
    models = load_host(manifest_paths(given), settings)
    if missing := missing_of(models):
        for hosted in models.models:
            hosted.loaded()  # it may be that one
        refuse_missing(missing)
    return models, None


def _row(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    row = _decoded(text, "--row")
    if not isinstance(row, dict):
        raise typer.BadParameter(f"--row is {text!r}; it must be a JSON object, one value per feature column")
    return row


def _decoded(text: str, flag: str) -> object:
    try:
        return decode(msgspec.json.Decoder(), text.encode("utf-8", "surrogateescape"))
    except UNREADABLE as error:
        raise typer.BadParameter(
            f"{flag} is {text!r}, which is not JSON: {error}; strings need double quotes"
        ) from None


def _as_json(reports: list[Report]) -> str:
    """One report, or those of several models under one."""
    several = {"ok": all(report.ok for report in reports), "models": reports}
    encoded = msgspec.json.encode(several if len(reports) > 1 else reports[0], enc_hook=_plain)
    return msgspec.json.format(encoded, indent=2).decode()


def _plain(value: Any) -> Any:
    """A feature source's value as JSON: NumPy's as Python's, anything else as its text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


# -- The report for people ---------------------------------------------------------------------------------------------


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


# -- What is done and seen ---------------------------------------------------------------------------------------------


class Tensor(msgspec.Struct):
    """A tensor that went into or came out of the model."""

    name: str
    datatype: str
    shape: list[int]
    sample: list[Any]
    """The first few values of its first row."""


class GroupReport(msgspec.Struct):
    """What a feature group said about the entity."""

    name: str
    key: dict[str, Any]
    ttl_s: float
    ttl: str
    """As the manifest has it."""
    source_ms: float
    """Time spent in its source; 0 where it was read from a preloaded table."""
    values: dict[str, Any]


class Step(msgspec.Struct):
    """A step and how long it took."""

    name: str
    ms: float


class VariantReport(msgspec.Struct):
    """What is served."""

    name: str
    runtime: str
    version: str
    size_bytes: int
    sha256: str
    refused: str


class Request(msgspec.Struct):
    """The same row as a request, through the caches."""

    stages_ms: dict[str, float]
    total_ms: float
    cache: str


class Untried(msgspec.Struct):
    """A stage of serving that this row did not go through."""

    stage: str
    what: str
    """What of the manifest it would have run."""


class Failure(msgspec.Struct):
    """Where it failed and why."""

    step: str
    code: str
    message: str
    hint: str


class Report(msgspec.Struct):
    """Everything that was seen; what comes after a failure is empty. ``rows_alone``: each row runs alone."""

    deployment: str
    directory: str
    origins: dict[str, int]
    """How many values came from the file, the environment and flags."""
    origin: Origin
    ok: bool = False
    variant: VariantReport | None = None
    executor: str = ""
    executor_reason: str = ""
    executors: int = 0
    rows_alone: bool = False
    warm_up_ms: dict[int, float] = {}
    unjudged: str = ""
    """Why the build's verdict is not about the features that the model gets here."""
    groups_opened: list[str] = []
    groups: list[GroupReport] = []
    fresh_for_s: float | None = None
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    answer: msgspec.Raw = msgspec.Raw(b"null")
    steps: list[Step] = []
    request: Request | None = None
    untried: list[Untried] = []
    warnings: list[str] = []
    """What a server of this model would go on without."""
    failure: Failure | None = None

    def fail(self, step: str, error: TailcutError) -> None:
        """Say where it failed, and why."""
        self.ok = False
        self.failure = Failure(step, error.code, error.explained, error.hint)


class Inspection:
    """What ``tailcut check`` sees of one model.

    Args:
        engine: the model, not started yet; the caller stops it.
        entity: an entity to ask for; ``msgspec.UNSET`` for none.
        row: a feature row to send instead; None for none. Without either the model gets a row of the holdout that its
            version keeps, else an invented one.
    """

    def __init__(self, engine: Engine, entity: object = msgspec.UNSET, row: dict[str, Any] | None = None) -> None:
        manifest = engine.manifest
        origin: Origin = "entity" if entity is not msgspec.UNSET else "example tensors" if row is None else "row"
        counts = dict(Counter(manifest.origins.values()))
        self.report = Report(manifest.deployment.name, str(manifest.directory), counts, origin)
        self.report.untried = list(_untried(manifest.deployment, origin))
        self._at = ""
        self._manifest = manifest
        self._engine = engine
        self._entity = entity
        self._row = row

    async def run(self) -> TailcutError | None:
        """Load, and send the row through; returns the error that ended it, if one did."""
        try:
            opened = await self._load()
            await self._row_through(opened)
            self.report.ok = True
        except TailcutError as error:
            self.report.fail(self._at, error)
            return error
        except Exception:
            note(f"{self._manifest.deployment.name} failed at: {self._at}")
            raise
        return None

    async def _load(self) -> Opened:
        report, engine = self.report, self._engine
        with self._step("artifact"):
            seen = find_variant(self._manifest)
            report.variant = VariantReport(
                seen.name, seen.runtime, seen.version, seen.artifact.stat().st_size, seen.sha256, seen.refused
            )
        with self._step("load"):
            await engine.start()
            await engine.close_request_log()  # what is sent here is no client's
        opened = engine.opened
        report.executor, report.executors, report.rows_alone = (
            opened.warm.choice.executor,
            opened.executors,
            opened.rows_alone,
        )
        report.executor_reason = opened.warm.choice.reason
        report.unjudged = engine.unjudged
        report.warm_up_ms = {rows: _ms(ns) for rows, ns in opened.warm.warm_up_ns.items()}
        report.groups_opened = [group.name for group in self._manifest.deployment.features.groups]
        return opened

    async def _row_through(self, opened: Opened) -> None:
        """Send a row: the caller's, one that the version keeps, or an invented one, which the model may refuse."""
        report = self.report
        if report.origin == "example tensors" and opened.warm.examples.are_real:
            report.origin = "kept row"
        is_invented = report.origin == "example tensors"
        if is_invented and not opened.warm.warm_up_ns:
            report.untried.append(
                Untried("infer", "the model refuses the invented row, and its version keeps no holdout rows")
            )
            return
        try:
            await self._stages(opened)
        except InferenceError as error:
            if not is_invented:
                raise
            report.untried.append(Untried("infer", f"the model fails on the invented row: {error.message}"))
            return
        with self._step("request"):
            report.request = await self._request(opened)

    async def _stages(self, opened: Opened) -> None:
        """One step after the other, so that an error is the step's own."""
        pipeline, report = opened.pipeline, self.report
        rows = [self._row] if self._row is not None else []
        if self._entity is not msgspec.UNSET and pipeline.features is not None:
            with self._step("features"):
                rows = [await self._features(pipeline.features)]
        inputs = opened.warm.examples.batch(1)
        if rows:
            with self._step("preprocess"):
                limits = pipeline.serving.limits
                inputs = limited_inputs(pipeline.transform, limits, rows, from_client=report.origin == "row")
        report.inputs = _tensors(inputs)
        with self._step("infer"), _call(self._engine, _PATIENCE_S) as context:
            outputs = await pipeline.infer(context, inputs, 1, pipeline.outputs)
        report.outputs = _tensors(outputs)
        with self._step("postprocess"):
            report.answer = msgspec.Raw(encode_answer(pipeline.transform.answers(outputs, 1)[0]))

    async def _features(self, features: FeatureService) -> dict[str, Any]:
        key = features.parse_entity(self._entity)
        found = await features.fetch([key], "", time.monotonic() + _PATIENCE_S)
        row = found.rows[0]
        spent_s = {group.name: group.source_s for group in features.statistics().groups}
        self.report.groups = [
            self._group(group, row, spent_s[group.name]) for group in self._manifest.deployment.features.groups
        ]
        self.report.fresh_for_s = round(found.fresh_for_s[0], 3)
        return row

    def _group(self, group: FeatureGroup, row: dict[str, Any], source_s: float) -> GroupReport:
        key = {column: row[column] for column in group.key}
        values = {column: row[column] for column in group.columns}
        is_called = ":" in group.ttl
        ttl_s = (
            resolve(group.ttl, self._manifest)(tuple(key.values()), values) if is_called else parse_duration(group.ttl)
        )
        return GroupReport(group.name, key, float(ttl_s), group.ttl, round(source_s * 1e3, 3), values)

    async def _request(self, opened: Opened) -> Request:
        pipeline = opened.pipeline
        with _call(self._engine) as context:
            if self._entity is not msgspec.UNSET:
                await pipeline.predict_entities(context, [self._entity])
            elif self._row is not None:
                await pipeline.predict_rows(context, [self._row])
            else:
                await pipeline.infer(context, opened.warm.examples.batch(1), 1, pipeline.outputs)
        timings = context.timings
        stages_ms = {name: _ms(ns) for name, ns in zip(STAGE_NAMES, timings.ns, strict=True) if ns}
        return Request(stages_ms, _ms(timings.total_ns), context.cache)

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        self._at = name
        started_s = perf_counter()
        yield
        self.report.steps.append(Step(name, round((perf_counter() - started_s) * 1e3, 3)))


Inspected = tuple[Report, TailcutError | None]
"""What was seen of one model, and the error that ended it, if one did."""


async def inspect(
    models: HostManifest, name: str, entity: object = msgspec.UNSET, row: dict[str, Any] | None = None
) -> list[Inspected]:
    """Inspect models one after the other, each after those that compute its features, which stay loaded meanwhile.

    Args:
        models: all of them; one whose manifest cannot be read has failed.
        name: of the model that ``entity`` and ``row`` are for; see ``Inspection``.
    """
    host = Host(models)
    DataPlane(host)  # through which models ask each other for features
    found: list[Inspected] = []
    try:
        for hosted in in_order(models):
            try:
                hosted.loaded()
            except TailcutError as error:
                report = Report(hosted.name, str(hosted.file.parent), {}, "example tensors")
                report.fail("manifest", error)
                found.append((report, error))
                continue
            mine = (entity, row) if hosted.name == name else ()
            inspection = Inspection(host.engine(hosted.name), *mine)
            found.append((inspection.report, await inspection.run()))
    finally:
        await host.stop(_STOP_S)
    _try_server(models, found)
    return found


def _try_server(models: HostManifest, found: list[Inspected]) -> None:
    """Read what a server of these models needs besides them; an error is that of the first model without one.

    What it could not write is a warning of the model that it is of, or of the first one.
    """
    for model, warning in unwritable(models):
        next((report for report, _ in found if report.deployment == model), found[0][0]).warnings.append(warning)
    try:
        Guard.of(models)
        check_observation(models)
    except TailcutError as error:
        for place, (report, earlier) in enumerate(found):
            if earlier is None:
                report.fail("server", error)
                found[place] = report, error
                return


def _untried(deployment: Deployment, origin: Origin) -> Iterator[Untried]:
    groups = ", ".join(group.name for group in deployment.features.groups)
    if groups and origin != "entity":
        yield Untried("features", groups)
        if deployment.cache.entity.enabled:
            yield Untried("entity cache", "cache.entity")
    if origin == "example tensors":
        columns = ", ".join(tensor.name for tensor in deployment.model.inputs if tensor.columns)
        if deployment.model.preprocess or columns:
            yield Untried("preprocess", deployment.model.preprocess or f"the columns of {columns}")


@contextmanager
def _call(engine: Engine, timeout_s: float = 0.0) -> Iterator[RequestContext]:
    """One request of the engine, begun and ended; with the SLO's timeout where none is given."""
    context = engine.begin("check", perf_counter_ns(), int(timeout_s * 1e9))
    outcome = "internal"
    try:
        yield context
        outcome = "ok"
    except TailcutError as error:
        outcome = error.code
        raise
    finally:
        engine.end(context, outcome)


def _tensors(arrays: Arrays) -> list[Tensor]:
    return [
        Tensor(
            name,
            DATATYPE_OF.get(array.dtype, str(array.dtype)),
            list(array.shape),
            array[:1].ravel()[:_SAMPLE].tolist(),
        )
        for name, array in arrays.items()
    ]


def _ms(ns: float) -> float:
    return round(ns / 1e6, 4)
