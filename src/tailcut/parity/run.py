"""Run a comparison: the pilot and each variant are asked the same requests, then causes are looked for."""

from __future__ import annotations

import asyncio
import math
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tailcut.common.json_values import encode
from tailcut.common.redaction import without_secrets
from tailcut.common.tensors import Array
from tailcut.common.texts import MISSING_TEXT, texts_of
from tailcut.errors import ManifestError, NotInRegistry, StartError, TailcutError
from tailcut.load.plan import parse_url
from tailcut.load.serve_command import serve_command
from tailcut.load.server_process import ServerProcess, free_port
from tailcut.load.surroundings import surroundings
from tailcut.manifest import Deployment, Manifest
from tailcut.manifest.subject import CommandSubject
from tailcut.parity.analysis.changes import EXACT, explain
from tailcut.parity.analysis.columns import Columns, compare_columns, joined, matched, split
from tailcut.parity.analysis.comparing import (
    Difference,
    FieldComparison,
    ParityExchange,
    differences_in,
    figures_of,
    outcome_of,
    sides_of,
)
from tailcut.parity.analysis.mapping import FieldPair
from tailcut.parity.analysis.request_form import RequestForm
from tailcut.parity.analysis.tolerance import compare, is_missing, tolerance_of
from tailcut.parity.asking import Asker, exchange_all
from tailcut.parity.matching import (
    NothingCompared,
    check_pilot,
    check_tolerances,
    choose_form,
    choose_pairs,
    refuse_left_over,
    takes_of,
    unmatched,
)
from tailcut.parity.payloads import Payload, read_payloads
from tailcut.parity.plan import ParityPlan, check_plan, is_url
from tailcut.pipeline.pipeline import Pipeline
from tailcut.profiler.child_channel import Options
from tailcut.profiler.diagnosis import check_target, choose_path
from tailcut.profiler.launching import PilotProcess
from tailcut.profiler.recording.model_inputs import ModelCall
from tailcut.protocol.data_plane import DataPlane
from tailcut.registry import Registry, Version
from tailcut.report.parity.file import (
    FieldParity,
    InputsParity,
    ParityRecord,
    StatusDifference,
    ValueDifference,
    VariantParity,
)
from tailcut.serving.engine import Engine
from tailcut.serving.host import Host

Tell = Callable[[str], None]


def run(subject: CommandSubject, plan: ParityPlan, *, tell: Tell) -> ParityRecord:
    """Ask the pilot and the deployment the same requests and compare their answers.

    Args:
        subject: the model, loaded with ``keep_unset``.
        plan: what is asked.
        tell: called with what is being done.

    Raises:
        ManifestError: the manifest or the plan is wrong, or the payloads cannot be read.
        ProfileError: the pilot cannot be started.
        StartError: one side cannot be asked, or no answers could be compared.
    """
    check_plan(plan)
    if not plan.deployment:
        subject.refuse_missing()
    with surroundings(subject.manifest, tell) as (environment, _):
        uncached = subject.again(CACHES_OFF)
        manifest = uncached.manifest
        payloads = read_payloads(manifest, plan.payloads, plan.requests, plan.seed)
        form = plan.form or choose_form(payloads, takes_of(manifest.deployment))
        chosen = [_RUNNING] if plan.deployment else choose_variants(manifest, plan.variants)
        with open_pilot(plan, manifest, environment, tell) as pilot:
            check_pilot(payloads, pilot.asker)
            runner = _Runner(uncached, plan, environment, payloads, pilot, tell, form)
            return runner.run(chosen)


