"""The steps of a build, as they run inside a child process. Each takes a Spec and returns what it found, as a type."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from tailcut.builder import code_snapshot, host_capabilities, limits, preflight, sources
from tailcut.builder.bounds.trials import Call
from tailcut.builder.calling import call
from tailcut.builder.holdouts import arrays, datatypes, drift_reference, kept_rows, labels, logged
from tailcut.builder.holdouts import files as holdout_files
from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.quality import batch_invariance, export_check, judging, outputs, scoring
from tailcut.builder.quality import logged as logged_rows
from tailcut.builder.recipes import recipe
from tailcut.builder.recipes.base import Result, Work
from tailcut.builder.records import Made, Spec, manifest_of, openable
from tailcut.builder.sources import Found, registry
from tailcut.builder.speed import tuning
from tailcut.builder.speed.interleaving import take_turns
from tailcut.common.metric_names import AGREEMENT
from tailcut.common.scalars import Scalar
from tailcut.common.tensors import Arrays
from tailcut.errors import BuildError
from tailcut.gate import QualityVerdict, are_decisions
from tailcut.manifest import Deployment, Manifest
from tailcut.models.runtimes import Runtime, open_runtime
from tailcut.models.runtimes.live import source_of
from tailcut.models.runtimes.row_coupling import coupling_operators
from tailcut.registry import read_machine
from tailcut.registry.evidence import (
    EdgeFinding,
    HoldoutEvidence,
    LabelCoding,
    LoggedAgreement,
    LoggedRows,
    Race,
    Scores,
    Split,
    Tuning,
)

T = TypeVar("T")

SELECTION_FILE = "selection.npz"
CONFIRMATION_FILE = "confirmation.npz"
LOGGED_FILE = "logged.npz"


class HoldoutRead(msgspec.Struct, frozen=True, kw_only=True):
    """The holdout, and the user's code as the build found it."""

    holdout: HoldoutEvidence
    code: code_snapshot.WrittenCode


def load_holdout(spec: Spec) -> HoldoutRead:
    """Read the holdout, check it, split it, and keep both parts for the other steps."""
    manifest = manifest_of(spec)
    preflight.check_holdout(manifest)
    written = code_snapshot.write_down(manifest, Path(spec.folder), source=not spec.base)
    preflight.import_all(manifest, from_registry=spec.base)
    holdout = datatypes.fitted(_read_holdout(manifest), manifest.deployment.model)
    section = manifest.deployment.holdout
    parts = holdout.split(float(section.selection), group=section.group)
    drift_reference.write_inputs(Path(spec.folder), holdout, manifest.deployment)
    for part, file in zip(parts, (SELECTION_FILE, CONFIRMATION_FILE), strict=True):
        part.save(Path(spec.folder) / file)
    selection, confirmation = (Split(rows=part.rows, sha256=part.digest()) for part in parts)
    numbers = holdout.labels if holdout.labels is not None and holdout.labels.dtype.kind in "biuf" else None
    found = HoldoutEvidence(
        rows=holdout.rows,
        sha256=holdout.digest(),
        selection=selection,
        confirmation=confirmation,
        slices=sorted(holdout.slices),
        labelled=holdout.labels is not None,
        label_mean=None if numbers is None else float(numbers.astype(np.float64).mean()),
    )
    if section.request_log:
        rows, notes = logged.read(manifest, holdout.padding)
        rows.save(Path(spec.folder) / LOGGED_FILE)
        distinct = len(np.unique(rows.slices[logged.DISTINCT]))
        kept = LoggedRows(rows=rows.rows, distinct=distinct, sha256=rows.digest(), notes=list(notes))
        found = replace(found, logged=kept)
    return HoldoutRead(holdout=found, code=written)


def _read_holdout(manifest: Manifest) -> Holdout:
    reference = manifest.deployment.holdout.source
    if holdout_files.is_file(reference):
        return holdout_files.load(manifest)
    holdout = call("holdout.source", reference, manifest)
    if not isinstance(holdout, Holdout):
        raise BuildError(
            f"holdout.source {reference} gave a {type(holdout).__name__}, expected a tailcut.build.Holdout",
            hint="return Holdout(inputs={...}, labels=...)",
        )
    return holdout


def make_source(spec: Spec) -> Found:
    """Load the source model, find its kind and write its artifact."""
    manifest, folder = manifest_of(spec), Path(spec.folder)
    return _as_source(sources.make(folder, manifest, _load(spec, SELECTION_FILE)), folder, manifest)


