"""Sources and recipes without a whole build: what the steps of a build do, in this process."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.builder import sources
from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.host_capabilities import look
from tailcut.builder.recipes.base import Work
from tailcut.builder.records import Made
from tailcut.builder.sources import Found
from tailcut.common.tensors import Arrays
from tailcut.manifest import Deployment, Manifest, Model, TensorSpec

LIVE = "tailcut_live_models"

X = TensorSpec(name="x", shape=(-1, 6), allow_nan=True)
Y = TensorSpec(name="y", shape=(-1,))


def live(model: Any) -> str:
    """Make a module with a callable that returns ``model``; what model.source would say."""
    module = sys.modules.setdefault(LIVE, types.ModuleType(LIVE))
    module.model = lambda: model  # type: ignore[attr-defined]
    return f"{LIVE}:model"


def made(
    folder: Path,
    source: str,
    inputs: Arrays,
    tensors: tuple[TensorSpec, ...] = (X,),
    output: TensorSpec = Y,
) -> tuple[Found, Work]:
    """Make the source variant and say what a recipe would work with."""
    manifest = Manifest(Deployment(name="m", model=Model(source=source, inputs=tensors, outputs=(output,))), folder, {})
    rows = len(next(iter(inputs.values())))
    holdout = Holdout(inputs=inputs, labels=np.arange(rows) % 2)
    found = sources.make(folder, manifest, holdout)
    base = Made(name=found.variant, runtime=found.runtime, path=found.path, settings=found.settings)
    work = Work(
        manifest=manifest,
        folder=folder,
        path=folder / "onnx.onnx",
        base=base,
        made={base.name: base},
        selection=holdout,
        here=look(),
    )
    return found, work
