"""Climb the ladder: start each rung, send it the same traffic, write down what was seen."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from tailcut.common.slo import LatencyObjective, Objectives
from tailcut.errors import ArtifactError, LoadTestError, ManifestError, TailcutError
from tailcut.ladder.measuring import Bench
from tailcut.ladder.options import LadderOptions, describe, warmup_of
from tailcut.ladder.places import machine_places, without_places
from tailcut.load import CapacityResult, LoadPlan, LoadResult, SearchLimits, find_capacity, run
from tailcut.load.machine import PACKAGES, Cores, choose_cores, commit_of, machine_facts, pinned
from tailcut.load.surroundings import surroundings
from tailcut.manifest import Deployment, Manifest, Rung, resolve
from tailcut.manifest.subject import CommandSubject
from tailcut.parity.analysis.comparing import ParityExchange, differences_in, figures_of, outcome_of
from tailcut.parity.analysis.mapping import FieldPair
from tailcut.parity.analysis.request_form import AS_IT_IS
from tailcut.parity.analysis.tolerance import DEFAULT
from tailcut.parity.asking import Asker, exchange
from tailcut.parity.matching import choose_pairs, unmatched
from tailcut.parity.payloads import Payload, read_payloads
from tailcut.registry import Registry, Version
from tailcut.report.files import write_json
from tailcut.report.ladder.file import COMFORTABLE, LadderRecord, PilotFacts, RungParity, RungRecord
from tailcut.system.machine import package_versions

Tell = Callable[[str], None]
PILOT = "pilot"


def climb(subject: CommandSubject, options: LadderOptions, *, tell: Tell) -> LadderRecord:
    """Climb a manifest's ladder and write ``ladder.json`` (after each round too, so that nothing is lost).

    Args:
        subject: the model, loaded with the settings under all rungs, and with ``keep_unset``.
        options: lengths and limits.
        tell: hears what is going on, a line at a time.

    Raises:
        TailcutError: the ladder is not fit to be climbed, or the pilot does not work. A rung that does not start is
            no error: it is shown as failed.
    """
    manifest = subject.manifest
    subject.refuse_missing()
    _check(manifest.deployment, options)
    options.out.mkdir(parents=True, exist_ok=True)
    evidence = read_evidence(manifest)
    resolve(manifest.deployment.ladder.traffic, manifest)
    with surroundings(manifest, tell) as (environment, variables):
        return _Climber(subject, options, evidence, environment, variables, tell).climb()


class _Climber:
    def __init__(
        self,
        subject: CommandSubject,
        options: LadderOptions,
        evidence: LadderEvidence,
        environment: Mapping[str, str],
        variables: Mapping[str, str],
        tell: Tell,
    ) -> None:
        self._manifest = manifest = subject.manifest
        self._options = options
        self._evidence = evidence
        self._tell = tell
        self._cores: Cores = choose_cores()
        self._slo = manifest.deployment.slo.objectives
        self._bench = Bench(subject, options, environment, self._cores, self._slo)
        self._runs = self._make_runs()
        self._pilot: PilotFacts | None = None
        self._setup = _without_secrets(variables)
        self._places = machine_places(manifest.directory)

    def climb(self) -> LadderRecord:
        options = self._options
        self._compare_answers()
        comfortable = options.comfortable_rate or self._measure_pilot()
        rates = [(COMFORTABLE, comfortable), *((f"{rate:g}", rate) for rate in options.rates)]
        for round_index in range(options.rounds):
            for place in round_order(len(self._runs), round_index, options.rounds):
                self._measure(self._runs[place], rates, round_index)
            write_json(options.out / "ladder.json", self._record())
        if options.capacity:
            self._search(comfortable)
        record = self._record()
        write_json(options.out / "ladder.json", record)
        return record

    def _make_runs(self) -> list[RungRecord]:
        deployment, evidence = self._manifest.deployment, self._evidence
        source = evidence.source
        planned = plan_rungs(deployment.ladder.rungs, evidence.refusals, evidence.quality, first_variant=source)
        runs = choose_rungs(planned, self._options.only)
        if _runs_pilot(deployment, self._options):
            runs.insert(0, pilot_rung(source, evidence.quality.get(source, {})))
        return runs

    def _compare_answers(self) -> None:
        if self._options.parity < 1 or not any(rung.pilot for rung in self._runs):
            return
        self._tell(f"comparing the answers of each rung with the pilot's, {self._options.parity} requests")
        payloads = read_payloads(self._manifest, "", self._options.parity, self._options.seed)
        compare_rungs(self._bench, self._runs, payloads, self._options.pairs, self._tell)

    def _measure_pilot(self) -> float:
        self._tell("pilot: finding its own capacity")
        with self._bench.server(pilot_rung()) as server, pinned(self._cores.load):
            plan = self._bench.search_plan(server, pilot=True)
            self._pilot = measure_pilot(plan, self._slo, self._bench.search_limits())
        self._tell(f"pilot: {self._pilot.note}")
        return self._pilot.comfortable_rate

    def _measure(self, rung: RungRecord, rates: list[tuple[str, float]], round_index: int) -> None:
        if rung.refused or rung.failed:
            return
        try:
            with self._bench.server(rung) as server, pinned(self._cores.load):
                sent = 0
                for name, rate in rates:
                    seen = self._bench.measure(server, rung, name, rate, round_index, sent=sent)
                    sent += int(rate * (warmup_of(self._options, sent) + self._options.duration_s))
                    rung.measurements += (seen,)
                    shape = seen.latency_ms
                    p95 = "no answers" if shape is None else f"p95 {shape.p95:.1f} ms"
                    state = f", saturated ({seen.failed_share:.0%} failed)" if seen.saturated else ""
                    self._tell(f"round {round_index + 1}: {rung.name} at {rate:.3g}/s: {p95}{state}")
        except TailcutError as error:
            rung.failed = error.message
            self._tell(f"{rung.name}: failed: {error}")

    def _search(self, comfortable: float) -> None:
        start = comfortable
        for rung in self._runs:
            if rung.refused or rung.failed:
                continue
            try:
                with self._bench.server(rung) as server, pinned(self._cores.load):
                    rung.capacity = self._bench.search(server, rung, start, self._tell)
            except TailcutError as error:
                rung.capacity_failed = error.message  # what was measured before stays
                self._tell(f"{rung.name}: failed in the search for its capacity: {error}")
                continue
            start = max(comfortable, 0.7 * rung.capacity.rate)
            self._tell(f"{rung.name}: capacity {rung.capacity.rate:.4g} req/s within {self._slo}")

    def _record(self) -> LadderRecord:
        deployment = self._manifest.deployment
        record = LadderRecord(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            deployment=deployment.name,
            command=self._options.command,
            commit=commit_of(self._manifest.directory),
            machine=machine_facts(),
            versions=package_versions(PACKAGES),
            settings={**describe(self._options), "set-up": self._setup},
            slo=str(self._slo),
            quality_budget=dict(deployment.quality.budget),
            pilot=self._pilot,
            rate_names=(COMFORTABLE, *(f"{rate:g}" for rate in self._options.rates)),
            rungs=tuple(self._runs),
            notes=(self._cores.note, *harder_than_errors(self._slo)),
        )
        return without_places(record, self._places)


def _runs_pilot(deployment: Deployment, options: LadderOptions) -> bool:
    return bool(deployment.ladder.pilot) and (not options.only or PILOT in options.only)


def _check(deployment: Deployment, options: LadderOptions) -> None:
    ladder = deployment.ladder
    if not ladder.traffic:
        raise ManifestError("ladder.traffic is empty", hint="name 'package.module:callable' of (seed) -> bodies")
    if not ladder.pilot and options.comfortable_rate is None:
        raise ManifestError("ladder.pilot is empty", hint="set the pilot's command, or give --comfortable RATE")
    if options.rounds < 1:
        raise ManifestError(f"--rounds is {options.rounds}", hint="give at least 1; three rounds show the spread")
    if options.pairs and (options.parity < 1 or not _runs_pilot(deployment, options)):
        raise ManifestError(
            "--map pairs fields of the pilot's answers, which this ladder does not ask for",
            hint="leave it out, or run the pilot too (ladder.pilot, --only-rungs) with --parity 1 or more",
        )
    choose_rungs(plan_rungs(ladder.rungs, {}), options.only)  # before minutes of setting up


def _without_secrets(variables: Mapping[str, str]) -> str:
    shown = {name: re.sub(r"//[^/@]*@", "//", value) for name, value in variables.items()}
    return ", ".join(f"{name}={value}" for name, value in sorted(shown.items())) or "none"


# -- Which rungs run with which settings, and in which order ----------------------------------------------------------


def plan_rungs(
    rungs: Sequence[Rung],
    refusals: Mapping[str, str],
    quality: Mapping[str, dict[str, float]] | None = None,
    *,
    first_variant: str = "",
) -> list[RungRecord]:
    """Add the settings up, leaving out those of refused rungs: the rungs above keep what the rung below had.

    Args:
        rungs: as in the manifest.
        refusals: per variant, why it may not be served.
        quality: per variant, its metrics.
        first_variant: the variant whose quality a rung has before any rung names one.
    """
    planned: list[RungRecord] = []
    settings: tuple[str, ...] = ()
    variant = first_variant
    for rung in rungs:
        refused = refusals.get(rung.variant, "") if rung.variant else ""
        if not refused:
            settings = merge_settings(settings, rung.set)
            variant = rung.variant or variant
        own = rung.variant if refused else variant
        planned.append(
            RungRecord(
                name=rung.name,
                added=rung.set,
                settings=() if refused else settings,
                variant=own,
                quality=(quality or {}).get(own, {}),
                refused=refused,
            )
        )
    return planned


def pilot_rung(variant: str = "", quality: dict[str, float] | None = None) -> RungRecord:
    """Begin the pilot: it has the source variant's quality."""
    return RungRecord(name=PILOT, pilot=True, variant=variant, quality=quality or {})


