"""One build under way: its candidates, and the steps that make and score them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tailcut.builder.children import StepRunner
from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.plan import Applicable, base_of
from tailcut.builder.progress import Event, Progress, State
from tailcut.builder.recipes.base import PORTABLE, Recipe, Subject
from tailcut.builder.records import Made, spec
from tailcut.builder.sources import Found
from tailcut.builder.sources.registry import Base
from tailcut.errors import DoesNotApply, TailcutError
from tailcut.manifest import Manifest
from tailcut.models.runtimes.tuning import without_tuned
from tailcut.registry import digest

T = TypeVar("T")

ABOUT_ONE = ("make", "score", "tune")
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
    evidence: dict[str, Any] = field(default_factory=dict)
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
    durations_s: dict[str, float] = field(default_factory=dict)

    @property
    def made(self) -> list[Candidate]:
        """What has an artifact, the source first."""
        return [each for each in self.candidates.values() if each.made is not None]

    def step(self, step: str, target: str = "", base: str = "") -> dict[str, Any]:
        """Run one step in a child process, timed and announced."""
        made = [each.made for each in self.made if each.made is not None]
        limits = self.manifest.deployment.build
        return self.timed(
            Event(state="started", step=step, variant=target if step in ABOUT_ONE else ""),
            lambda: self.runner.run(
                spec(step, self.manifest, self.folder, made, target, base),
                timeout_s=limits.step_timeout_s,
                memory_bytes=limits.step_memory_bytes,
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
            self.progress(msgspec.structs.replace(event, state=state, seconds=took_s, reason=error.message))
            raise
        took_s = time.monotonic() - begun_s
        self.durations_s[event.what] = round(took_s, 3)
        self.progress(msgspec.structs.replace(event, state="done", seconds=took_s))
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
            found = self.step("score", candidate.name)
        except TailcutError:
            candidate.made = None
            raise
        candidate.evidence |= found
        candidate.made = msgspec.structs.replace(candidate.made, rows_alone=found["rows_alone"])

    def tune_all(self) -> None:
        """Choose the runtime settings of every variant that was made and has none of its own yet."""
        for candidate in self.made:
            if "tuning" not in candidate.evidence:
                self.tune(candidate)

    def tune(self, candidate: Candidate) -> None:
        """Choose the variant's runtime settings by measurement; where that fails it keeps those that it has."""
        assert candidate.made is not None
        try:
            found = self.step("tune", candidate.name)
        except TailcutError as error:
            candidate.evidence["tuning"] = {"failed": error.message}
            return
        if found["settings"]:
            settings = {**without_tuned(candidate.made.runtime, candidate.made.settings), **found["settings"]}
            candidate.made = msgspec.structs.replace(candidate.made, settings=settings)
        candidate.evidence["tuning"] = found

    def make_source(self) -> Subject:
        """Make and score the source variant; say what it is."""
        found = msgspec.convert(self.step("source"), Found)
        self.source, self.live_code = found.variant, found.live_code
        made = Made(name=found.variant, runtime=found.runtime, path=found.path, settings=found.settings)
        candidate = Candidate(found.variant, found.runtime, made=made, base=True, evidence={"recipe": found.found})
        self.candidates[found.variant] = candidate
        self.score(candidate)
        return Subject(kind=found.kind, trees=found.trees, deployment=self.manifest.deployment)

    def take_base(self, version: str) -> Subject:
        """Take the source variant, and other fp32 variants of the portable base, from the registry; score them."""
        base = msgspec.convert(self.step("base", version), Base)
        first = base.variants[0]
        self.source, self.live_code = first.variant, first.live_code
        for found in base.variants:
            made = Made(name=found.variant, runtime=found.runtime, path=found.path, settings=found.settings)
            candidate = Candidate(found.variant, found.runtime, made=made, base=True, evidence={"recipe": found.found})
            candidate.reference = "" if found is first else first.variant
            self.candidates[found.variant] = candidate
            try:
                self.score(candidate)
            except TailcutError as error:
                if found is first:
                    raise
                self.refuse(candidate, error.message)
        return Subject(kind=first.kind, trees=first.trees, deployment=self.manifest.deployment)

    def make(self, recipe: Recipe) -> None:
        """Make a variant and score it; what goes wrong is its refusal."""
        candidate = Candidate(recipe.name, recipe.runtime, base=recipe.name in PORTABLE)
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
            made = self.step("make", recipe.name, base)
            path = self.folder / f"{recipe.name}{recipe.suffix}"
            candidate.made = Made(
                name=recipe.name,
                runtime=recipe.runtime,
                path=str(path),
                settings=made["settings"],
                parts=made["parts"],
            )
            candidate.reference = made["reference"] or base
            candidate.evidence["recipe"] = made["found"]
            self.score(candidate)
        except DoesNotApply as error:
            candidate.refusals.append(error.message)
        except TailcutError as error:
            candidate.failure = error
            self.refuse(candidate, error.message)
