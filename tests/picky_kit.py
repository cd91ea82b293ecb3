"""Deployments of models that refuse invented rows: in a registry, with rows of the holdout kept or without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.models.picky import Picky

from tailcut.common.tensors import DATATYPE_OF, Arrays
from tailcut.manifest import Manifest, load
from tailcut.registry import NewVariant, Registry, Version
from tailcut.registry.padding import trimmed
from tailcut.registry.rows import ROWS, KeptRows

MANIFEST = """
name = "picky"
[model]
source = "model.onnx"
inputs = {inputs}
outputs = [{{ name = "y", shape = [-1] }}]
[batching]
max_rows = 4
[serve]
follow = "1h"
"""


def write(folder: Path, model: Picky, more: str = "", overrides: Sequence[str] = ()) -> Manifest:
    """Write the model and its manifest, which serves what is promoted."""
    model.save(folder / "model.onnx")
    (folder / "tailcut.toml").write_text(MANIFEST.format(inputs=model.inputs) + more)
    return load(folder, environment={}, overrides=overrides)


def add(manifest: Manifest, rows: KeptRows | None, content: Path | None = None) -> Version:
    """Add a version that keeps the rows, and promote it."""
    registry, model = Registry.of(manifest), manifest.deployment.model
    files = {}
    if rows is not None:
        files[ROWS] = manifest.directory / "rows.npz"
        rows.save(files[ROWS])
    version = registry.add(
        "picky",
        source="onnx",
        inputs=model.inputs,
        outputs=model.outputs,
        variants=[NewVariant("onnx", "onnxruntime", content or manifest.directory / "model.onnx", base=True)],
        files=files,
    )
    registry.promote("picky", version.id, "onnx")
    return version


def kept(model: Picky, count: int = 8) -> KeptRows:
    """Rows that the model answers."""
    return KeptRows(model.rows(count), model.padding)


def body(model: Picky, row: int = 0) -> tuple[dict[str, Any], float]:
    """Return an inference request with one row, and the answer to it."""
    one = {name: array[row : row + 1] for name, array in model.rows(20).items()}
    expected = float(np.asarray(model.answer(one)).reshape(-1)[0])
    return {"inputs": tensors(trimmed(one, model.padding))}, expected


def tensors(inputs: Arrays) -> list[dict[str, Any]]:
    """Return the inputs of an inference request in JSON."""
    return [
        {"name": name, "shape": array.shape, "datatype": DATATYPE_OF[array.dtype], "data": array.ravel().tolist()}
        for name, array in inputs.items()
    ]
