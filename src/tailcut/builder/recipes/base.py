"""What a recipe is: how one variant is made from another, and whether it can be made here at all.

A recipe's module is cheap to import: runtimes, exporters and quantizers are imported inside ``make``, which runs in a
child process. ``why_not`` runs in the builder's own process, for ``tailcut build --list`` too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.records import Made, openable
from tailcut.manifest import Deployment, Manifest
from tailcut.models.runtimes import Runtime, open_runtime
from tailcut.models.runtimes.live import source_of
from tailcut.registry.evidence import RecipeEvidence, Settings

Precision: TypeAlias = Literal["portable", "runtime", "lower", "int8"]
"""What a variant computes in: fp32 that runs everywhere alike; what its runtime chooses (OpenVINO may take bf16); half
precision; or 8 bits, which ``build.quantize`` asks for."""

TREES = "trees have no matrix products to quantise"
"""Why INT8 and pruning are refused for an ensemble of trees."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What is being built.

    Attributes:
        kind: of the source model: "torch", "onnx", "sklearn", "lightgbm", "xgboost" or "huggingface"; empty where it
            was not looked at yet (``--list`` without a model).
        trees: whether the model is an ensemble of trees.
        deployment: the manifest's.
    """

    kind: str
    trees: bool = False
    deployment: Deployment


@dataclass(frozen=True)
class Work:
    """What ``make`` works with, inside a child process.

    Attributes:
        manifest: the deployment's.
        folder: for the step's own files; it is removed when the build ends.
        path: the artifact to write: one file.
        base: the variant that this one is made from.
        made: every variant made so far, by name.
        selection: the holdout's selection split: for calibration and choices, never for a verdict.
        here: this machine.
    """

    manifest: Manifest
    folder: Path
    path: Path
    base: Made
    made: Mapping[str, Made]
    selection: Holdout
    here: HostCapabilities

    def open(self, made: Made, *, threads: int = 1) -> Runtime:
        """Open a variant of this build."""
        return open_runtime(
            openable(made, self.manifest.deployment), threads=threads, source=source_of(self.manifest, made.runtime)
        )

    def open_file(
        self, path: Path, runtime: str, settings: Mapping[str, Any] | None = None, *, threads: int = 1
    ) -> Runtime:
        """Open a candidate file that is no variant yet."""
        made = Made(name=path.stem, runtime=runtime, path=str(path), settings=dict(settings or {}))
        return self.open(made, threads=threads)


@dataclass(frozen=True)
class Result:
    """What ``make`` gives back beside the file at ``Work.path``.

    Attributes:
        found: how it was made, for people: plain JSON values, which become the evidence's ``details``.
        settings: runtime settings that belong to the variant; see the runtime for its keys.
        parts: of a pair: artifacts of the variants that it runs, by their names.
        reference: the variant that it must beat, where that is not the one that it was made from.
        runtime: of a source, where it is not the one that the source usually has.
        code: of a source, references to the code that opening the artifact needs.
        evidence: how it was made, as far as code reads it.
    """

    found: Mapping[str, Any]
    settings: Settings = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    reference: str = ""
    runtime: str = ""
    code: tuple[str, ...] = ()
    evidence: RecipeEvidence = field(default_factory=RecipeEvidence)

    def recipe(self) -> RecipeEvidence:
        """Return both parts of the evidence as one."""
        return msgspec.structs.replace(self.evidence, details=dict(self.found))


class Recipe(Protocol):
    """How a variant is made; another package's need not inherit from this.

    Attributes:
        name: of the recipe and of the variant that it makes.
        base: variants that it can be made from, best first; the one taken is also the reference that it must beat.
        runtime: key of ``open_runtime``.
        suffix: of the artifact's file name, with the dot.
        precision: what its variant computes in.
        summary: one line for ``tailcut build --list``.
    """

    name: str
    base: tuple[str, ...]
    runtime: str
    suffix: str
    precision: Precision
    summary: str

    def why_not(self, subject: Subject, here: HostCapabilities) -> str:
        """Say why it cannot be made of ``subject`` on ``here``; empty where it can."""

    def make(self, work: Work) -> Result:
        """Write the artifact to ``work.path``.

        Raises:
            BuildError: it cannot be made; says why and the way out.
        """


class OnnxInt8(Recipe):
    """What recipes have in common that turn linear layers of the ONNX model into 8 bits for onnxruntime."""

    base = ("onnx",)
    runtime = "onnxruntime"
    suffix = ".onnx"
    precision: Precision = "int8"

    def why_not(self, subject: Subject, here: HostCapabilities) -> str:
        """Trees have no products to quantise; whether a model has other layers to work on shows when it is read."""
        return TREES if subject.trees else missing(here, "onnx", extra="build")


def missing(here: HostCapabilities, *packages: str, extra: str) -> str:
    """Say which packages are not installed, for ``why_not``; empty where all are."""
    absent = [name for name in packages if name not in here.packages]
    return f"needs {', '.join(absent)}: pip install 'tailcut[{extra}]'" if absent else ""
