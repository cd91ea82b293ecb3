"""Kinds of models that a build can start from, one file each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailcut.build.sources.base import Found, Source, SourceWork
from tailcut.build.sources.onnx import OnnxSource
from tailcut.build.sources.torch import TorchSource
from tailcut.errors import BuildError
from tailcut.manifest import Manifest, resolve

__all__ = ["SOURCES", "Found", "Source", "SourceWork", "make", "source_file"]

SOURCES: tuple[Source, ...] = (OnnxSource(), TorchSource())


def source_file(manifest: Manifest) -> Path | None:
    """Path of the source model where ``model.source`` is a file or folder, else None (then it is a callable)."""
    reference = manifest.deployment.model.source
    if ":" in reference and "/" not in reference:
        return None
    return (manifest.directory / reference).resolve()


def make(work_folder: Path, manifest: Manifest, selection: Any) -> Found:
    """Load the source model, find its kind and write its artifact.

    Raises:
        BuildError: no kind takes it.
    """
    reference = manifest.deployment.model.source
    path = source_file(manifest)
    model = None if path is not None else resolve(reference, manifest)()
    for source in SOURCES:
        if source.matches(model, path):
            artifact = work_folder / f"{source.variant}{source.suffix}"
            result = source.make(SourceWork(manifest, model, path, work_folder, selection), artifact)
            return Found(
                kind=source.kind,
                variant=source.variant,
                runtime=source.runtime,
                trees=source.trees(model),
                path=str(artifact),
                settings=dict(result.settings),
                found=dict(result.found),
            )
    given = f"gave a {type(model).__name__}" if path is None else "is neither a known file nor a folder"
    raise BuildError(
        f"model.source {reference} {given}, which tailcut cannot build from",
        hint="it builds from a torch.nn.Module, an .onnx file and the other kinds of docs/how-to/build.md",
    )
