"""What the registry keeps: one JSON record per version, and the variant that a runtime opens."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from tailcut.code.digest import Code
from tailcut.common.bounds import Bound
from tailcut.common.fingerprint import Keys, Trust
from tailcut.manifest import TensorSpec
from tailcut.registry.evidence import Settings, VariantEvidence, VersionEvidence

SCHEMA = 3
"""Number of the record's form; a reader refuses every other."""

ARCHIVE = "code"
"""Name of the file of a version that holds a copy of the user's code: see ``Registry.file``."""

_ID_SCHEMA = 1

State = Literal["candidate", "passed", "promoted", "retired"]
"""candidate: made, but not proven (refused, inconclusive, not judged, not built); passed: within the budgets here;
promoted: what is served; retired: not served any more, its artifacts may be collected."""


@dataclass(frozen=True)
class NewVariant:
    """A variant to add: an artifact file, or (``artifact=None``) the reason why there is none.

    Attributes:
        name: such as "onnx" or "int8-dynamic".
        runtime: that opens the artifact.
        refused: why it may not be promoted; empty where it may.
        evidence: what the build measured of it.
        settings: of the runtime.
        base: whether it belongs to the portable base: an fp32 file whose runtime keeps fp32 on every processor. The
            source always does.
        keys: of the machine that it is for, where that is not the one that adds it.
        parts: of a pair: name of each variant of the same version that it runs, and that variant's artifact.
        live_code: what it cannot be opened without: "module:callable", or the folder that ``model.source`` names;
            empty where its artifact is enough.
    """

    name: str
    runtime: str
    artifact: Path | None
    refused: str = ""
    evidence: VariantEvidence = field(default_factory=VariantEvidence)
    settings: Mapping[str, Any] = field(default_factory=dict)
    base: bool = False
    keys: Keys | None = None
    parts: Mapping[str, Path] = field(default_factory=dict)
    live_code: tuple[str, ...] = ()


class KeptFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is kept with a version beside the variants' artifacts."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Variant:
    """The model in one runnable form; its artifact's size and SHA-256 were checked when this was made.

    Attributes:
        model: name of the deployment.
        name: such as "onnx" or "int8-dynamic".
        runtime: that opens the artifact.
        artifact: a local file: a state dict of plain tensors, an ONNX file, and so on.
        sha256: of the artifact.
        inputs, outputs: tensors of the model.
        version: id of the version that it belongs to.
        evidence: what the build measured of it.
        refused: why it may not be promoted; empty where it may.
        size_bytes: of the artifact.
        settings: of the runtime.
        trust: how far the evidence holds on this machine.
        parts: of a pair: the artifacts of the variants that it runs, by their names; checked as its own.
        part_runtimes: of a pair: the runtimes of its parts.
        bounds: of the inputs, which the build found in the model.
        code: the user's code that it was built with; None where it was not listed.
        files: what its version keeps beside the artifacts, by what it is: see ``Registry.file``.
        manifest: the deployment as it was built, as plain values; empty where the version has no record of it.
        feature_models: version of each model that computes features, as it was when this was judged; one that was not
            given to the build is absent.
    """

    model: str
    name: str
    runtime: str
    artifact: Path
    sha256: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    version: str
    evidence: VariantEvidence = field(default_factory=VariantEvidence)
    refused: str = ""
    size_bytes: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    trust: Trust = field(default_factory=Trust)
    parts: Mapping[str, Path] = field(default_factory=dict)
    part_runtimes: tuple[str, ...] = ()
    bounds: tuple[Bound, ...] = ()
    code: Code | None = None
    files: Mapping[str, KeptFile] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    feature_models: Mapping[str, str] = field(default_factory=dict)


class VariantRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One variant inside a version's record; ``sha256`` is empty where it could not be built."""

    runtime: str
    sha256: str = ""
    size_bytes: int = 0
    refused: str = ""
    evidence: VariantEvidence = VariantEvidence()
    settings: Settings = {}
    state: Literal["candidate", "passed"] = "candidate"
    base: bool = False
    keys: Keys | None = None
    parts: dict[str, str] = {}
    """Of a pair: variant of the same version -> SHA-256 of its artifact. A pair has no keys: its parts' hold for it."""
    live_code: tuple[str, ...] = ()
    """References to the user's code that it cannot be opened without; empty where its artifact is enough."""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One build of a model: every variant of it, with the evidence.

    On the disk evidence and manifest lie in a file of their own, which ``evidence_sha256`` names and seals, so that
    listing stays quick: in what ``Registry.list`` returns they are empty.
    """

    schema: int = SCHEMA
    model: str
    id: str
    created: str
    """UTC, ISO 8601, by the clock of the machine that built it."""
    serial: int = 0
    """Greater than that of every version of the model that was there before: clocks of several machines may differ."""
    source: str
    """The variant that all others are judged against."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    variants: dict[str, VariantRecord]
    evidence: VersionEvidence = VersionEvidence()
    manifest: dict[str, Any] = {}
    """The deployment as it was built, passwords in addresses left out."""
    evidence_sha256: str = ""
    origins: dict[str, str] = {}
    """Files that the source model came from, with the SHA-256 of each."""
    files: dict[str, KeptFile] = {}
    """What is kept beside the artifacts, by what it is: see ``Registry.file``."""
    code: str = ""
    """Identity of the user's code that it was built with; the list of it is in the evidence."""
    retired: str = ""
    """When it was retired: UTC, ISO 8601; empty where it was not."""

    def is_base(self, name: str) -> bool:
        """Tell whether a variant belongs to the portable base."""
        return name == self.source or self.variants[name].base


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One change of what is served; ``undone`` once a rollback has gone behind it."""

    version: str
    variant: str
    at: str
    how: Literal["promote", "force", "rollback"] = "promote"
    undone: bool = False


class Promotion(msgspec.Struct, frozen=True, kw_only=True):
    """The pointer to what is served, with how it came there, newest first. One file, so that it changes at once."""

    version: str
    variant: str
    promoted: str
    """UTC, ISO 8601."""
    history: tuple[Move, ...]


def version_id(
    model: str,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    variants: Mapping[str, VariantRecord],
    code: str = "",
) -> str:
    """Name a version by what its answers depend on: tensors, artifacts, settings and code, not timings or dates."""
    artifacts = [
        (name, each.runtime, each.sha256, sorted(each.settings.items()))
        for name, each in sorted(variants.items())
        if each.sha256
    ]
    # Limits of values say which requests are refused, and change no answer.
    names = ("name", "datatype", "shape", "columns", "allow_nan")
    forms = [[{name: getattr(each, name) for name in names} for each in given] for given in (inputs, outputs)]
    content = msgspec.json.encode((_ID_SCHEMA, model, *forms, artifacts, *([code] if code else [])))
    return hashlib.sha256(content).hexdigest()[:12]


def state_of(version: Version, name: str, promotion: Promotion | None) -> State:
    """Name the state of a variant."""
    if promotion is not None and (promotion.version, promotion.variant) == (version.id, name):
        return "promoted"
    return "retired" if version.retired else version.variants[name].state
