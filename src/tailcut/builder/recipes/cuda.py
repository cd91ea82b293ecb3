"""Recipe "onnx-cuda", and what all recipes for NVIDIA GPUs share: when they apply, and with which buckets.

No recipe here touches a device before ``make``: ``tailcut build --list`` shows each of them on every machine, with
"not here: no CUDA device" where there is none.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.recipes import calibration
from tailcut.builder.recipes.base import Precision, Recipe, Result, Subject, Work, missing
from tailcut.common.tensors import Array
from tailcut.errors import BuildError, TailcutError
from tailcut.manifest import Deployment
from tailcut.models.runtimes import Runtime, bucketed
from tailcut.registry.evidence import Settings

NO_DEVICE = "not here: no CUDA device"
_TREES = "trees branch row by row, which a GPU does not speed up"


def why_not(subject: Subject, here: HostCapabilities, *packages: str, extra: str) -> str:
    """Say why a GPU recipe cannot be made; empty where it can.

    Args:
        packages: that it needs beside a device.
        extra: of tailcut, that installs them.
    """
    if not here.cuda:
        return NO_DEVICE
    if subject.trees:
        return _TREES
    return missing(here, *packages, extra=extra)


def why_not_torch(subject: Subject, here: HostCapabilities) -> str:
    """Say the same of a recipe that runs the source's own module."""
    if not here.cuda:
        return NO_DEVICE
    if subject.kind not in {"", "torch", "huggingface"}:
        return f"needs a torch module, the source is {subject.kind}"
    if why := missing(here, "torch", extra="torch"):
        return why
    if here.packages["torch"].endswith("+cpu"):
        return f"torch {here.packages['torch']} here is the CPU build: install torch for CUDA"
    return ""


def sizes(deployment: Deployment) -> tuple[int, ...]:
    """Buckets of a deployment; none where more than the batch is free, as a graph is of one shape."""
    model = deployment.model
    if not (bucketed.fixed(model.inputs) and bucketed.fixed(model.outputs)):
        return ()
    return bucketed.sizes(deployment.batching.max_rows)


def answers(work: Work, runtime: Runtime) -> Array:
    """Run selection rows in one batch through a runtime, return the judged output and close it."""
    return calibration.answers(runtime, work.selection, work.manifest.deployment.judged, calibration.COMPARED_ROWS)


def difference(expected: Array, given: Array) -> dict[str, float]:
    """Largest and mean absolute difference; infinite where a value is NaN or infinite that was not.

    Raises:
        BuildError: another shape.
    """
    if expected.shape != given.shape:
        raise BuildError(
            f"an output of the variant has the shape {list(given.shape)}, its base gives {list(expected.shape)}",
            hint="leave this recipe out of build.recipes; it is a bug of tailcut or the runtime: please report it",
        )
    if not np.isfinite(given.astype(np.float64)).all():
        return {"max_abs": float("inf"), "mean_abs": float("inf")}
    error = abs(expected.astype(np.float64) - given.astype(np.float64))
    return {"max_abs": float(error.max(initial=0.0)), "mean_abs": float(error.mean()) if error.size else 0.0}


def with_graphs(
    work: Work, runtime: str, settings: Mapping[str, Any], run: Callable[[Any], Array]
) -> tuple[Settings, Array, dict[str, object]]:
    """Open the artifact with a graph per bucket, and without where the model cannot be captured.

    Returns:
        the settings that work, the answers with them, and evidence: the buckets, or why there are none.

    Raises:
        BuildError: it cannot be opened or run either way.
    """
    wanted = sizes(work.manifest.deployment)
    graphless = "" if wanted else "tensors have free dimensions beside the batch"
    if wanted:
        with_buckets = {**settings, "buckets": list(wanted)}
        try:
            found = run(work.open_file(work.path, runtime, with_buckets))
            return with_buckets, found, {"graphs": list(wanted)}
        except TailcutError as error:
            graphless = error.message
    try:
        found = run(work.open_file(work.path, runtime, settings))
    except TailcutError as error:
        raise BuildError(error.message, hint=error.hint) from error
    return dict(settings), found, {"graphs": [], "why_no_graphs": graphless}


def by_settings(work: Work, runtime: str, settings: Settings) -> Result:
    """Take the base's file as it is; its settings make the variant.

    Raises:
        BuildError: it cannot be opened or run with them.
    """
    shutil.copyfile(work.base.path, work.path)
    expected = answers(work, work.open(work.base))
    settings, found, evidence = with_graphs(work, runtime, settings, partial(answers, work))
    return Result({**evidence, "device": work.here.cuda[0], "difference": difference(expected, found)}, settings)


class OnnxCuda(Recipe):
    """The exported model on a GPU, in the precision that it has (products in TF32 where the GPU offers it)."""

    name = "onnx-cuda"
    base = ("onnx",)
    runtime = "onnxruntime"
    suffix = ".onnx"
    precision: Precision = "runtime"
    summary = "the ONNX model on a GPU by onnxruntime, fp32 with TF32 products, a CUDA graph per batch size"

    def why_not(self, subject: Subject, here: HostCapabilities) -> str:
        """A device and onnxruntime for it."""
        return why_not(subject, here, "onnxruntime-gpu", extra="gpu")

    def make(self, work: Work) -> Result:
        """Take the base's file; its settings make the variant.

        Raises:
            BuildError: onnxruntime cannot run it on the GPU.
        """
        return by_settings(work, self.runtime, {"provider": "cuda", "tf32": True})