@dataclass
class _Runner:
    subject: CommandSubject
    plan: ParityPlan
    environment: Mapping[str, str]
    payloads: Sequence[Payload]
    pilot: Pilot
    tell: Tell
    form: RequestForm
    comparison: FieldComparison | None = None
    first: Sequence[ParityExchange] = ()

    def run(self, chosen: Sequence[Chosen]) -> ParityRecord:
        variants = [self._variant(one) for one in chosen]
        if self.comparison is None or all(one.failed for one in variants):
            why = variants[0].failed if variants else "none may be served"
            raise StartError(f"no variant could be compared: {why}", hint="run `tailcut check`")
        deployment, rest = self.subject.manifest.deployment, unmatched(self.comparison.pairs, self.first)
        return ParityRecord(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            deployment=deployment.name,
            pilot=self.pilot.name,
            payloads=self.plan.payloads or deployment.ladder.traffic,
            command=self.plan.command,
            form=str(self.form),
            caches="as the server has them" if self.plan.deployment else caches_of(deployment),
            variants=tuple(variants),
            unmatched_pilot=tuple(rest[0]),
            unmatched_outputs=tuple(rest[1]),
        )

    def _variant(self, chosen: Chosen) -> VariantParity:
        try:
            if self.plan.deployment:
                plan = self.plan
                running = deployment_asker(
                    plan.deployment, self.subject.manifest.deployment, plan.timeout_s, plan.deployment_headers
                )
                return self._asked(chosen, running)
            self.tell(f"starting {chosen.name}")
            with serve_variant(
                self.subject,
                chosen.name,
                environment=self.environment,
                ready_s=self.plan.ready_s,
                timeout_s=self.plan.timeout_s,
            ) as asker:
                return self._asked(chosen, asker)
        except (NothingCompared, ManifestError):
            raise  # it would be the same with every variant
        except TailcutError as error:
            self.tell(f"{chosen.name}: not compared: {error.message}")
            return VariantParity(
                variant=chosen.name, version=chosen.version, exact=chosen.exact, judged=chosen.judged,
                failed=error.explained,
            )  # fmt: skip

    def _asked(self, chosen: Chosen, asker: Asker) -> VariantParity:
        exchanges = exchange_all(
            self.payloads,
            self.pilot.asker,
            asker,
            self.form,
            concurrency=self.plan.concurrency,
        )
        if self.comparison is None:
            self.first = exchanges
            pairs = choose_pairs(exchanges, self.plan.pairs, self.form)
            if not self.plan.pairs:
                refuse_left_over(pairs, exchanges)
            check_tolerances(self.plan.tolerances, pairs)
            self.comparison = FieldComparison(pairs, self.plan.tolerances)
        found = Sorted(exchanges, self.comparison)
        record = variant_record(chosen, found, self.comparison)
        self.tell(_summary(record))
        if not self.plan.explain:
            return record
        variant = "" if self.plan.deployment else chosen.name
        return diagnose(record, found, self.comparison, self.pilot, asker, self.subject, variant, self.tell)


def _summary(record: VariantParity) -> str:
    parts = [f"{record.differing_requests} of {record.both_answered} requests differ"]
    if record.status_differences:
        parts.append(f"{record.status_differences} answered by one side only")
    if record.uncompared:
        parts.append(f"{record.uncompared} not compared")
    return f"{record.variant}: {', '.join(parts)}"


# -- Causes of differences ---------------------------------------------------------------------------------------------


# Why answers differ: the model's inputs on both sides, and answers that move.

_DIFFERING, _EQUAL = 40, 20
"""Requests that causes are looked for in."""
_MOVING = (
    "answers change with time or at random: pin the clock and the seeds of both sides (see "
    "docs/how-to/parity.md), else random differences are reported"
)
_MOST_VALUES = 200_000
"""Images reach it after a request or two: comparing more would take minutes and say nothing new."""


def diagnose(
    record: VariantParity,
    found: Sorted,
    comparison: FieldComparison,
    pilot: Pilot,
    asker: Asker,
    subject: CommandSubject,
    variant: str,
    tell: Callable[[str], None],
) -> VariantParity:
    """Look for the causes of what differs.

    Args:
        record: of the variant, without causes.
        found: its exchanges.
        comparison: what counts as equal.
        pilot: that is still there to be asked.
        asker: of the variant.
        subject: the deployment, with caches off.
        variant: its name; empty: the manifest's own.
        tell: called with what is being done.
    """
    if not record.judged or not (found.differing or pilot.inputs):
        return record
    differing = _distinct(found.differing, _DIFFERING)
    sample = [*differing, *_distinct(found.equal, _EQUAL)]
    unsteady = _unsteady(differing, pilot, asker, comparison)
    notes = [f"{unsteady} of {len(differing)} requests that differ: {_MOVING}"] if unsteady else []
    tell("looking for causes")
    inputs: InputsParity | None = None
    if pilot.inputs is not None:
        try:
            with open_replica(subject, variant or subject.manifest.deployment.serve.variant) as replica:
                seen = see_inputs(pilot, replica, sample)
                inputs = inputs_record(seen, replica, [one.number for one in differing])
        except TailcutError as error:
            notes.append(f"causes were not looked for: {error.message}")
    return msgspec.structs.replace(
        record,
        unsteady=unsteady,
        inputs=inputs,
        notes=(*record.notes, *notes),
    )