def merge_settings(settings: tuple[str, ...], added: tuple[str, ...]) -> tuple[str, ...]:
    """Add settings; one for the same path replaces the earlier one."""
    merged = {text.partition("=")[0].strip(): text for text in (*settings, *added)}
    return tuple(merged.values())


def choose_rungs(planned: Sequence[RungRecord], only: Sequence[str]) -> list[RungRecord]:
    """Keep the rungs named in ``only``, all where it is empty. Settings stay those of the whole ladder.

    Raises:
        ManifestError: a name that no rung has.
    """
    names = [rung.name for rung in planned]
    for name in only:
        if name not in names and name != PILOT:
            raise ManifestError(f"--only-rungs: there is no rung {name!r}", hint=f"rungs: {PILOT}, {', '.join(names)}")
    return [rung for rung in planned if not only or rung.name in only]


def round_order(count: int, round_index: int, rounds: int) -> list[int]:
    """Order the rungs of a round: rotated, so that no rung always runs first or beside the same hour of the machine."""
    if count == 0:
        return []
    start = round_index * max(1, count // max(1, rounds)) % count
    return [(start + place) % count for place in range(count)]


def harder_than_errors(slo: Objectives) -> tuple[str, ...]:
    """Say which percentiles allow fewer failures than the errors objective does: they decide, not it."""
    if slo.errors is None:
        return ()
    harder = [one for one in slo.latency if slo.errors - (1 - one.share) > 1e-9]
    return tuple(
        f"A request without an answer exceeds every limit: {one.name} allows {100 * (1 - one.share):.3g} % of them, so "
        f"the {100 * slo.errors:.3g} % of the errors objective are never reached."
        for one in harder
    )


# -- Evidence ----------------------------------------------------------------------------------------------------------


class LadderEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What rungs need to know of one version of the model.

    Args:
        source: the variant that all others are judged against.
        quality: per variant, its metrics on the holdout.
        refusals: per variant, why it may not be served.
    """

    source: str = ""
    quality: dict[str, dict[str, float]] = {}
    refusals: dict[str, str] = {}


def read_evidence(manifest: Manifest) -> LadderEvidence:
    """Read the evidence of the promoted version, or of the latest one where none is promoted.

    Raises:
        ArtifactError: rungs stand for variants, and nothing was built.
    """
    deployment = manifest.deployment
    wanted = [rung.variant for rung in deployment.ladder.rungs if rung.variant]
    registry = Registry.of(manifest)
    try:
        promoted = registry.promotion(deployment.name) is not None
        version = registry.version(deployment.name, "promoted" if promoted else "latest")
    except ArtifactError:
        if wanted:
            raise
        return LadderEvidence()
    return evidence_of(version, wanted)


def evidence_of(version: Version, wanted: list[str]) -> LadderEvidence:
    """Take quality and refusals out of a version's record.

    Args:
        version: the record.
        wanted: variants that rungs stand for; one that the version lacks is refused.
    """
    refusals = {name: record.refused for name, record in version.variants.items() if record.refused}
    for name in wanted:
        if name not in version.variants:
            refusals[name] = f"not in the registry (version {version.id} has {', '.join(version.variants)})"
    quality = {name: record.evidence.metrics for name, record in version.variants.items()}
    return LadderEvidence(source=version.source, quality=quality, refusals=refusals)


# -- The pilot ---------------------------------------------------------------------------------------------------------


# The pilot's own capacity, from which the comfortable rate follows.

TRICKLE_RPS = 8.0
COMFORTABLE_SHARE = 0.7
QUEUE_FACTOR = 4.0
"""The queue counts as growing where p95 is above this many times the unloaded one."""
_TRICKLE_S = 5.0


def measure_pilot(plan: LoadPlan, slo: Objectives, limits: SearchLimits) -> PilotFacts:
    """Find how much the pilot takes before its queue grows.

    The comfortable rate is 70 % of the highest rate whose queue does not grow: answers keep up with at least 98 % of
    what is offered, p95 stays within 4 times the unloaded one, and at most 1 % fail.

    Args:
        plan: traffic and step length.
        slo: the deployment's, to say whether the pilot meets it when nothing else is going on.
        limits: when the search ends.

    Raises:
        LoadTestError: the pilot answers nothing, or no rate is comfortable.
    """
    trickle = msgspec.structs.replace(
        plan,
        rate=TRICKLE_RPS,
        arrivals="constant",
        duration_s=max(plan.duration_s, _TRICKLE_S),
        warmup_s=1.0,
        timeout_s=max(plan.timeout_s, 5.0),
        slo=slo,
    )
    unloaded = run(trickle)
    if unloaded.latency_ms is None:
        raise LoadTestError(
            f"the pilot answered none of {unloaded.requests} requests at {TRICKLE_RPS:g} req/s",
            hint="see its log in the output folder",
        )
    p95_ms = unloaded.latency_ms.p95
    limit = Objectives(latency=(LatencyObjective(share=0.95, limit_s=QUEUE_FACTOR * p95_ms / 1e3),), errors=0.01)
    # Half of what it would do one request after the other: surely below its capacity, and not far.
    start = max(4.0, 0.5 * 1e3 / unloaded.latency_ms.p50)
    found = find_capacity(plan, limit, start_rate=start, judge=queue_grows, limits=limits)
    if found.rate == 0:
        raise LoadTestError(
            f"the pilot's queue grows at every rate tried: {found.limit}", hint="check whether the machine is busy"
        )
    met = all(finding.met for finding in unloaded.findings)
    return PilotFacts(
        unloaded_p95_ms=p95_ms,
        meets_slo_unloaded=met,
        saturation_rate=found.rate,
        saturation_limit=found.limit,
        comfortable_rate=round(COMFORTABLE_SHARE * found.rate, 1),
        note=describe_pilot(found, p95_ms, slo, met),
    )


def queue_grows(result: LoadResult) -> str:
    """Say why a step shows a growing queue; empty where it does not."""
    # Requests in flight at the window's edges are no backlog: at low rates they alone are more than 2 %. Nor is what
    # was answered with an error: that is judged as one.
    edge_rps = 3.0 / result.window_s
    if not result.stopped and result.replied_rps < 0.98 * result.offered_rps - edge_rps:
        return f"answers fall behind: {result.replied_rps:.1f}/s of {result.offered_rps:.1f}/s offered"
    return result.first_miss


def describe_pilot(found: CapacityResult, p95_ms: float, slo: Objectives, met: bool) -> str:
    """Put into words what was found, and how sure it is."""
    at_least = "" if found.complete and found.limit and not found.generator_limited else "at least "
    doubts = {
        "the search ran out of time": not found.complete,
        "no tried rate was too high": found.complete and not found.limit,
        "the load generator itself was late": found.generator_limited,
        "the repeat failed": not found.confirmed,
    }
    doubt = "; ".join(why for why, holds in doubts.items() if holds)
    own = (
        f"It is 70 % of the pilot's own capacity: {at_least}{found.rate:.3g} req/s without a growing queue"
        f" (p95 within {QUEUE_FACTOR:g} times the unloaded {p95_ms:.1f} ms{f'; {doubt}' if doubt else ''})."
    )
    return own if met else f"{own} It misses the SLO ({slo}) even at {TRICKLE_RPS:g} req/s."


# -- Answers of the rungs ----------------------------------------------------------------------------------------------


# Compared with the pilot's, on a sample of the traffic.

_TIMEOUT_S = 30.0


def compare_rungs(
    bench: Bench,
    rungs: Sequence[RungRecord],
    payloads: Sequence[Payload],
    pairs: Sequence[FieldPair],
    tell: Callable[[str], None],
) -> None:
    """Ask the pilot and each rung the same requests, and keep with the rung what differs.

    The pilot runs beside each rung in turn, because answers may change with time. A request whose answers differ is
    sent to both once more. A rung that cannot be asked says why; it is measured all the same.

    Args:
        bench: starts servers.
        rungs: those of the ladder, the pilot's own among them.
        payloads: of the traffic.
        pairs: fields that belong together; empty: those with equal names.
        tell: hears what is being done.

    Raises:
        ManifestError: a field of ``pairs`` is in no reply.
    """
    asked = [rung for rung in rungs if not (rung.pilot or rung.refused)]
    try:
        with bench.server(pilot_rung()) as server:
            pilot = Asker(bench.url(server, pilot=True), timeout_s=_TIMEOUT_S)
            for rung in asked:
                rung.parity = _of_rung(bench, rung, pilot, payloads, pairs)
                tell(f"{rung.name}: {describe_answers(rung.parity)}")
    except ManifestError:
        raise
    except TailcutError as error:
        tell(f"answers were not compared: {error.message}")


def describe_answers(found: RungParity) -> str:
    """Say in words how the answers compare."""
    if found.failed:
        return f"answers were not compared: {found.failed}"
    parts = []
    if not (found.differing or found.status_differences):
        parts.append(f"the pilot's answers to {found.requests} requests")
    if found.differing:
        most = "" if found.max_difference is None else f", by {found.max_difference:.3g} at most in {found.output}"
        parts.append(f"{found.differing} of {found.requests} answers differ from the pilot's{most}")
    if found.status_differences:
        parts.append(f"{found.status_differences} of {found.requests} requests were answered by one side only")
    if found.left_out:
        parts.append(f"not compared: {', '.join(found.left_out)}")
    return "; ".join(parts)


def _of_rung(
    bench: Bench, rung: RungRecord, pilot: Asker, payloads: Sequence[Payload], given: Sequence[FieldPair]
) -> RungParity:
    try:
        with bench.server(rung) as server:
            ours = Asker(bench.url(server, pilot=False), timeout_s=_TIMEOUT_S)
            exchanges = [exchange(number, one, pilot, ours, AS_IT_IS) for number, one in enumerate(payloads, 1)]
            pairs = choose_pairs(exchanges, given)
            settled = [
                exchange(one.number, payload, pilot, ours, AS_IT_IS) if _differs(one, pairs) else one
                for one, payload in zip(exchanges, payloads, strict=True)
            ]
    except ManifestError:
        raise  # it would be the same with every rung
    except TailcutError as error:
        return RungParity(failed=f"{error.message}; {error.hint}" if error.hint else error.message)
    return _figures(settled, pairs)


def _differs(one: ParityExchange, pairs: Sequence[FieldPair]) -> bool:
    return outcome_of(one, pairs, differences_in(one, pairs, {})) in {"differs", "status"}


def _figures(exchanges: Sequence[ParityExchange], pairs: Sequence[FieldPair]) -> RungParity:
    outcomes = [outcome_of(one, pairs, differences_in(one, pairs, {})) for one in exchanges]
    answered = [one for one in exchanges if one.theirs.answered and one.ours.answered]
    sizes = [
        (found.largest, pair.name)
        for pair in pairs
        if (found := figures_of(answered, pair, DEFAULT)).differing and found.largest is not None
    ]
    largest = max(sizes, default=(None, ""))
    return RungParity(
        requests=len(exchanges) - outcomes.count("uncompared"),
        differing=outcomes.count("differs"),
        status_differences=outcomes.count("status"),
        max_difference=largest[0],
        output=largest[1],
        left_out=tuple(unmatched(pairs, exchanges)[1]),
    )
