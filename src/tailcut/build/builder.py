"""Source model + holdout -> variants, judged and stored; the cheapest one that passed is promoted.

    holdout -> source -> score the source -> each recipe, then its score -> race -> verdicts -> registry -> promotion

Each arrow is a child process with a time and a memory limit. What fails before the source is scored ends the build;
what fails later costs one variant, which the record keeps with the reason.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tailcut.build import hardware, here, verdicts
from tailcut.build.children import run_step
from tailcut.build.plan import applicable, base_of, check_names
from tailcut.build.recipes import CATALOG
from tailcut.build.recipes.base import Recipe, Subject
from tailcut.build.records import Made, spec
from tailcut.build.sources import Found
from tailcut.errors import BuildError
from tailcut.manifest import Manifest
from tailcut.registry import NewVariant, Promotion, Registry, Version

Progress = Callable[[str, str], None]
"""Told (what, state) with state "started", "done in 1.2 s" or "failed: ..."."""


@dataclass
class Candidate:
    """One variant on its way through the build."""

    name: str
    runtime: str
    reference: str = ""
    """The variant that it was made from and must beat; empty for the source."""
    made: Made | None = None
    refusals: list[str] = field(default_factory=list)
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def refused(self) -> str:
        """Why it may not be promoted; empty where it may."""
        return "; ".join(self.refusals)


@dataclass
class _Build:
    """One build under way."""

    manifest: Manifest
    folder: Path
    here: here.Here
    progress: Progress
    candidates: dict[str, Candidate] = field(default_factory=dict)
    source: str = ""
    durations_s: dict[str, float] = field(default_factory=dict)

    @property
    def made(self) -> list[Candidate]:
        """What has an artifact, the source first."""
        return [each for each in self.candidates.values() if each.made is not None]

    def step(self, step: str, target: str = "", base: str = "") -> dict[str, Any]:
        """Run one step, timed and announced."""
        what = f"{step} {target}".strip()
        self.progress(what, "started")
        begun_s = time.monotonic()
        made = [each.made for each in self.made if each.made is not None]
        try:
            found = run_step(
                spec(step, self.manifest, self.folder, made, target, base),
                timeout_s=self.manifest.deployment.build.step_timeout_s,
                memory_bytes=self.manifest.deployment.build.step_memory_bytes,
            )
        except BuildError as error:
            self.progress(what, f"failed: {error.message}")
            raise
        self.durations_s[what] = round(time.monotonic() - begun_s, 3)
        self.progress(what, f"done in {self.durations_s[what]:.1f} s")
        return found

    def score(self, candidate: Candidate) -> None:
        """Score a variant on the holdout; without scores it is no variant."""
        try:
            candidate.evidence |= self.step("score", candidate.name)
        except BuildError:
            candidate.made = None
            raise

    def make_source(self) -> Subject:
        """Make and score the source variant; say what it is."""
        found = msgspec.convert(self.step("source"), Found)
        self.source = found.variant
        made = Made(name=found.variant, runtime=found.runtime, path=found.path, settings=found.settings)
        candidate = Candidate(found.variant, found.runtime, made=made, evidence={"recipe": found.found})
        self.candidates[found.variant] = candidate
        self.score(candidate)
        return Subject(kind=found.kind, trees=found.trees, deployment=self.manifest.deployment)

    def make(self, recipe: Recipe) -> None:
        """Make a variant and score it; what goes wrong is its refusal."""
        candidate = Candidate(recipe.name, recipe.runtime)
        self.candidates[recipe.name] = candidate
        base = base_of(recipe, [each.name for each in self.made])
        if not base:
            lacks = recipe.base[0]
            other = self.candidates.get(lacks)
            why = (other.refused if other else "it was not asked for").partition("\n")[0]
            candidate.refusals.append(f"is made from {lacks!r}, which was not built: {why}")
            return
        candidate.reference = base
        try:
            made = self.step("make", recipe.name, base)
            path = self.folder / f"{recipe.name}{recipe.suffix}"
            candidate.made = Made(name=recipe.name, runtime=recipe.runtime, path=str(path), settings=made["settings"])
            candidate.evidence["recipe"] = made["found"]
            self.score(candidate)
        except BuildError as error:
            candidate.refusals.append(error.message)


def build(manifest: Manifest, *, progress: Progress = lambda what, state: None) -> tuple[Version, Promotion]:
    """Build, judge, store and promote.

    Args:
        manifest: names the source model, the holdout, the quality budget, the recipes and the registry.
        progress: told when a step starts and ends.

    Returns:
        the stored version, and what is promoted: the cheapest variant that was not refused.

    Raises:
        BuildError: an unknown recipe, another build of this model, or the source or the holdout does not work.
        ArtifactError: the registry cannot be written.
    """
    deployment = manifest.deployment
    check_names(deployment.build.recipes)
    registry = Registry(manifest.directory / deployment.registry.path)
    with registry.build_lock(deployment.name), tempfile.TemporaryDirectory(prefix="tailcut-build-") as folder:
        running = _Build(manifest, Path(folder), here.look(), progress)
        holdout = running.step("holdout")
        _make_others(running, running.make_source())
        _judge_quality(running)
        raced = _judge_speed(running)
        version = _store(running, registry, holdout, raced)
        return version, registry.promote(deployment.name, version.id, _choose(running, raced))


def _make_others(running: _Build, subject: Subject) -> None:
    why_not = {each.name: each.why_not for each in applicable(subject, running.here)}
    for recipe in CATALOG:
        if recipe.name == running.source:
            continue
        if why_not[recipe.name]:
            refusals = [why_not[recipe.name]]
            running.candidates[recipe.name] = Candidate(recipe.name, recipe.runtime, refusals=refusals)
        else:
            running.make(recipe)


def _judge_quality(running: _Build) -> None:
    budget = running.manifest.deployment.quality.budget
    of_source = running.candidates[running.source].evidence["metrics"]
    for candidate in running.made:
        evidence = candidate.evidence
        evidence["drops"] = verdicts.drops(of_source, evidence["metrics"])
        evidence["budget"] = budget
        if candidate.name != running.source:
            _refuse(candidate, verdicts.quality_refusal(evidence["drops"], budget))


def _judge_speed(running: _Build) -> dict[str, Any]:
    """Race all variants; without a race none but the source is known to be fast enough."""
    try:
        raced = running.step("race")
    except BuildError as error:
        for candidate in running.made[1:]:
            _refuse(candidate, f"the speed check failed: {error.message}")
        return {"ms": {}, "failed": error.message}
    for candidate in running.made:
        _judge_race(candidate, raced["ms"])
    return raced


def _judge_race(candidate: Candidate, ms: dict[str, dict[str, list[float]]]) -> None:
    reference = candidate.reference or candidate.name
    races = [
        verdicts.Race(batch_rows=int(rows), ms=rounds, reference_ms=ms[reference][rows])
        for rows, rounds in ms[candidate.name].items()
    ]
    candidate.evidence["speed"] = {
        "reference": reference,
        "batches": [
            {"rows": race.batch_rows, "ms": race.ms, "reference_ms": race.reference_ms, "ratio": race.ratio}
            for race in races
        ],
    }
    if candidate.reference:
        merges = bool(candidate.evidence.get("merge", True))
        _refuse(candidate, verdicts.speed_refusal(races, merges=merges))


def _refuse(candidate: Candidate, reason: str) -> None:
    if reason:
        candidate.refusals.append(reason)


def _choose(running: _Build, raced: dict[str, Any]) -> str:
    latency = {name: ms[str(verdicts.LATENCY_ROWS)] for name, ms in raced["ms"].items()}
    kept = {name: rounds for name, rounds in latency.items() if not running.candidates[name].refused}
    return verdicts.fastest(kept) if kept else running.source


def _store(running: _Build, registry: Registry, holdout: dict[str, Any], raced: dict[str, Any]) -> Version:
    deployment = running.manifest.deployment
    return registry.add(
        deployment.name,
        source=running.source,
        inputs=deployment.model.inputs,
        outputs=deployment.model.outputs,
        variants=[
            NewVariant(
                name=each.name,
                runtime=each.runtime,
                artifact=Path(each.made.path) if each.made else None,
                refused=each.refused,
                evidence=each.evidence,
                settings=each.made.settings if each.made else {},
            )
            for each in running.candidates.values()
        ],
        evidence={
            "cpu": hardware.cpu(),
            "versions": hardware.versions(),
            "holdout": holdout,
            "race": {name: value for name, value in raced.items() if name != "ms"},
            "durations_s": running.durations_s,
        },
    )