def _unsteady(exchanges: Sequence[ParityExchange], pilot: Pilot, asker: Asker, comparison: FieldComparison) -> int:
    """Count the requests that the pilot, or the deployment, answers otherwise when they are sent again."""
    count = 0
    for one in exchanges:
        theirs = pilot.asker.ask(encode(one.request), one.path)
        ours = asker.ask(encode(one.asked))
        count += not _same_replies(one, one._replace(theirs=theirs, ours=ours), comparison)
    return count


def _same_replies(before: ParityExchange, after: ParityExchange, comparison: FieldComparison) -> bool:
    if not (after.theirs.answered and after.ours.answered):
        return False
    for pair in comparison.pairs:
        tolerance = tolerance_of(pair.name, comparison.tolerances)
        for first, second in zip(sides_of(before, pair), sides_of(after, pair), strict=True):
            if not compare(first, second, tolerance).equal:
                return False
    return True


def _distinct(exchanges: Sequence[ParityExchange], most: int) -> list[ParityExchange]:
    """Take the first exchanges whose requests differ."""
    found: dict[bytes, ParityExchange] = {}
    for one in exchanges:
        found.setdefault(encode([one.path, one.request]), one)
    return list(found.values())[:most]


# -- Inputs of the model ----------------------------------------------------------------------------------------------


@dataclass
class SeenInputs:
    """Rows of requests with the columns of both sides.

    Attributes:
        model: the pilot's call.
        rows: feature rows of the deployment.
        requests: number of each row's request.
        theirs, ours: columns with the same names.
        left_out: numbers of the requests whose inputs were not compared.
        problem: why the last of them was not; empty where there is none.
    """

    model: str = ""
    rows: list[Row] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    theirs: Columns = field(default_factory=dict)
    ours: Columns = field(default_factory=dict)
    left_out: list[int] = field(default_factory=list)
    problem: str = ""

    def add(self, number: int, rows: Sequence[Row], theirs: Columns, ours: Columns) -> None:
        """Take in one request."""
        self.rows += rows
        self.requests += [number] * len(rows)
        for name, values in ours.items():
            self.ours.setdefault(name, []).extend(values)
            self.theirs.setdefault(name, []).extend(theirs[name])

    def leave_out(self, number: int, why: str) -> None:
        """Count one request that is not compared."""
        self.left_out.append(number)
        self.problem = why


def see_inputs(pilot: Pilot, replica: Replica, exchanges: Sequence[ParityExchange]) -> SeenInputs:
    """Ask the pilot once more, one request after the other, and make the deployment's inputs of each.

    Args:
        pilot: whose model calls can be seen.
        replica: of the deployment.
        exchanges: requests that both sides answered.
    """
    take = pilot.inputs
    seen = SeenInputs()
    assert take is not None
    size = 0
    for exchange in exchanges:
        if size > _MOST_VALUES:
            seen.leave_out(exchange.number, f"earlier requests have {size} values, enough to compare")
            continue
        take()
        pilot.asker.ask(encode(exchange.request), exchange.path)
        calls = take()
        try:
            rows = replica.feature_rows(exchange.asked)
            ours = replica.columns(rows)
        except TailcutError as error:
            seen.leave_out(exchange.number, f"the deployment's inputs could not be computed here: {error.message}")
            continue
        call = joined(calls, exchange.rows)
        theirs = matched(call, ours) if call is not None else None
        if call is None or theirs is None:
            seen.leave_out(exchange.number, _unmatched(calls, ours))
            continue
        seen.model = call.model
        every = {name: values for columns in ours.values() for name, values in columns.items()}
        size += _count(list(every.values()))
        seen.add(exchange.number, rows, theirs, every)
    return seen


