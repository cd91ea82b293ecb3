"""What ``tailcut check`` does and sees: one row, stage by stage, then once more as a request."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter, perf_counter_ns
from typing import Any, Literal, NamedTuple

import msgspec

from tailcut.cli.console import note
from tailcut.common.tensors import DATATYPE_OF, Arrays
from tailcut.common.timings import STAGE_NAMES
from tailcut.errors import InferenceError, ManifestError, TailcutError
from tailcut.features import FeatureService
from tailcut.manifest import Deployment, FeatureGroup, Manifest, parse_duration, resolve
from tailcut.manifest.host import Hosted, HostManifest
from tailcut.manifest.subject import in_order
from tailcut.pipeline.request_context import RequestContext
from tailcut.pipeline.row_transform import encode_answer, limited_inputs
from tailcut.protocol.auth import Guard
from tailcut.protocol.data_plane import DataPlane
from tailcut.serving.deployment_loader import Opened, find_variant
from tailcut.serving.engine import Engine
from tailcut.serving.host import Host
from tailcut.serving.observation import check_observation, unwritable

LOADING = ("manifest", "artifact", "load", "server")
"""The steps that need no row: what fails here is the deployment's set-up and not an answer."""

_PATIENCE_S = 30.0
"""For the first row: a cold database is slow once, which the SLO's timeout is not about."""
_STOP_S = 2.0
_SAMPLE = 6


Origin = Literal["entity", "row", "kept row", "example tensors"]


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
        self.step = ""
        self.manifest = manifest
        self._engine = engine
        self._entity = entity
        self._row = row

    async def run(self) -> TailcutError | None:
        """Load, and send the row through; returns the error that ended it, if one did."""
        try:
            opened = await self._load(self._engine)
            await self._row_through(self._engine, opened)
            self.report.ok = True
        except TailcutError as error:
            self.report.failure = Failure(self.step, error.code, error.explained, error.hint)
            return error
        return None

    async def _load(self, engine: Engine) -> Opened:
        report = self.report
        with self._step("artifact"):
            seen = find_variant(self.manifest)
            report.variant = VariantReport(
                seen.name, seen.runtime, seen.version, seen.artifact.stat().st_size, seen.sha256, seen.refused
            )
        with self._step("load"):
            await engine.start()
            await engine.close_request_log()  # what is sent here is no client's
        opened = engine.opened
        report.executor, report.executors, report.rows_alone = opened.warm.executor, opened.executors, opened.rows_alone
        report.executor_reason = opened.warm.choice.reason
        report.unjudged = engine.unjudged
        report.warm_up_ms = {rows: _ms(ns) for rows, ns in opened.warm.warm_up_ns.items()}
        report.groups_opened = [group.name for group in self.manifest.deployment.features.groups]
        return opened

    async def _row_through(self, engine: Engine, opened: Opened) -> None:
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
            await self._stages(engine, opened)
        except InferenceError as error:
            if not is_invented:
                raise
            report.untried.append(Untried("infer", f"the model fails on the invented row: {error.message}"))
            return
        with self._step("request"):
            report.request = await self._request(engine, opened)

    async def _stages(self, engine: Engine, opened: Opened) -> None:
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
        with self._step("infer"), _call(engine, _PATIENCE_S) as context:
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
            self._group(group, row, spent_s[group.name]) for group in self.manifest.deployment.features.groups
        ]
        self.report.fresh_for_s = round(found.fresh_for_s[0], 3)
        return row

    def _group(self, group: FeatureGroup, row: dict[str, Any], source_s: float) -> GroupReport:
        key = {column: row[column] for column in group.key}
        values = {column: row[column] for column in group.columns}
        ttl_s = _ttl_s(group, tuple(key.values()), values, self.manifest)
        return GroupReport(group.name, key, ttl_s, group.ttl, round(source_s * 1e3, 3), values)

    async def _request(self, engine: Engine, opened: Opened) -> Request:
        pipeline = opened.pipeline
        with _call(engine) as context:
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
        self.step = name
        started_s = perf_counter()
        yield
        self.report.steps.append(Step(name, round((perf_counter() - started_s) * 1e3, 3)))


class ModelInspection(NamedTuple):
    """What was seen of one model.

    Attributes:
        report: for people and programs.
        step: the last one.
        error: what ended it; None where all went well.
    """

    report: Report
    step: str
    error: TailcutError | None


async def inspect(
    models: HostManifest, name: str, entity: object = msgspec.UNSET, row: dict[str, Any] | None = None
) -> list[ModelInspection]:
    """Inspect models one after the other, each after those that compute its features, which stay loaded meanwhile.

    Args:
        models: all of them; one whose manifest cannot be read has failed.
        name: of the model that ``entity`` and ``row`` are for; see ``Inspection``.
    """
    host = Host(models)
    DataPlane(host)  # through which models ask each other for features
    found: list[ModelInspection] = []
    try:
        for hosted in in_order(models):
            if hosted.manifest is None:
                found.append(_unread(hosted))
                continue
            mine = (entity, row) if hosted.name == name else ()
            found.append(await _inspected(Inspection(host.engine(hosted.name), *mine)))
    finally:
        await host.stop(_STOP_S)
    _try_server(models, found)
    return found


def _try_server(models: HostManifest, found: list[ModelInspection]) -> None:
    """Read what a server of these models needs besides them; an error is that of the first model without one.

    What it could not write is a warning of the model that it is of, or of the first one.
    """
    for model, warning in unwritable(models):
        report = next((seen.report for seen in found if seen.report.deployment == model), found[0].report)
        report.warnings.append(warning)
    try:
        Guard.of(models)
        check_observation(models)
    except TailcutError as error:
        for place, seen in enumerate(found):
            if seen.error is None:
                seen.report.ok = False
                seen.report.failure = Failure("server", error.code, error.explained, error.hint)
                found[place] = ModelInspection(seen.report, "server", error)
                return


async def _inspected(inspection: Inspection) -> ModelInspection:
    try:
        error = await inspection.run()
    except Exception:
        note(f"{inspection.manifest.deployment.name} failed at: {inspection.step}")
        raise
    return ModelInspection(inspection.report, inspection.step, error)


def _unread(hosted: Hosted) -> ModelInspection:
    """Report a model whose manifest cannot be read."""
    error = hosted.error or ManifestError(f"{hosted.file}: cannot be read", hint="mend the manifest")
    report = Report(hosted.name, str(hosted.file.parent), {}, "example tensors")
    report.failure = Failure("manifest", error.code, error.explained, error.hint)
    return ModelInspection(report, "manifest", error)


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


def _ttl_s(group: FeatureGroup, key: tuple[Any, ...], values: dict[str, Any], manifest: Manifest) -> float:
    if ":" in group.ttl:
        return float(resolve(group.ttl, manifest)(key, values))
    return float(parse_duration(group.ttl))


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
