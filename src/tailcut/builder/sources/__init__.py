"""Kinds of models that a build can start from, one file each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tailcut.builder import limits
from tailcut.builder.calling import call
from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.quality import folder_answers, reference
from tailcut.builder.sources.base import Found, SourceKind, SourceWork
from tailcut.builder.sources.boosters import BoosterSource
from tailcut.builder.sources.huggingface import HuggingFaceSource
from tailcut.builder.sources.onnx import OnnxSource
from tailcut.builder.sources.sklearn import SklearnSource
from tailcut.builder.sources.torch import TorchSource
from tailcut.common.bounds import Bound
from tailcut.common.fingerprint import LIVE
from tailcut.errors import ArtifactError, BuildError, ManifestError
from tailcut.manifest import Manifest, TensorSpec
from tailcut.models.runtimes import Runtime, open_runtime
from tailcut.models.runtimes.base import OpenSpec
from tailcut.models.runtimes.live import source_of, source_path

__all__ = ["SOURCES", "Found", "SourceKind", "SourceWork", "check_path", "kind_of_path", "make", "source_file"]

SOURCES: tuple[SourceKind, ...] = (
    OnnxSource(),
    HuggingFaceSource(),
    TorchSource(),
    BoosterSource("lightgbm", ".txt"),
    BoosterSource("xgboost", ".ubj"),
    SklearnSource(),
)
"""Every kind; LightGBM's and XGBoost's estimators are scikit-learn estimators too, so theirs stand before it."""

source_file = source_path

_ROWS = 3

MASK = Bound(
    input="attention_mask", values=(0, 1), why="a Hugging Face model's attention mask is 1 for a token, 0 for padding"
)
"""What a folder's tokenizer gives; kernels of attention take other numbers otherwise."""


def make(work_folder: Path, manifest: Manifest, selection: Holdout) -> Found:
    """Load the source model, find its kind and write its artifact.

    Raises:
        ManifestError: ``model.source`` names no model.
        BuildError: no kind takes what it gives.
    """
    reference = manifest.deployment.model.source
    check_path(manifest)
    path = source_file(manifest)
    model = None if path is not None else call("model.source", reference, manifest)
    for source in SOURCES:
        if source.matches(model, path):
            artifact = work_folder / f"{source.variant}{source.suffix}"
            result = source.make(SourceWork(manifest, model, path, work_folder, selection), artifact)
            runtime = result.runtime or source.runtime
            found = Found(
                kind=source.kind,
                variant=source.variant,
                runtime=runtime,
                trees=source.trees(model),
                path=str(artifact),
                settings=dict(result.settings),
                found=result.recipe(),
                live_code=(reference,) if runtime in LIVE else result.code,
            )
            return _compared(found, model, path, manifest, selection)
    raise BuildError(
        f"model.source {reference} gave a {type(model).__name__}, from which tailcut cannot build",
        hint="return a torch.nn.Module, or a fitted scikit-learn, LightGBM or XGBoost model",
    )


def _compared(found: Found, model: Any, path: Path | None, manifest: Manifest, selection: Holdout) -> Found:
    """Compare the source variant with the user's own object, and find the limits that it proves of its inputs.

    A Hugging Face folder has no object of the user's: its module is the source variant, and is compared with the
    library's own answers.
    """
    section = manifest.deployment.model
    opening = OpenSpec(
        found.variant, found.runtime, Path(found.path), section.inputs, section.outputs, found.settings, {}
    )
    try:
        runtime = open_runtime(opening, threads=1, source=source_of(manifest, found.runtime))
    except ArtifactError as error:
        raise BuildError(error.message, hint=error.hint) from error
    names = [tensor.name for tensor in section.outputs]
    try:
        if found.kind not in {"torch", "onnx"}:
            _check_shape(runtime, selection, section.outputs[0])
        if path is not None and path.is_dir():
            own: reference.Call = lambda inputs: runtime.run(inputs, names)  # noqa: E731
            compared = folder_answers.check(path, runtime, manifest)
        else:
            own = reference.caller(model, path, section)
            compared = reference.check(own, runtime, selection, section, variant=found.variant)
        found_limits = limits.find(model, own, selection, section, path)
        if path is not None and path.is_dir():
            found_limits = replace(found_limits, bounds=[*found_limits.bounds, MASK])
    finally:
        runtime.close()
    made = replace(found.found, details={**found.found.details, "reference": compared})
    return replace(found, found=made, limits=found_limits)


def _check_shape(runtime: Runtime, selection: Holdout, output: TensorSpec) -> None:
    """Refuse a model of one output whose answers have another shape than the manifest's."""
    shape = runtime.run(selection.take(_ROWS), [output.name])[output.name].shape
    fits = len(output.shape) == len(shape) and all(
        wanted in (-1, size) for wanted, size in zip(output.shape[1:], shape[1:], strict=True)
    )
    if not fits:
        raise BuildError(
            f"the model gives {[-1, *shape[1:]]}, model.outputs say {list(output.shape)} for {output.name!r}",
            hint="two classes give the probability of the second, [-1], or both, [-1, 2]; more give [-1, classes]; a "
            "regressor [-1]",
        )


def kind_of_path(manifest: Manifest) -> str:
    """Name the kind of ``model.source`` where it is a path; empty for a callable, and where no kind takes the path."""
    path = source_file(manifest)
    return next((source.kind for source in SOURCES if path is not None and source.matches(None, path)), "")


def check_path(manifest: Manifest) -> None:
    """Check that ``model.source``, where it is a path, is one of a model; nothing of it is read.

    Raises:
        ManifestError: there is nothing, or no model that a build can start from.
    """
    path = source_file(manifest)
    if path is None or (path.exists() and any(source.matches(None, path) for source in SOURCES)):
        return
    reference = manifest.deployment.model.source
    if path.exists():
        what = f"{path} is neither an .onnx file nor a Hugging Face folder (one with config.json)"
    elif path.suffix == ".onnx":
        what = f"there is no file {path}"
    else:
        what = f"it is neither 'module:callable' nor an existing file or folder ({path})"
    near = [each.name for each in sorted(path.parent.glob("*.onnx"))[:5]] if path.suffix == ".onnx" else []
    raise ManifestError(
        f"model.source {reference}: {what}",
        hint=f"the folder has {', '.join(near)}"
        if near
        else "name a callable that returns a torch.nn.Module or a fitted scikit-learn, LightGBM or XGBoost model, "
        "or a path to an .onnx file or a Hugging Face folder; relative paths start at the manifest's folder",
    )