def inputs_record(seen: SeenInputs, replica: Replica, differing: Collection[int]) -> InputsParity:
    """Compare the columns and name the features that fill those that differ.

    Args:
        seen: what was seen of both sides.
        replica: of the deployment.
        differing: numbers of the requests whose answers differ.
    """
    found = compare_columns(seen.theirs, seen.ours, seen.requests)
    feeding = _features_of([one.column for one in found], seen, replica) if found else {}
    return InputsParity(
        model=seen.model,
        rows=len(seen.rows),
        columns=len(seen.ours),
        differing=tuple(msgspec.structs.replace(one, features=feeding.get(one.column, ())) for one in found),
        left_out=len(seen.left_out),
        left_out_differing=len(set(seen.left_out) & set(differing)),
        problem=seen.problem,
    )


def _features_of(names: Sequence[str], seen: SeenInputs, replica: Replica) -> dict[str, tuple[str, ...]]:
    """Find the features that fill each column: a feature does where a change of it changes the column."""
    rows = seen.rows[:8]
    before = _columns(replica, rows)
    if before is None:
        return {}
    found: dict[str, list[str]] = {name: [] for name in names}
    for feature in dict.fromkeys(name for row in rows for name in row):
        touched: set[str] = set()
        for change in _probes([row.get(feature) for row in seen.rows]):
            after = _columns(replica, [{**row, feature: change(row.get(feature))} for row in rows])
            if after is not None:
                touched |= {name for name in names if _differ(before[name], after[name])}
        for name in touched:
            found[name].append(feature)
    return {name: tuple(features) for name, features in found.items()}


def _probes(values: Sequence[Any]) -> list[Callable[[Any], Any]]:
    """Changes that show whether a feature matters."""
    texts = [value for value in values if isinstance(value, str)]
    if texts:
        others = list(dict.fromkeys(texts))
        return [lambda x: next((one for one in others if one != x), "tailcut"), lambda x: f"{x or ''} tailcut"]
    return [lambda x: 1.0 if is_missing(x) or not isinstance(x, (int, float)) else x + 1, lambda _: None]


def _columns(replica: Replica, rows: Sequence[Row]) -> Columns | None:
    try:
        found = replica.columns(rows)
    except TailcutError:
        return None
    return {name: values for columns in found.values() for name, values in columns.items()}


def _count(value: Any) -> int:
    return sum(_count(one) for one in value) if isinstance(value, list) else 1


def _differ(before: Sequence[Any], after: Sequence[Any]) -> bool:
    return any(not compare(one, other, EXACT).equal for one, other in zip(before, after, strict=True))


def _unmatched(calls: Sequence[ModelCall], ours: dict[str, Columns]) -> str:
    if not calls:
        return "the pilot called no model of torch, onnxruntime, scikit-learn, LightGBM, XGBoost, CatBoost or OpenVINO"
    last = calls[-1]
    theirs = [*last.named, *(f"[{len(values)} rows]" for values in last.placed)]
    return (
        f"the pilot's input of {last.model} ({', '.join(theirs)}) does not have the form of the deployment's inputs"
        f" ({', '.join(ours)})"
    )


# -- The deployment in this process ------------------------------------------------------------------------------------


Row = Mapping[str, Any]
_STOP_S = 2.0
_PATIENCE_S = 30.0


