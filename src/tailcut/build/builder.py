"""Source model and holdout -> variants, judged and stored; the fastest one that was not refused is promoted.

    holdout -> source -> score the source -> each recipe, then its score -> race -> verdicts -> registry -> promotion

Each arrow is a child process with a time limit. What fails before the source is scored ends the build; what fails
later costs one variant, which the record keeps with the reason.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailcut.build import hardware, verdicts
from tailcut.build.children import run_step
from tailcut.build.records import Made, spec
from tailcut.build.steps import artifact, onnx_source
from tailcut.errors import BuildError
from tailcut.manifest import Manifest
from tailcut.registry import NewVariant, Promotion, Registry, Version

RECIPES: dict[str, str] = {"onnx": "torch", "int8-dynamic": "onnx"}
"""Every recipe -> the variant that it is made from and must beat, in the order in which they are made."""

RUNTIMES = {"torch": "torch", "onnx": "onnxruntime", "int8-dynamic": "onnxruntime"}
STEP_TIMEOUT_S = 900.0

Progress = Callable[[str, str], None]
"""Told (what, state) with state "started", "done in 1.2 s" or "failed: ..."."""


@dataclass
class _Build:
    """One build under way."""

    manifest: Manifest
    folder: Path
    timeout_s: float
    progress: Progress
    made: list[Made] = field(default_factory=list)
    evidence: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    durations_s: dict[str, float] = field(default_factory=dict)

    def step(self, step: str, target: str = "") -> dict[str, Any]:
        """Run one step, timed and announced."""
        what = f"{step} {target}".strip()
        self.progress(what, "started")
        begun_s = time.monotonic()
        try:
            found = run_step(spec(step, self.manifest, self.folder, self.made, target), timeout_s=self.timeout_s)
        except BuildError as error:
            self.progress(what, f"failed: {error.message}")
            raise
        self.durations_s[what] = round(time.monotonic() - begun_s, 3)
        self.progress(what, f"done in {self.durations_s[what]:.1f} s")
        return found

    def make(self, recipe: str) -> None:
        """Make a variant and score it."""
        recipe_found = self.step(recipe)
        made = Made(name=recipe, runtime=RUNTIMES[recipe], path=str(artifact(self.folder, recipe)))
        self.made.append(made)
        self.evidence[recipe] = {"recipe": recipe_found}
        try:
            self.evidence[recipe] |= self.step("score", recipe)
        except BuildError:
            self.made.remove(made)
            raise


def build(
    manifest: Manifest,
    *,
    recipes: Sequence[str] = tuple(RECIPES),
    step_timeout_s: float = STEP_TIMEOUT_S,
    progress: Progress = lambda what, state: None,
) -> tuple[Version, Promotion]:
    """Build, judge, store and promote.

    Args:
        manifest: names the source model, the holdout, the quality budget and the registry.
        recipes: of ``RECIPES``; the source model itself is always a variant.
        step_timeout_s: limit of each child process.
        progress: told when a step starts and ends.

    Returns:
        the stored version, and what is promoted: the fastest variant that was not refused.

    Raises:
        BuildError: an unknown recipe, another build of this model, or the source or the holdout does not work.
        ArtifactError: the registry cannot be written.
    """
    _check_recipes(recipes)
    model = manifest.deployment.name
    registry = Registry(manifest.directory / manifest.deployment.registry.path)
    with registry.build_lock(model), tempfile.TemporaryDirectory(prefix="tailcut-build-") as folder:
        running = _Build(manifest, Path(folder), step_timeout_s, progress)
        source = "torch" if onnx_source(manifest) is None else "onnx"
        holdout = running.step("holdout")
        running.make(source)
        _make_others(running, source, recipes)
        _judge_quality(running, source)
        raced = _judge_speed(running, source)
        version = _store(running, registry, source, holdout, raced)
        latency = {name: ms[str(verdicts.LATENCY_ROWS)] for name, ms in raced["ms"].items()}
        kept = {name: rounds for name, rounds in latency.items() if not running.refused.get(name)}
        return version, registry.promote(model, version.id, verdicts.fastest(kept) if kept else source)


def _check_recipes(recipes: Sequence[str]) -> None:
    unknown = [recipe for recipe in recipes if recipe not in RECIPES]
    if unknown:
        raise BuildError(f"there is no recipe {unknown[0]!r}", hint=f"the recipes are {', '.join(RECIPES)}")


def _make_others(running: _Build, source: str, recipes: Sequence[str]) -> None:
    for recipe, base in RECIPES.items():
        if recipe not in recipes or recipe == source:
            continue
        if not any(made.name == base for made in running.made):
            why = running.refused.get(base, "it is not among --recipes").partition("\n")[0]
            running.refused[recipe] = f"is made from {base!r}, which was not built: {why}"
            continue
        try:
            running.make(recipe)
        except BuildError as error:
            running.refused[recipe] = error.message


def _judge_quality(running: _Build, source: str) -> None:
    budget = running.manifest.deployment.quality.budget
    of_source = running.evidence[source]["metrics"]
    for made in running.made:
        evidence = running.evidence[made.name]
        evidence["drops"] = verdicts.drops(of_source, evidence["metrics"])
        evidence["budget"] = budget
        if made.name != source:
            running.refused[made.name] = verdicts.quality_refusal(evidence["drops"], budget)


def _judge_speed(running: _Build, source: str) -> dict[str, Any]:
    """Race all variants; without a race none but the source is known to be fast enough."""
    try:
        raced = running.step("race")
    except BuildError as error:
        for made in running.made[1:]:
            _refuse(running, made.name, f"the speed check failed: {error.message}")
        return {"ms": {}, "failed": error.message}
    ms = raced["ms"]
    for made in running.made:
        reference = RECIPES.get(made.name, source) if made.name != source else source
        races = [
            verdicts.Race(batch_rows=int(rows), ms=rounds, reference_ms=ms[reference][rows])
            for rows, rounds in ms[made.name].items()
        ]
        running.evidence[made.name]["speed"] = {
            "reference": reference,
            "batches": [
                {"rows": race.batch_rows, "ms": race.ms, "reference_ms": race.reference_ms, "ratio": race.ratio}
                for race in races
            ],
        }
        if made.name != source:
            merges = bool(running.evidence[made.name].get("merge", True))
            _refuse(running, made.name, verdicts.speed_refusal(races, merges=merges))
    return raced


def _refuse(running: _Build, name: str, reason: str) -> None:
    running.refused[name] = "; ".join(text for text in (running.refused.get(name, ""), reason) if text)


def _store(running: _Build, registry: Registry, source: str, holdout: dict[str, Any], raced: dict[str, Any]) -> Version:
    deployment = running.manifest.deployment
    built = {made.name: Path(made.path) for made in running.made}
    names = [*built, *(name for name in running.refused if name not in built)]
    return registry.add(
        deployment.name,
        source=source,
        inputs=deployment.model.inputs,
        outputs=deployment.model.outputs,
        variants=[
            NewVariant(
                name=name,
                runtime=RUNTIMES[name],
                artifact=built.get(name),
                refused=running.refused.get(name, ""),
                evidence=running.evidence.get(name, {}),
            )
            for name in names
        ],
        evidence={
            "cpu": hardware.cpu(),
            "versions": hardware.versions(),
            "holdout": holdout,
            "race": {name: value for name, value in raced.items() if name != "ms"},
            "durations_s": running.durations_s,
        },
    )
