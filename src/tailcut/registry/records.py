"""What a registry keeps: one JSON record per version, and the variant that a runtime opens."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tailcut.manifest import Tensor

SCHEMA = 1
"""Number of the record's form; a reader refuses a later one."""


@dataclass(frozen=True)
class NewVariant:
    """A variant to add: an artifact file, or (``artifact=None``) the reason why there is none."""

    name: str
    runtime: str
    artifact: Path | None
    refused: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """The model in one runnable form; its artifact's size and SHA-256 were checked when this was made.

    Attributes:
        model: name of the deployment.
        name: "torch", "onnx" or "int8-dynamic".
        runtime: "torch" or "onnxruntime".
        artifact: the file: a state dict of plain tensors, or an ONNX file.
        sha256: of the artifact.
        inputs, outputs: tensors of the model.
        version: id of the version that it belongs to.
        evidence: what the build measured of it.
        refused: why it may not be promoted; empty where it may.
        size_bytes: of the artifact.
        settings: of the runtime.
    """

    model: str
    name: str
    runtime: str
    artifact: Path
    sha256: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    version: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""
    size_bytes: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)


class VariantRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One variant inside a version's record; ``sha256`` is empty where it could not be built."""

    runtime: str
    sha256: str = ""
    size_bytes: int = 0
    refused: str = ""
    evidence: dict[str, Any] = {}
    settings: dict[str, Any] = {}


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One build of a model: every variant of it, with the evidence."""

    schema: int = SCHEMA
    model: str
    id: str
    created: str
    """UTC, ISO 8601."""
    source: str
    """The variant that all others are judged against."""
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    variants: dict[str, VariantRecord]
    evidence: dict[str, Any] = {}


class Promotion(msgspec.Struct, frozen=True, kw_only=True):
    """The pointer to what is served."""

    version: str
    variant: str
    promoted: str
    """UTC, ISO 8601."""


def version_id(
    model: str,
    inputs: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    variants: Mapping[str, VariantRecord],
) -> str:
    """Name a version by what its answers depend on: tensors and artifacts, not timings or dates."""
    artifacts = [(name, each.runtime, each.sha256, sorted(each.settings.items())) for name, each in sorted(variants.items()) if each.sha256]
    content = msgspec.json.encode((SCHEMA, model, inputs, outputs, artifacts))
    return hashlib.sha256(content).hexdigest()[:12]