class Replica:
    """An opened deployment whose stages can be called one by one."""

    def __init__(self, engine: Engine, runner: asyncio.Runner) -> None:
        self._engine = engine
        self._runner = runner
        self._pipeline: Pipeline = engine.opened.pipeline

    def feature_rows(self, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the rows of a request: those that it holds, or those of its entities.

        Raises:
            TailcutError: an entity is unknown, or a source failed.
        """
        if "rows" in asked:
            return [dict(row) for row in asked["rows"]]
        features = self._pipeline.features
        if features is None:
            return []
        keys = [features.parse_entity(entity) for entity in asked["entities"]]
        deadline_s = time.monotonic() + _PATIENCE_S
        return self._runner.run(features.fetch(keys, "", deadline_s)).rows

    def columns(self, rows: Sequence[Row]) -> dict[str, Columns]:
        """Return the model's inputs of rows, per tensor, column by column.

        Raises:
            TailcutError: the rows cannot be turned into inputs.
        """
        found = {}
        # Rows of feature groups hold the keys, too, which no input needs to read.
        arrays = self._pipeline.transform.inputs(rows, from_client=self._pipeline.features is None)
        for tensor in self._engine.deployment.model.inputs:
            array = arrays[tensor.name]
            fixed = array.ndim == 2 and -1 not in tensor.shape[1:]
            width = array.shape[1] if fixed else 0
            found[tensor.name] = split(tensor.name, _listed(array, tensor.allow_nan), width, tensor.columns)
        return found


def _listed(array: Array, allow_nan: bool) -> list[Any]:
    """Return an input as lists of plain values; of a text that stands for a missing one, NaN, as estimators get it."""
    if not array.dtype.hasobject:
        found: list[Any] = array.tolist()
        return found
    texts: list[str | float] = list(texts_of(array))
    if allow_nan:
        texts = [math.nan if text == MISSING_TEXT else text for text in texts]
    nested: list[Any] = np.array(texts, object).reshape(array.shape).tolist()
    return nested


@contextmanager
def open_replica(subject: CommandSubject, variant: str) -> Iterator[Replica]:
    """Open a variant in this process, with the models that compute its features.

    Raises:
        TailcutError: one of them cannot be opened, or was not given.
    """
    subject.refuse_missing()
    manifest = subject.manifest
    serve = msgspec.structs.replace(manifest.deployment.serve, variant=variant, fallback=(), force=True)
    pool = msgspec.structs.replace(manifest.deployment.pool, executors=1, max_executors=0)
    opened = replace(manifest, deployment=msgspec.structs.replace(manifest.deployment, serve=serve, pool=pool))
    models = tuple(replace(one, manifest=opened) if one.file == subject.file else one for one in subject.host.models)
    host = Host(replace(subject.host, models=models))
    DataPlane(host)  # through which models ask each other for features
    with asyncio.Runner() as runner:
        try:
            for one in models:  # those that compute features come first
                runner.run(host.engine(one.name).start())
            yield Replica(host.engine(subject.name), runner)
        finally:
            runner.run(host.stop(_STOP_S))


# -- Results -----------------------------------------------------------------------------------------------------------


# From the exchanges of one variant to its part of the report.

FIRST = 10
_SHORT = 12
"""Elements of a long list that are shown."""


class Sorted:
    """Exchanges by their outcome.

    Attributes:
        answered: by both sides.
        differing, equal: of these.
        statuses: answered by one side only, or failed by the deployment.
        uncompared: answered by both, with a row that has none of the fields on either side.
        refused: how many both refused.
        differences: values that differ, in the order of requests.
    """

    def __init__(self, exchanges: Sequence[ParityExchange], comparison: FieldComparison) -> None:
        self.exchanges = exchanges
        self.answered: list[ParityExchange] = []
        self.differing: list[ParityExchange] = []
        self.equal: list[ParityExchange] = []
        self.statuses: list[ParityExchange] = []
        self.differences: list[Difference] = []
        self.uncompared = self.refused = 0
        for one in exchanges:
            found = differences_in(one, comparison.pairs, comparison.tolerances)
            self.differences += found
            outcome = outcome_of(one, comparison.pairs, found)
            if outcome in {"equal", "differs"}:
                self.answered.append(one)
                (self.differing if outcome == "differs" else self.equal).append(one)
            elif outcome == "uncompared":
                self.uncompared += 1
            elif outcome == "refused":
                self.refused += 1
            else:
                self.statuses.append(one)


def variant_record(chosen: Chosen, found: Sorted, comparison: FieldComparison) -> VariantParity:
    """Make the report of a variant, without causes."""
    bodies = {one.number: one.request for one in found.exchanges}
    return VariantParity(
        variant=chosen.name,
        version=chosen.version,
        exact=chosen.exact,
        judged=chosen.judged,
        requests=len(found.exchanges),
        both_answered=len(found.answered),
        both_refused=found.refused,
        uncompared=found.uncompared,
        differing_requests=len(found.differing),
        status_differences=len(found.statuses),
        statuses=tuple(
            StatusDifference(
                request=one.number,
                pilot_status=one.theirs.status,
                pilot_text=one.theirs.text,
                deployment_status=one.ours.status,
                deployment_text=one.ours.text,
                body=one.request,
            )
            for one in found.statuses[:FIRST]
        ),
        fields=tuple(_field(found.answered, pair, comparison) for pair in comparison.pairs),
        differences=tuple(
            ValueDifference(
                request=one.number,
                row=one.row,
                output=one.name,
                pilot=shortened(one.theirs),
                deployment=shortened(one.ours),
                difference=one.size,
                body=bodies[one.number],
            )
            for one in found.differences[:FIRST]
        ),
    )


def _field(answered: Sequence[ParityExchange], pair: FieldPair, comparison: FieldComparison) -> FieldParity:
    tolerance = tolerance_of(pair.name, comparison.tolerances)
    figures = figures_of(answered, pair, tolerance)
    return FieldParity(
        output=pair.name,
        pilot=str(pair.theirs),
        matched=pair.why,
        tolerance=str(tolerance),
        rows=figures.rows,
        differing_rows=figures.differing,
        differing_requests=figures.requests,
        max_difference=figures.largest,
        mean_difference=figures.mean,
        relation=explain(figures.theirs, figures.ours, tolerance) if figures.differing else "",
    )


def shortened(value: Any) -> Any:
    """Return a value as JSON has it, long lists cut."""
    if isinstance(value, list):
        return [*map(shortened, value[:_SHORT]), *(["..."] if len(value) > _SHORT else [])]
    return value if value is None or isinstance(value, (bool, int, float, str, dict)) else str(value)


# -- Pilots ------------------------------------------------------------------------------------------------------------


# The pilot: a URL, an application that is started here, or the command of the manifest.


@dataclass(frozen=True)
class Pilot:
    """A pilot that answers.

    Attributes:
        name: for the report.
        asker: posts to it.
        inputs: what it handed to its models since the last time; None where that cannot be seen.
    """

    name: str
    asker: Asker
    inputs: Callable[[], tuple[ModelCall, ...]] | None = None


@contextmanager
def open_pilot(plan: ParityPlan, manifest: Manifest, environment: Mapping[str, str], tell: Tell) -> Iterator[Pilot]:
    """Start the pilot where it does not run, and stop it in the end.

    Raises:
        ManifestError: there is no pilot to ask.
        ProfileError, StartError: it does not start.
        MissingExtra: uvicorn, which runs applications, is not installed.
    """
    ladder = manifest.deployment.ladder
    if is_url(plan.pilot):
        asker = _asker(plan.pilot, plan.path, plan)
        yield Pilot(without_secrets(asker.url), asker)
    elif plan.pilot:
        check_target(plan.pilot)
        tell(f"starting the pilot {plan.pilot}")
        options = Options(target=plan.pilot, profiled=False)
        with PilotProcess(options, directory=plan.directory, environment=environment) as process:
            routes = process.wait_ready(plan.ready_s, tell).routes
            is_there = any(route.path == ladder.pilot_path and "POST" in route.methods for route in routes)
            path = plan.path or (ladder.pilot_path if is_there else choose_path(routes, "POST"))
            yield Pilot(plan.pilot, _asker(process.url, path, plan), process.inputs)
    elif ladder.pilot:
        port = free_port()
        command = [word.replace("{port}", str(port)).replace("{python}", sys.executable) for word in ladder.pilot]
        tell(f"starting the pilot: {' '.join(command)}")
        with _served(command, port, manifest, environment, "/", plan.ready_s) as url:
            yield Pilot("ladder.pilot", _asker(url, plan.path or ladder.pilot_path, plan))
    else:
        raise ManifestError("no pilot is given", hint="give --pilot URL or module:app, or ladder.pilot in the manifest")


@contextmanager
def _served(
    command: Sequence[str],
    port: int,
    manifest: Manifest,
    environment: Mapping[str, str],
    ready_path: str,
    ready_s: float,
    ok: Sequence[int] = (),
) -> Iterator[str]:
    """Run a server, wait until it is ready, and stop it in the end; its URL."""
    with tempfile.TemporaryDirectory(prefix="tailcut-parity-") as folder:
        log = Path(folder) / "server.log"
        process = ServerProcess(command, port, log, environment=environment, directory=manifest.directory, core=None)
        with process:
            process.wait_until_ready(ready_path, timeout_s=ready_s, ok=ok)
            yield f"http://127.0.0.1:{port}"


def _asker(url: str, path: str, plan: ParityPlan) -> Asker:
    return Asker(url, path, headers=plan.headers, timeout_s=plan.timeout_s)


# -- Variants ----------------------------------------------------------------------------------------------------------


# The deployment's variants, each served in a process of its own, with caches off.

TIMEOUT_HEADER = "x-tailcut-timeout-ms"
CACHES_OFF = ("cache.entity.enabled=false", "cache.tensor.enabled=false", "features.cache=off", "serve.fallback=[]")
"""Settings of the compared deployment, and of the models that compute its features, unless they are overridden. An
answer or a feature that was kept would hide a difference, or make one; a fallback would answer for another."""


class Chosen(NamedTuple):
    """A variant to ask.

    Attributes:
        name: of the variant.
        version: of the registry; empty where there is none.
        exact: whether it computes as the source does, but for rounding.
        judged: whether differences of values count against it.
    """

    name: str
    version: str
    exact: bool
    judged: bool


_RUNNING = Chosen("as served", "", exact=True, judged=True)
"""The server of ``ParityPlan.deployment``."""


def caches_of(deployment: Deployment) -> str:
    """Say which caches are on."""
    caches = {
        "answers by entity": deployment.cache.entity.enabled,
        "outputs by tensor": deployment.cache.tensor.enabled,
        "features": deployment.features.cache != "off" and bool(deployment.features.groups),
    }
    on = [name for name, enabled in caches.items() if enabled]
    return f"on: {', '.join(on)}" if on else "all off"


def choose_variants(manifest: Manifest, names: Sequence[str]) -> list[Chosen]:
    """List the variants to ask: those of the promoted version that may be served, or those that are named.

    A variant that is made smaller on purpose (INT8) gives other values. The build has judged that by the quality
    budget; here only its refusals count, unless it is named.

    Raises:
        ArtifactError: nothing is promoted, or there is no such variant.
    """
    deployment = manifest.deployment
    if deployment.serve.variant == "source" and set(names) <= {"source"}:
        return [Chosen("source", "", exact=True, judged=True)]
    version = Registry.of(manifest).version(deployment.name)
    for name in names:
        if name not in version.variants:
            raise NotInRegistry(
                f"version {version.id} of model {deployment.name!r} has no variant {name!r}",
                hint=f"its variants: {', '.join(version.variants)}",
            )
    served = [name for name, record in version.variants.items() if record.sha256 and not record.refused]
    served.sort(key=lambda name: name != version.source)
    return [
        Chosen(name, version.id, exact := is_exact(version, name), exact or name in names) for name in names or served
    ]


def is_exact(version: Version, name: str) -> bool:
    """Whether a variant was made to give the source's values: by itself, or by the build's comparison of outputs."""
    return version.is_base(name) or version.variants[name].evidence.recipe.exact


@contextmanager
def serve_variant(
    subject: CommandSubject,
    variant: str,
    *,
    environment: Mapping[str, str],
    ready_s: float,
    timeout_s: float,
) -> Iterator[Asker]:
    """Serve a variant on a free loopback port and stop it in the end.

    Args:
        subject: with caches off.
        variant: its name.
        environment: whole, of the server.
        ready_s: longest wait for its start.
        timeout_s: of one request.

    Raises:
        StartError: it does not come up.
    """
    manifest, port = subject.manifest, free_port()
    command = serve_command(subject, port, settings=[f"serve.variant={variant}", "serve.force=true"])
    with _served(command, port, manifest, environment, "/v2/health/ready", ready_s, ok=(200,)) as url:
        yield deployment_asker(url, manifest.deployment, timeout_s)


def deployment_asker(
    url: str, deployment: Deployment, timeout_s: float, headers: Sequence[tuple[str, str]] = ()
) -> Asker:
    """Return what posts to a deployment's ``/predict``; ``url`` may name that path already."""
    path = "" if "/predict/" in parse_url(url).path else f"/predict/{deployment.name}"
    deadline_ms = int(1e3 * min(timeout_s, float(deployment.server.max_timeout_s)))
    return Asker(
        url,
        path,
        headers=[(TIMEOUT_HEADER, str(deadline_ms)), *headers],
        timeout_s=timeout_s,
    )