def _as_source(found: Found, folder: Path, manifest: Manifest) -> Found:
    """Keep what a source model says of labels and inputs for the steps to come."""
    limits.write(folder, found.limits)
    labelled = replace(found.found, labels=_set_coding(folder, found.found.classes, manifest))
    return replace(found, found=labelled)


def _set_coding(folder: Path, classes: list[Scalar] | None, manifest: Manifest) -> LabelCoding | None:
    """Say which label stands for which class, for the steps to come; and check that every label of the holdout does.

    Args:
        classes: the model's own; None where it has none.
    """
    coding = labels.coding_of(classes, manifest.deployment.holdout)
    given = [Holdout.load(folder / file) for file in (SELECTION_FILE, CONFIRMATION_FILE)]
    for part in given:
        part.coded(coding)
    labels.write(folder, coding)
    return labels.describe([part.labels for part in given if part.labels is not None], coding)


def take_base(spec: Spec) -> list[Found]:
    """Fetch the portable base of the registry's version ``spec.target``, the reference of every verdict first."""
    manifest, folder = manifest_of(spec), Path(spec.folder)
    first, *others = registry.fetch(folder, manifest, spec.target)
    return [_as_source(first, folder, manifest), *others]


def make_variant(spec: Spec) -> Result:
    """Run the recipe ``spec.target`` on the variant ``spec.base``."""
    made = {each.name: each for each in spec.made}
    work = Work(
        manifest=manifest_of(spec),
        folder=Path(spec.folder),
        path=artifact(spec.folder, spec.target),
        base=made[spec.base],
        made=made,
        selection=_load(spec, SELECTION_FILE),
        here=host_capabilities.look(),
    )
    found = recipe(spec.target).make(work)
    # A recipe of another package may give any mapping; what goes to the parent are dictionaries.
    return dataclasses.replace(found, found=dict(found.found), settings=dict(found.settings), parts=dict(found.parts))


def score(spec: Spec) -> Scores:
    """Score one variant on the confirmation split; the first one scored in a build is the source model.

    Batches come first: they are quick, and name the rows that are refused. A variant whose rows will run alone, because
    other rows in a batch change their answers, is judged by what it answers alone, and at once where its operators say
    so.
    """
    manifest = manifest_of(spec)
    deployment = manifest.deployment
    holdout = _load(spec, CONFIRMATION_FILE)
    is_source = spec.target == spec.made[0].name
    made = _made(spec, spec.target)
    runtime = _open(spec, made, threads=read_machine().cores)
    if is_source:
        export_check.check_outputs(runtime, holdout, deployment.model.outputs)
    alone = bool(coupling_operators(_files(made)))
    found = _every(runtime, holdout, deployment, alone=alone)
    coupling = batch_invariance.measure(runtime, holdout, deployment.model, _files(made))
    if coupling.rows_alone and not alone:
        found = _every(runtime, holdout, deployment, alone=True)
    arrays.save(scores_file(spec.folder, spec.target), found)
    drift_reference.write_outputs(Path(spec.folder), spec.target, found, holdout, deployment)
    logged_failed = _score_logged(spec, runtime, deployment, alone=coupling.rows_alone)
    source = found if is_source else _scores(spec, spec.made[0].name)
    scores = replace(
        _evidence(spec, holdout, found, source, is_source),
        neighbour=coupling,
        rows_alone=coupling.rows_alone,
        logged=LoggedAgreement(failed=logged_failed) if logged_failed else None,
    )
    if is_source:
        bounds = limits.read(Path(spec.folder)).bounds
        kept = kept_rows.choose(holdout, found, deployment.model, bounds, deployment.holdout.keep)
        kept_rows.write(Path(spec.folder), kept)
        return scores
    return replace(scores, edges=_edges(spec, runtime, holdout, deployment))


def _score_logged(spec: Spec, runtime: Runtime, deployment: Deployment, *, alone: bool) -> str:
    """Keep a variant's judged output on the logged rows; say why it has none where it refuses them."""
    file = Path(spec.folder) / LOGGED_FILE
    if not file.exists():
        return ""
    try:
        found = scoring.every(runtime, Holdout.load(file), [deployment.judged], alone=alone)
    except BuildError as error:
        return error.message.replace("of the holdout", "of the logged ones")
    arrays.save(_logged_file(spec, spec.target), found)
    return ""


def _logged_file(spec: Spec, name: str) -> Path:
    return Path(spec.folder) / f"logged-{name}.npz"


