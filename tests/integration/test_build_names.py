"""A whole build and a server of a torch module in which nearly every name clashes with another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.integration.serving import Served

from tailcut.cli.app import run
from tailcut.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.usefixtures("warm_builds")]

MODULE = """
import numpy as np
import torch
from tailcut.builder import Holdout

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.meta = torch.nn.Linear(6, 1)
        self.register_buffer("file", torch.arange(6.0))

    def forward(self, meta, scale=2.0, file=None):
        return self.meta(meta).squeeze(1) * scale, ((file - self.file) * meta).sum(1)

def build():
    torch.manual_seed(0)
    return Net().eval()

def holdout():
    random = np.random.default_rng(0)
    rows = {name: random.normal(size=(600, 6)).astype(np.float32) for name in ("meta", "file")}
    return Holdout(inputs=rows, labels=rows["meta"][:, 0])
"""
MANIFEST = """
name = "c.v2"
[model]
source = "nb_model:build"
inputs = [{ name = "file", shape = [-1, 6] }, { name = "meta", shape = [-1, 6] }]
outputs = [{ name = "allow_pickle", shape = [-1] }, { name = "meta.weight", shape = [-1] }]
[holdout]
source = "nb_model:holdout"
[quality]
budget = { mae = 0.01 }
[build]
recipes = ["onnx"]
rounds = 0
"""


ROWS = {name: np.random.default_rng(3).normal(size=(1, 6)).astype(np.float32) for name in ("file", "meta")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names")
    (folder / "nb_model.py").write_text(MODULE)
    (folder / "tailcut.toml").write_text(MANIFEST)
    assert run(["build", "-m", str(folder)]) == 0
    return folder


def test_every_variant_is_built(built: Path) -> None:
    """torch.export alone would refuse the module: "references nonexistent attribute"."""
    assert set(Registry(built / ".tailcut" / "registry").version("c.v2").variants) >= {"torch", "onnx"}


@pytest.mark.parametrize("variant", ["torch", "onnx"])
def test_every_variant_answers_by_name(built: Path, variant: str) -> None:
    tensors = [
        {"name": name, "shape": [1, 6], "datatype": "FP32", "data": array.ravel().tolist()}
        for name, array in ROWS.items()
    ]
    with Served(built, settings=[f"serve.variant={variant}"], prepared=True) as served:
        status, body = served.post("/v2/models/c.v2/infer", {"inputs": tensors})
    assert status == 200, body
    outputs = {each["name"]: each["data"][0] for each in body["outputs"]}
    assert list(outputs) == ["allow_pickle", "meta.weight"]
    wanted = float(((ROWS["file"] - np.arange(6)) * ROWS["meta"]).sum())
    assert outputs["meta.weight"] == pytest.approx(wanted, rel=1e-4)
