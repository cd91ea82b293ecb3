"""What the builder and its child processes tell each other, as JSON: typed, and never pickled."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from tailcut.manifest import Deployment, Manifest
from tailcut.manifest.keys import to_plain
from tailcut.manifest.reading import read
from tailcut.models.runtimes.base import OpenSpec
from tailcut.registry import NewVariant, VariantEvidence
from tailcut.registry.evidence import Settings


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A variant that was made in this build: enough to open it."""

    name: str
    runtime: str
    path: str
    settings: Settings = {}
    """Of the runtime, such as its provider; they belong to the variant."""
    parts: dict[str, str] = {}
    """Of a pair: artifacts of the variants that it runs, by their names."""
    rows_alone: bool = False
    """Whether it is served row by row; known once it was scored."""

    def of_parts(self) -> dict[str, Path]:
        """Return ``parts`` as paths."""
        return {name: Path(path) for name, path in self.parts.items()}


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One step for a child process to do."""

    step: str
    """A key of ``steps.STEPS``."""
    target: str = ""
    """The variant that the step is about."""
    base: str = ""
    """The variant that a recipe starts from; of step "holdout", the registry's version that the build starts from."""
    folder: str
    """Where the build keeps its files; steps find each other's work here."""
    deployment: dict[str, Any]
    """The manifest's, as plain data."""
    directory: str
    made: list[Made] = []

    @property
    def title(self) -> str:
        """What the step is called in messages."""
        if self.step == "make":
            return f"recipe {self.target!r}"
        return f"step {self.step!r}{f' for {self.target!r}' if self.target else ''}"

    @property
    def way_out(self) -> str:
        """What else can be done where the step fails: what only one recipe needs can be left out."""
        of_recipe = self.step in ("score", "tune") and self.target != self.made[0].name
        return ", or leave the recipe out with --recipes" if self.step == "make" or of_recipe else ""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a step: findings, or an error for the user."""

    found: msgspec.Raw = msgspec.Raw(b"null")
    """As JSON; its type is that of the step, see ``steps.Step``."""
    error: str = ""
    hint: str = ""
    code: str = ""
    """Of the error, where it is not the build's own."""
    libraries: list[str] | None = []
    """Imported by the step; a warm process that imports them spares the next steps the time. None: it may import none,
    since the user's code sets environment variables, or has a copy of a library."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A step for the warm process, by its files."""

    spec: str
    outcome: str
    log: str
    libraries: list[str] = []
    """Imported before the fork."""


class StepStarted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Report of a fork that begins a step."""

    pid: int
    """Of the fork, and the number of its session."""
    shared_bytes: int
    """Resident memory that the fork shares with the warm process."""


class ForkEnded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Report of the warm process: the fork has ended."""

    code: int
    """Exit code; of a signal its negative number."""


Report: TypeAlias = StepStarted | ForkEnded


def spec(step: str, manifest: Manifest, folder: Path, made: list[Made], target: str = "", base: str = "") -> Spec:
    """Describe a step of a manifest's build."""
    return Spec(
        step=step,
        target=target,
        base=base,
        folder=str(folder),
        deployment=to_plain(manifest.deployment),
        directory=str(manifest.directory),
        made=made,
    )


def manifest_of(step: Spec) -> Manifest:
    """Read the manifest back from a step."""
    return Manifest(read(step.deployment, {}), Path(step.directory), {})


def openable(made: Made, deployment: Deployment) -> OpenSpec:
    """Say how to open a variant that was made."""
    model = deployment.model
    return OpenSpec(
        made.name, made.runtime, Path(made.path), model.inputs, model.outputs, made.settings, made.of_parts()
    )


def to_add(made: Made) -> NewVariant:
    """Describe a variant that was made to a registry."""
    return NewVariant(
        name=made.name,
        runtime=made.runtime,
        artifact=Path(made.path),
        evidence=VariantEvidence(rows_alone=made.rows_alone),
        settings=made.settings,
        parts=made.of_parts(),
    )
