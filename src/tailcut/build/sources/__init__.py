"""Kinds of models that a build can start from, one file each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailcut.build.sources.base import Found, Source, SourceWork
from tailcut.build.sources.huggingface import HuggingFaceSource
from tailcut.build.sources.lightgbm import LightGBMSource
from tailcut.build.sources.onnx import OnnxSource
from tailcut.build.sources.sklearn import SklearnSource
from tailcut.build.sources.torch import TorchSource
from tailcut.build.sources.xgboost import XGBoostSource
from tailcut.errors import BuildError
from tailcut.manifest import Manifest, resolve
from tailcut.runtimes.live import source_path

__all__ = ["SOURCES", "Found", "Source", "SourceWork", "make", "source_file"]

SOURCES: tuple[Source, ...] = (
    OnnxSource(),
    HuggingFaceSource(),
    TorchSource(),
    LightGBMSource(),
    XGBoostSource(),
    SklearnSource(),
)
"""Every kind; LightGBM's and XGBoost's estimators are scikit-learn estimators too, so theirs stand before it."""

source_file = source_path


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
    if path is None:
        given = f"gave a {type(model).__name__}, which tailcut cannot build from"
    elif not path.exists():
        given = f"is no 'module:callable', and there is no file or folder {path}"
    else:
        given = f"is neither an .onnx file nor a Hugging Face folder (one with config.json): {path}"
    raise BuildError(
        f"model.source {reference} {given}",
        hint="name a callable that returns a torch.nn.Module or a fitted scikit-learn, LightGBM or XGBoost model, "
        "or a path to an .onnx file or a Hugging Face folder",
    )
