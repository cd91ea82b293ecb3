"""Source model + holdout -> variants, judged and stored; the cheapest one that passed is promoted.

    holdout -> source, scored -> its export, scored -> both tuned -> each other recipe, scored and tuned
            -> judge quality -> race -> load -> registry

Each arrow but the load is a fork of one warm process, with a time and a memory limit. What fails before the source is
scored ends the build, and so does an export that fails where nothing can be made without it; what fails later costs one
variant, which the record keeps with the reason. Quality is judged on the holdout's confirmation split; calibration and
every choice saw the selection split only.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import asdict, replace

from tailcut.builder import code_snapshot, host_capabilities, limits, preflight, sources, steps, workspace
from tailcut.builder.children import StepRunner
from tailcut.builder.holdouts import drift_reference, kept_rows
from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.plan import Applicable, applicable, base_of
from tailcut.builder.progress import Event, Progress, State, silent
from tailcut.builder.quality import logged, outputs
from tailcut.builder.recipes import catalog, int8_qat
from tailcut.builder.recipes.base import Recipe, Subject
from tailcut.builder.records import Made, spec, to_add
from tailcut.builder.sources import Found
from tailcut.builder.speed import served, verdicts
from tailcut.builder.speed.rounds import Entrant, Rounds
from tailcut.builder.steps import SELECTION_FILE, Step
from tailcut.common.runtime_spec import spec_of
from tailcut.errors import ArtifactError, BuildError, DoesNotApply, TailcutError
from tailcut.gate import Agreement
from tailcut.manifest import Deployment, Manifest
from tailcut.manifest.keys import to_plain
from tailcut.models.runtimes.live import LIVE
from tailcut.models.tuning import without_tuned
from tailcut.registry import (
    NewVariant,
    Promotion,
    Registry,
    VariantEvidence,
    Version,
    VersionEvidence,
    digest,
    read_machine,
)
from tailcut.registry.evidence import Choice, LoadSummary, LoggedAgreement, Race, Tuning


def build(
    manifest: Manifest,
    *,
    from_registry: str = "",
    progress: Progress = silent,
    feature_models: Mapping[str, str] | None = None,
) -> tuple[Version, Promotion]:
    """Build, judge, store and promote.

    Args:
        manifest: names the source model, the holdout, the quality budget, the recipes and the registry.
        from_registry: start from this version's portable base ("promoted", "latest" or an id) instead of from
            ``model.source``.
        progress: told of every event; see ``progress.Event``.
        feature_models: version of each model that computes features, for the record: the holdout holds their answers.

    Returns:
        the stored version, and what is promoted: the cheapest variant that passed and meets the SLO.

    Raises:
        ManifestError: an unknown recipe, no holdout, or a file or function that is not there.
        BuildError: another build of this model, or the source or the holdout does not work, or nothing can be made of
            the source.
        ArtifactError: the registry cannot be written.
    """
    deployment = manifest.deployment
    preflight.check(manifest, from_registry=from_registry)
    registry = Registry.of(manifest)
    origins = {} if from_registry else _origins(manifest)
    with registry.build_lock(deployment.name), workspace.folder() as folder, StepRunner() as runner:
        running = Building(manifest, folder, host_capabilities.look(), progress, runner)
        read = running.step(steps.HOLDOUT, base=from_registry)
        holdout, written = read.holdout, read.code
        subject = running.take_base(from_registry) if from_registry else running.make_source()
        _make_others(running, subject)
        _judge_quality(running, registry, holdout.confirmation.sha256)
        race = _race(running)
        choice, load = _judge_speed(running)
        running.conclude()
        evidence = VersionEvidence(
            machine=read_machine(),
            versions=host_capabilities.versions(),
            holdout=holdout,
            bounds=tuple(running.proven.bounds),
            table_sizes=running.proven.sizes,
            race=race,
            load=load,
            choice=choice,
            rate=deployment.slo.rate,
            durations_s=running.durations_s,
            code_left_out=written.left_out,
            feature_models=dict(feature_models or {}),
            code=written.code,
        )
        code_snapshot.check_unchanged(written, manifest)
        version = _store(running, registry, evidence, origins, written)
        return version, registry.promote(deployment.name, version.id, choice.variant)


NOT_JUDGED = "the source variant: speed was not judged (build.rounds = 0)"


def _make_others(running: Building, subject: Subject) -> None:
    """Make what can be made of the source.

    Exports come first, and settings are chosen once they are there: that takes longer than an export, and would be
    for nothing where the build ends without one.
    """
    recipes = applicable(subject, running.here)
    running.announce(recipes)
    why_not = {each.name: each.why_not for each in recipes}
    left = [recipe for recipe in catalog() if recipe.name not in running.candidates]
    while left:
        recipe = left.pop(0)
        if why_not[recipe.name]:
            refusals = [why_not[recipe.name]]
            running.candidates[recipe.name] = Candidate(recipe.name, recipe.runtime, refusals=refusals)
            continue
        if recipe.precision != "portable":
            running.tune_all()
        running.make(recipe)
        _check_exported(running, [each for each in left if not why_not[each.name]])
    running.tune_all()


def _check_exported(running: Building, left: Collection[Recipe]) -> None:
    """End the build of a torch module that could not be exported, so that nothing can be made of it.

    Running servers follow what is promoted: a bare module in place of a fast variant would slow them down. A model on
    tables is worth serving by its own library; its export stays refused, with the reason.

    Args:
        left: recipes that are still to be tried.
    """
    failed = [each for each in running.candidates.values() if each.base and each.failure is not None]
    made = [each.name for each in running.made]
    if spec_of(running.candidates[running.source].runtime).tables:
        return
    if not failed or failed[0].failure is None or len(made) > 1 or any(base_of(each, made) for each in left):
        return
    why = failed[0].failure
    alone = f"the registry is unchanged; `tailcut build --recipes {running.source}` keeps the source model alone"
    raise BuildError(
        f"nothing could be built from the source model {running.source!r}: {why.message}",
        hint=f"{why.hint}; {alone}" if why.hint else alone,
    )


def _judge_quality(running: Building, registry: Registry, split: str) -> None:
    """Judge all variants together on the confirmation split, and write down that it was used."""
    model = running.manifest.deployment.name
    artifacts = [each.sha256 for each in running.made if each.name != running.source]
    if not artifacts:
        return
    uses = registry.confirmations(model, split, artifacts)
    judged = running.step(steps.JUDGE, str(uses))
    compared = running.step(steps.JUDGE_LOGGED) if running.manifest.deployment.holdout.request_log else {}
    registry.record_confirmation(model, split, artifacts)
    for name, verdict in judged.items():
        candidate = running.candidates[name]
        if verdict.outcome != "pass":
            candidate.refusals.append(verdict.reason)
        if name in compared:
            _judge_logged(candidate, compared[name], verdict.agreement)
        candidate.refusals += _other_outputs(candidate, running.manifest.deployment)
        if beyond := limits.refusal(candidate.evidence.edges):
            candidate.refusals.append(beyond)
        # What is refused later is its speed.
        candidate.evidence = replace(candidate.evidence, quality=verdict, quality_refusal=candidate.refused)
        running.progress(Event(state="judged", variant=name, reason=candidate.refused))
    _offer_qat(running)


def _judge_logged(candidate: Candidate, found: LoggedAgreement, held: Agreement) -> None:
    """Note how a variant agrees with the source model on logged rows, and refuse it where the budget says so.

    Args:
        held: the agreement on the holdout.
    """
    noted = replace(found, warning=logged.warning(found, held))
    candidate.evidence = replace(candidate.evidence, logged=noted)
    if why := logged.refusal(found):
        candidate.refusals.append(why)


def _other_outputs(candidate: Candidate, deployment: Deployment) -> list[str]:
    """Say which outputs that are not judged refuse a variant."""
    said = [
        outputs.refusal(name, found, deployment.quality)
        for name, found in candidate.evidence.outputs.items()
        if name != deployment.judged
    ]
    return [text for text in said if text]


def _offer_qat(running: Building) -> None:
    """Offer training with quantisation by name where INT8 lost quality."""
    qat = running.candidates.get("int8-qat")
    int8 = {each.name for each in catalog() if each.precision == "int8"}
    lost = {each.name for each in running.made if each.refused} & int8 - {int8_qat.Int8Qat.name}
    if qat is not None and qat.made is None and qat.refusals and lost:
        qat.refusals = [int8_qat.offer(qat.refused, lost)]


def _race(running: Building) -> Race:
    """Time the bare runtimes, interleaved: evidence for the table, no verdict."""
    try:
        raced = running.step(steps.RACE)
    except TailcutError as error:
        return Race(failed=error.message)
    for candidate in running.made:
        mine, theirs = raced.ms[candidate.name], raced.ms[candidate.reference or candidate.name]
        candidate.evidence = replace(candidate.evidence, bare_ms=mine, bare_ratio=verdicts.ratios(mine, theirs))
    return raced.race


def _play(running: Building) -> Rounds:
    """Send load to every variant until the verdicts are decided."""
    made = [each.made for each in running.made if each.made is not None]
    entrants = [Entrant(each.name, each.reference, bool(each.refused)) for each in running.made]
    selection = Holdout.load(running.folder / SELECTION_FILE)
    tell, bounds = running.progress, running.proven.bounds
    try:
        return running.timed(
            Event(state="started", step="load"),
            lambda: served.run(running.manifest, made, entrants, selection, running.folder, tell, bounds),
        )
    except ArtifactError as error:  # of the registry that speed makes for itself in the build's folder
        raise BuildError(error.message, hint=workspace.WAY_OUT) from error


def _judge_speed(running: Building) -> tuple[Choice, LoadSummary | None]:
    """Send load to every variant, and choose; say what the rounds were."""
    if not running.manifest.deployment.build.rounds:
        return Choice(variant=running.source, why=NOT_JUDGED, meets_slo=False), None
    played = _play(running)
    for candidate in running.made:
        name, trial = candidate.name, played.trial(candidate.name)
        verdict = played.verdict(name)
        if verdict is None:
            candidate.evidence = replace(candidate.evidence, load=trial)
            failed = trial.failed or played.trial(candidate.reference).failed
            candidate.refusals.append(f"not measured under load: {failed}")
            continue
        candidate.evidence = replace(candidate.evidence, load=trial, speed=verdict, cost=played.price(name))
        # One that was measured no longer because its quality refuses it has no verdict on its speed to tell.
        is_judged = verdict.outcome != "open" or not candidate.refused
        if candidate.reference and is_judged and (why := verdicts.speed_refusal(verdict)):
            candidate.refusals.append(why)
    refused = {each.name: each.refused for each in running.candidates.values()}
    chosen = played.choice(refused)
    if chosen is None:
        raise BuildError(
            f"no variant could be judged under load; {running.source} {refused[running.source]}",
            hint="try `tailcut check` and `tailcut serve`; the registry is unchanged",
        )
    return chosen, played.summary()


def _store(
    running: Building,
    registry: Registry,
    evidence: VersionEvidence,
    origins: dict[Path, str],
    written: code_snapshot.WrittenCode,
) -> Version:
    deployment = running.manifest.deployment
    return registry.add(
        deployment.name,
        source=running.source,
        inputs=deployment.model.inputs,
        outputs=deployment.model.outputs,
        variants=[_to_add(each, running) for each in running.candidates.values()],
        evidence=evidence,
        manifest={key: value for key, value in to_plain(deployment).items() if key != "observe"},
        origins=origins,
        files=(
            code_snapshot.files_of(written, running.folder)
            | kept_rows.files(running.folder)
            | drift_reference.files(running.folder, [each.name for each in running.made])
        ),
    )


def _to_add(candidate: Candidate, running: Building) -> NewVariant:
    made = candidate.made
    plain = to_add(made) if made else NewVariant(name=candidate.name, runtime=candidate.runtime, artifact=None)
    needs_code = made is not None and (candidate.name == running.source or candidate.runtime in LIVE)
    return dataclasses.replace(
        plain,
        refused=candidate.refused,
        evidence=candidate.evidence,
        base=candidate.base,
        live_code=running.live_code if needs_code else (),
    )


def _origins(manifest: Manifest) -> dict[Path, str]:
    """Hash the files that the source model comes from, so that one that changes during the build is noticed."""
    path = sources.source_file(manifest)
    if path is None or not path.exists():
        return {}
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    return {file: digest(file) for file in files}


# -- A build under way -------------------------------------------------------------------------------------------------


# Its candidates, and the steps that make and score them.

T = TypeVar("T")

ABOUT_ONE: tuple[Step[Any], ...] = (steps.MAKE, steps.SCORE, steps.TUNE)
"""Steps whose target is a variant."""


@dataclass
class Candidate:
    """One variant on its way through the build."""

    name: str
    runtime: str
    reference: str = ""
    """The variant that it was made from and must beat; empty for the source."""
    made: Made | None = None
    base: bool = False
    """Whether it is a portable fp32 form of the source model, from which another machine builds its own variants."""
    refusals: list[str] = field(default_factory=list)
    evidence: VariantEvidence = field(default_factory=VariantEvidence)
    failure: TailcutError | None = None
    """What its making ended with, where it did not end well."""

    @property
    def sha256(self) -> str:
        """Of the artifact."""
        assert self.made is not None
        return digest(Path(self.made.path))

    @property
    def refused(self) -> str:
        """Why it may not be promoted; empty where it may."""
        return "; ".join(self.refusals)


@dataclass
class Building:
    """One build under way."""

    manifest: Manifest
    folder: Path
    here: HostCapabilities
    progress: Progress
    runner: StepRunner
    candidates: dict[str, Candidate] = field(default_factory=dict)
    source: str = ""
    live_code: tuple[str, ...] = ()
    """Of the source variant, as far as it needs some."""
    proven: limits.FoundBounds = field(default_factory=limits.FoundBounds)
    """Limits of its inputs that the source proves: serving holds every variant's requests to them."""
    durations_s: dict[str, float] = field(default_factory=dict)

    @property
    def made(self) -> list[Candidate]:
        """What has an artifact, the source first."""
        return [each for each in self.candidates.values() if each.made is not None]

    def step(self, step: Step[T], target: str = "", base: str = "") -> T:
        """Run one step in a child process, timed and announced."""
        made = [each.made for each in self.made if each.made is not None]
        section = self.manifest.deployment.build
        return self.timed(
            Event(state="started", step=step.name, variant=target if step in ABOUT_ONE else ""),
            lambda: self.runner.run(
                spec(step.name, self.manifest, self.folder, made, target, base),
                step.found,
                timeout_s=section.step_timeout_s,
                memory_bytes=section.step_memory_bytes,
            ),
        )

    def timed(self, event: Event, work: Callable[[], T]) -> T:
        """Do a piece of work, timed and announced; ``event`` says that it starts."""
        self.progress(event)
        begun_s = time.monotonic()
        try:
            found = work()
        except TailcutError as error:
            took_s = time.monotonic() - begun_s
            state: State = "absent" if isinstance(error, DoesNotApply) else "failed"
            self.progress(replace(event, state=state, seconds=took_s, reason=error.message))
            raise
        took_s = time.monotonic() - begun_s
        self.durations_s[event.what] = round(took_s, 3)
        self.progress(replace(event, state="done", seconds=took_s))
        return found

    def announce(self, recipes: Collection[Applicable]) -> None:
        """Tell which recipes will be tried and which will not, and why."""
        for each in recipes:
            if each.name not in self.candidates:
                state: State = "absent" if each.why_not else "waiting"
                self.progress(Event(state=state, variant=each.name, reason=each.why_not))

    def refuse(self, candidate: Candidate, why: str) -> None:
        """Refuse a variant, and tell."""
        candidate.refusals.append(why)
        self.progress(Event(state="refused", variant=candidate.name, reason=why))

    def conclude(self) -> None:
        """Tell what became of every variant that was made."""
        for each in self.made:
            state: State = "refused" if each.refused else "passed"
            self.progress(Event(state=state, variant=each.name, reason=each.refused))

    def score(self, candidate: Candidate) -> None:
        """Score a variant on the holdout; without scores it is no variant."""
        assert candidate.made is not None
        try:
            found = self.step(steps.SCORE, candidate.name)
        except TailcutError:
            candidate.made = None
            raise
        candidate.evidence = replace(candidate.evidence, **asdict(found))
        candidate.made = replace(candidate.made, rows_alone=found.rows_alone)

    def tune_all(self) -> None:
        """Choose the runtime settings of every variant that was made and has none of its own yet."""
        for candidate in self.made:
            if candidate.evidence.tuning is None:
                self.tune(candidate)

    def tune(self, candidate: Candidate) -> None:
        """Choose the variant's runtime settings by measurement; where that fails it keeps those that it has."""
        assert candidate.made is not None
        try:
            found = self.step(steps.TUNE, candidate.name)
        except TailcutError as error:
            found = Tuning(failed=error.message)
        if found.settings:
            settings = {**without_tuned(candidate.made.runtime, candidate.made.settings), **found.settings}
            candidate.made = replace(candidate.made, settings=settings)
        candidate.evidence = replace(candidate.evidence, tuning=found)

    def make_source(self) -> Subject:
        """Make and score the source variant; say what it is."""
        found = self.step(steps.SOURCE)
        self.score(self._take_source(found))
        return Subject(kind=found.kind, trees=found.trees, deployment=self.manifest.deployment)

    def _take_source(self, found: Found) -> Candidate:
        self.source, self.live_code, self.proven = found.variant, found.live_code, found.limits
        return self._take(found)

    def _take(self, found: Found, reference: str = "") -> Candidate:
        """Take up a variant that no recipe of this build made."""
        made = Made(name=found.variant, runtime=found.runtime, path=found.path, settings=found.settings)
        evidence = VariantEvidence(recipe=found.found)
        candidate = Candidate(found.variant, found.runtime, reference, made=made, base=True, evidence=evidence)
        self.candidates[found.variant] = candidate
        return candidate

    def take_base(self, version: str) -> Subject:
        """Take the source variant, and other fp32 variants of the portable base, from the registry; score them."""
        first, *others = self.step(steps.BASE, version)
        self.score(self._take_source(first))
        for found in others:
            candidate = self._take(found, first.variant)
            try:
                self.score(candidate)
            except TailcutError as error:
                self.refuse(candidate, error.message)
        return Subject(kind=first.kind, trees=first.trees, deployment=self.manifest.deployment)

    def make(self, recipe: Recipe) -> None:
        """Make a variant and score it; what goes wrong is its refusal."""
        candidate = Candidate(recipe.name, recipe.runtime, base=recipe.precision == "portable")
        self.candidates[recipe.name] = candidate
        base = base_of(recipe, [each.name for each in self.made])
        if not base:
            lacks = recipe.base[0]
            other = self.candidates.get(lacks)
            why = (other.refused if other else "it was not requested").partition("\n")[0]
            self.refuse(candidate, f"is made from {lacks!r}, which was not built: {why}")
            return
        candidate.reference = base
        try:
            made = self.step(steps.MAKE, recipe.name, base)
            path = self.folder / f"{recipe.name}{recipe.suffix}"
            candidate.made = Made(
                name=recipe.name,
                runtime=recipe.runtime,
                path=str(path),
                settings=dict(made.settings),
                parts=dict(made.parts),
            )
            candidate.reference = made.reference or base
            candidate.evidence = replace(candidate.evidence, recipe=made.recipe())
            self.score(candidate)
        except DoesNotApply as error:
            candidate.refusals.append(error.message)
        except TailcutError as error:
            candidate.failure = error
            self.refuse(candidate, error.message)
