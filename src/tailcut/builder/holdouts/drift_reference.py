"""Sketches of the holdout that a version keeps: serving watches for drift against them.

They hold quantiles and names of categories, no rows, no labels and no keys. With ``holdout.keep = 0``, which says that
rows are personal data, texts are not sketched; with ``drift.mode = "off"`` nothing is.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from tailcut.builder.holdouts.holdout import Holdout
from tailcut.common.tensors import Arrays
from tailcut.manifest import Deployment, TensorSpec
from tailcut.observe.drift.sketch import NAME, Reference, Role, Sketch, encode, sketches_of

FILE = f"{NAME}.json"


def write_inputs(folder: Path, holdout: Holdout, deployment: Deployment) -> None:
    """Sketch the inputs, for ``files``; rows of one ``holdout.group`` are worth less than as many others."""
    _write(folder, "inputs", "input", deployment.model.inputs, holdout.inputs, holdout, deployment)


def write_outputs(folder: Path, variant: str, answers: Arrays, holdout: Holdout, deployment: Deployment) -> None:
    """Sketch what a variant answered to the holdout's rows, for ``files``."""
    _write(folder, f"outputs-{variant}", "output", deployment.model.outputs, answers, holdout, deployment)


def files(folder: Path, variants: Iterable[str]) -> dict[str, Path]:
    """Return what a version of this build keeps, for ``Registry.add``; nothing where nothing was sketched."""
    inputs = _read(folder, "inputs")
    outputs = {name: found for name in variants if (found := _read(folder, f"outputs-{name}"))}
    if not inputs and not outputs:
        return {}
    path = folder / FILE
    path.write_bytes(encode(Reference(inputs=inputs, outputs=outputs)))
    return {NAME: path}


def _write(
    folder: Path,
    part: str,
    role: Role,
    specs: tuple[TensorSpec, ...],
    arrays: Arrays,
    holdout: Holdout,
    deployment: Deployment,
) -> None:
    if deployment.drift.mode == "off":
        return
    if not deployment.holdout.keep:
        arrays = {name: array for name, array in arrays.items() if array.dtype.kind in "biuf"}
    group = deployment.holdout.group
    groups = holdout.slices[group].astype("U") if group else None
    made = sketches_of(role, specs, arrays, groups)
    _path(folder, part).write_bytes(msgspec.json.encode(made))


def _read(folder: Path, part: str) -> tuple[Sketch, ...]:
    path = _path(folder, part)
    return msgspec.json.decode(path.read_bytes(), type=tuple[Sketch, ...]) if path.exists() else ()


def _path(folder: Path, part: str) -> Path:
    return folder / f"{NAME}-{part}.json"
