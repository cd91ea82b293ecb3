"""What a recipe's test needs: a manifest, a Work, and a source model as a variant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailcut.builder import Holdout
from tailcut.builder.host_capabilities import HostCapabilities, look
from tailcut.builder.recipes.base import Work
from tailcut.builder.records import Made
from tailcut.manifest import Manifest
from tailcut.manifest.reading import read

ENCODER: dict[str, Any] = {
    "name": "encoder",
    "model": {
        "source": "tests.models.encoder:encoder",
        "inputs": [
            {"name": "input_ids", "datatype": "INT64", "shape": [-1, -1]},
            {"name": "attention_mask", "datatype": "INT64", "shape": [-1, -1]},
        ],
        "outputs": [{"name": "embedding", "shape": [-1, 64]}],
    },
}


def manifest(folder: Path, values: dict[str, Any]) -> Manifest:
    return Manifest(read(values, {}), folder, {})


def work(
    folder: Path,
    values: dict[str, Any],
    base: Made,
    selection: Holdout,
    path: str,
    here: HostCapabilities | None = None,
) -> Work:
    return Work(
        manifest=manifest(folder, values),
        folder=folder,
        path=folder / path,
        base=base,
        made={base.name: base},
        selection=selection,
        here=here or look(),
    )


def torch_base(folder: Path, module: Any) -> Made:
    import torch

    torch.save(module.state_dict(), folder / "source.pt")
    return Made(name="torch", runtime="torch", path=str(folder / "source.pt"))