def judge_logged(spec: Spec) -> dict[str, LoggedAgreement]:
    """Compare every variant that answered the logged rows with the source model on them."""
    manifest = manifest_of(spec)
    judged, source = manifest.deployment.judged, spec.made[0].name
    found = {}
    for name in [made.name for made in spec.made if _logged_file(spec, made.name).exists()]:
        with np.load(_logged_file(spec, name), allow_pickle=False) as kept:
            found[name] = kept[judged]
    if source not in found:
        return {}
    holdout, own = _load(spec, CONFIRMATION_FILE), _scores(spec, source)[judged]
    budget = judging.budget_of(manifest, holdout, own)
    return logged_rows.judge(
        found,
        Holdout.load(Path(spec.folder) / LOGGED_FILE),
        source=source,
        decisions=AGREEMENT in budget or are_decisions(own, holdout.labels, budget),
        confidence=manifest.deployment.quality.confidence,
        budget=budget,
    )


def _edges(spec: Spec, runtime: Runtime, holdout: Holdout, deployment: Deployment) -> list[EdgeFinding]:
    """Try a variant at and beyond the edges of the inputs, beside what the source answered there."""

    @cache
    def opened() -> Call:
        return _caller(_open(spec, spec.made[0], threads=read_machine().cores), deployment)

    def source(inputs: Arrays) -> Arrays:  # it runs for the first variant, and where a number differs
        return opened()(inputs)

    # Not with the source's own score: a source that crashes at an edge is served all the same where it is the only one.
    limits.answer_edges(Path(spec.folder), source, holdout, deployment.model)
    variant = _caller(runtime, deployment)
    return limits.edges(Path(spec.folder), recipe(spec.target).precision, source, variant, holdout, deployment.model)


def _caller(runtime: Runtime, deployment: Deployment) -> Call:
    names = [tensor.name for tensor in deployment.model.outputs]
    return lambda inputs: runtime.run(inputs, names)


def _every(runtime: Runtime, holdout: Holdout, deployment: Deployment, *, alone: bool = False) -> Arrays:
    others = [tensor for tensor in deployment.model.outputs if tensor.name != deployment.judged]
    nan = [tensor.name for tensor in others if tensor.allow_nan]
    names = [deployment.judged, *(tensor.name for tensor in others)]
    return scoring.every(runtime, holdout, names, alone=alone, nan=nan)


def _evidence(spec: Spec, holdout: Holdout, found: Arrays, source: Arrays, is_source: bool) -> Scores:
    """Return the judged output's metrics, and how far every output is from the source's."""
    manifest = manifest_of(spec)
    name = manifest.deployment.judged
    labels.check_scores(labels.read(Path(spec.folder)), found[name], name)
    budget = judging.standard(judging.budget_of(manifest, holdout, source[name]), manifest)
    metrics = scoring.measure(holdout, found[name], source[name], budget, name)
    if is_source:
        constant = scoring.constant(holdout, found[name], budget)
        return Scores(metrics=metrics, constant=constant, warnings=scoring.worse_than_constant(metrics, constant))
    compared = {each: outputs.compare(source[each], found[each]) for each in found}
    return Scores(metrics=metrics, agreement=scoring.agreement(source[name], found[name]), outputs=compared)


def tune(spec: Spec) -> Tuning:
    """Choose the runtime settings of one variant by measurement on the selection split."""
    made = _made(spec, spec.target)
    return tuning.tune(manifest_of(spec), made, _load(spec, SELECTION_FILE), cores=host_capabilities.look().cores)


def judge(spec: Spec) -> dict[str, QualityVerdict]:
    """Judge every variant's scores on the confirmation split together; ``spec.target`` is how often it was used."""
    manifest = manifest_of(spec)
    found = {made.name: _scores(spec, made.name) for made in spec.made}
    return judging.judge(
        manifest, _load(spec, CONFIRMATION_FILE), found, source=spec.made[0].name, uses=int(spec.target)
    )


class Raced(msgspec.Struct, frozen=True, kw_only=True):
    """What the race was, and what it measured: variant -> batch rows -> median milliseconds of each round."""

    race: Race
    ms: dict[str, dict[int, list[float]]]


def run_race(spec: Spec) -> Raced:
    """Interleaved bare latency of every variant in ``spec.made``."""
    manifest = manifest_of(spec)
    threads = {made.name: manifest.deployment.pool.threads_of(made.settings) for made in spec.made}
    runtimes = {made.name: _open(spec, made, threads=threads[made.name]) for made in spec.made}
    alone = [made.name for made in spec.made if made.rows_alone]
    found = race(runtimes, _load(spec, SELECTION_FILE), manifest.deployment.judged, alone=alone)
    return Raced(race=Race(threads=threads, rounds=ROUNDS, seed=SEED), ms=found)


