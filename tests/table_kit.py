"""Models on tables: what the recipe "onnx" works with, without a whole build and without the source's checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import xgboost
from tests.build_kit import live

from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.recipes.base import Work
from tailcut.builder.records import Made
from tailcut.common.tensors import Array, Arrays
from tailcut.manifest import Deployment, Manifest, Model, TensorSpec
from tailcut.models.runtimes import sklearn


def table_work(
    folder: Path,
    model: Any,
    inputs: Arrays,
    tensors: tuple[TensorSpec, ...],
    output: TensorSpec,
    here: HostCapabilities,
) -> Work:
    """Say what the recipe works with, for a fitted model."""
    deployment = Deployment(name="m", model=Model(source=live(model), inputs=tensors, outputs=(output,)))
    kind, path = "sklearn", folder / "source"
    if isinstance(model, lightgbm.LGBMModel):
        kind = "lightgbm"
        model.booster_.save_model(str(path))
    elif isinstance(model, xgboost.XGBModel):
        kind = "xgboost"
        path.write_bytes(model.get_booster().save_raw("ubj"))
    else:
        rows_of = sklearn.table_of(model, tensors)
        probes = {name: array[: sklearn.PROBE_ROWS] for name, array in inputs.items()}
        with path.open("wb") as file:
            sklearn.write_probes(file, probes, sklearn.answers(model, rows_of(probes), output))
    base = Made(name=kind, runtime=kind, path=str(path), settings={"classes": hasattr(model, "predict_proba")})
    rows = len(next(iter(inputs.values())))
    return Work(
        manifest=Manifest(deployment, folder, {}),
        folder=folder,
        path=folder / "onnx.onnx",
        base=base,
        made={base.name: base},
        selection=Holdout(inputs=inputs, labels=np.arange(rows) % 2),
        here=here,
    )


def onnx_answers(work: Work, inputs: Arrays) -> Array:
    """Run the recipe's artifact."""
    name = work.manifest.deployment.model.outputs[0].name
    runtime = work.open_file(work.path, "onnxruntime")
    try:
        return runtime.run(inputs, [name])[name]
    finally:
        runtime.close()