@dataclasses.dataclass(frozen=True)
class Step(Generic[T]):
    """A step: its name, what does it in a child process, and the type of what it finds, which comes back as JSON."""

    name: str
    run: Callable[[Spec], T]
    found: type[T]


HOLDOUT = Step("holdout", load_holdout, HoldoutRead)
SOURCE = Step("source", make_source, Found)
BASE = Step("base", take_base, list[Found])
MAKE = Step("make", make_variant, Result)
SCORE = Step("score", score, Scores)
TUNE = Step("tune", tune, Tuning)
JUDGE = Step("judge", judge, dict[str, QualityVerdict])
JUDGE_LOGGED = Step("judge logged", judge_logged, dict[str, LoggedAgreement])
RACE = Step("race", run_race, Raced)

STEPS: dict[str, Step[Any]] = {
    each.name: each for each in (HOLDOUT, SOURCE, BASE, MAKE, SCORE, TUNE, JUDGE, JUDGE_LOGGED, RACE)
}


def artifact(folder: str | Path, name: str) -> Path:
    """Where a recipe leaves its file."""
    return Path(folder) / f"{name}{recipe(name).suffix}"


def scores_file(folder: str | Path, name: str) -> Path:
    """Where a variant's outputs on the confirmation split are kept."""
    return Path(folder) / f"scores-{name}.npz"


def _scores(spec: Spec, name: str) -> Arrays:
    with np.load(scores_file(spec.folder, name), allow_pickle=False) as kept:
        return {output: kept[output] for output in kept.files}


def _files(made: Made) -> tuple[Path, ...]:
    return (Path(made.path), *made.of_parts().values())


def _load(spec: Spec, part: str) -> Holdout:
    """Read a part of the holdout; labels are class numbers from the step on that knows the model's classes."""
    folder = Path(spec.folder)
    found = Holdout.load(folder / part)
    return found.coded(labels.read(folder)) if labels.known(folder) else found


def _made(spec: Spec, name: str) -> Made:
    return next(made for made in spec.made if made.name == name)


def _open(spec: Spec, made: Made, threads: int = 1) -> Runtime:
    manifest = manifest_of(spec)
    source = source_of(manifest, made.runtime)
    return open_runtime(openable(made, manifest.deployment), threads=threads, source=source)


# -- The race ----------------------------------------------------------------------------------------------------------


# A first speed check: bare runtime latency of all variants, interleaved. The verdict under load comes on top.

BATCH_ROWS = (1, 8)
ROUNDS = 7
SEED = 0
_BLOCK_S = 0.05
_CALLS = (3, 200)
_SAMPLES = 16
_WARM_UP_CALLS = 3


def race(
    runtimes: Mapping[str, Runtime],
    holdout: Holdout,
    output: str,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
    alone: Collection[str] = (),
) -> dict[str, dict[int, list[float]]]:
    """Time every runtime in turn, round after round, on the same rows.

    Each round runs a block of calls per variant, see ``take_turns``. Rows differ from call to call.

    Args:
        alone: variants that are served row by row: of a batch its rows are timed one after the other.

    Returns:
        variant -> batch rows -> median milliseconds of each round.
    """
    found: dict[str, dict[int, list[float]]] = {name: {} for name in runtimes}
    for rows in BATCH_ROWS:
        whole, apart = _samples(holdout, rows)
        blocks = {}
        for name, runtime in runtimes.items():
            timed = partial(_block, runtime, apart if name in alone else whole, output, clock_ns)
            blocks[name] = partial(timed, _calls(timed(_WARM_UP_CALLS)))
        for name, ms in take_turns(blocks, least=ROUNDS, most=ROUNDS, budget_s=0.0).items():
            found[name][rows] = ms
    return found


def _samples(holdout: Holdout, rows: int) -> tuple[list[list[Arrays]], list[list[Arrays]]]:
    """Return batches, each as one run of the model, and the same rows with a run each."""
    starts = np.random.default_rng(SEED).integers(0, holdout.rows, size=_SAMPLES).tolist()
    whole = [[holdout.take(rows, start)] for start in starts]
    return whole, [[holdout.take(1, start + row) for row in range(rows)] for start in starts]


def _calls(ms: float) -> int:
    least, most = _CALLS
    return max(least, min(most, int(_BLOCK_S * 1000.0 / max(ms, 1e-6))))


def _block(
    runtime: Runtime, samples: list[list[Arrays]], output: str, clock_ns: Callable[[], int], calls: int
) -> float:
    taken = []
    for runs in islice(cycle(samples), calls):
        begun = clock_ns()
        for inputs in runs:
            runtime.run(inputs, [output])
        taken.append(clock_ns() - begun)
    return statistics.median(taken) / 1e6
