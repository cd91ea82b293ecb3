"""Torch modules whose names clash: exported, or refused with what is wrong, and the same answers either way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")

from tailcut.builder import Holdout  # noqa: E402
from tailcut.builder.recipes import onnx_export  # noqa: E402
from tailcut.common.tensors import Arrays  # noqa: E402
from tailcut.errors import ArtifactError, BuildError  # noqa: E402
from tailcut.manifest import TensorSpec  # noqa: E402
from tailcut.models.runtimes import open_runtime  # noqa: E402
from tailcut.models.runtimes.base import OpenSpec  # noqa: E402

# What torch and its exporter deprecate in each other is not ours.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


class Submodule(torch.nn.Module):
    """An argument named like a submodule (fault 25)."""

    def __init__(self) -> None:
        super().__init__()
        self.meta = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))

    def forward(self, meta: Any) -> Any:
        return self.meta(meta).squeeze(1)


class Buffer(torch.nn.Module):
    """A buffer and a parameter named like the arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.arange(3.0))
        self.weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))

    def forward(self, mean: Any, weight: Any) -> Any:
        return ((mean - self.mean) * self.weight * weight).sum(1)


class Two(torch.nn.Module):
    """Two inputs that must not be swapped, with a default between them."""

    def forward(self, left: Any, scale: float = 3.0, right: Any = None) -> Any:
        return left.sum(1) * scale - 2 * right.sum(1)


class Keywords(torch.nn.Module):
    """Arguments by keyword only."""

    def forward(self, *, left: Any, right: Any) -> Any:
        return left.sum(1) - 2 * right.sum(1)


class Model(torch.nn.Module):
    """A submodule that has the name which the export gives the whole module."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(3, 1)

    def forward(self, model: Any) -> Any:
        return self.model(model)[:, 0]


class Fixed(torch.nn.Module):
    """Fixes the batch of its second argument."""

    def forward(self, left: Any, right: Any) -> Any:
        return left.sum() + right.reshape(2, 3).sum(1)


def rows(*names: str) -> Arrays:
    random = np.random.default_rng(7)
    return {name: random.normal(size=(5, 3)).astype(np.float32) for name in names}


def both(folder: Path, module: Any, inputs: list[str], output: str) -> tuple[Any, Any, Any]:
    """Answers of the torch and the onnx variant, and the graph."""
    torch.manual_seed(0)
    source, given = module(), rows(*inputs)
    tensors = tuple(TensorSpec(name=name, shape=(-1, 3)) for name in inputs)
    outputs = (TensorSpec(name=output),)
    torch.save(source.state_dict(), folder / "m.pt")
    onnx_export.export(source.eval(), Holdout(inputs=given), tensors, outputs, folder / "m.onnx")
    answers = []
    for runtime in ("torch", "onnxruntime"):
        path = folder / ("m.pt" if runtime == "torch" else "m.onnx")
        opened = open_runtime(OpenSpec(runtime, runtime, path, tensors, outputs, {}), threads=1, source=module)
        answers.append(opened.run(given, [output])[output])
    return answers[0], answers[1], onnx.load(folder / "m.onnx").graph


@pytest.mark.parametrize(
    ("module", "inputs", "output"),
    [
        (Submodule, ["meta"], "y"),
        (Submodule, ["meta.0.weight"], "meta"),
        (Submodule, ["linear"], "relu"),
        (Buffer, ["mean", "weight"], "sub"),
        (Buffer, ["weight", "mean"], "weight.inside"),
        (Two, ["right", "left"], "sum_1"),
        (Keywords, ["right", "left"], "val_0"),
        (Model, ["model"], "model.weight"),
        (Model, ["model.model.weight"], "tailcut.input.0"),
        (Model, ['a "b" ü.0'], "class"),
        (Model, ["self"], "given"),
    ],
)
def test_both_variants_answer_alike(tmp_path: Path, module: Any, inputs: list[str], output: str) -> None:
    own, exported, graph = both(tmp_path, module, inputs, output)
    np.testing.assert_allclose(own, exported, rtol=1e-5, atol=1e-5)
    assert [value.name for value in graph.input] == inputs
    assert [value.name for value in graph.output] == [output]
    assert len(own) == 5


def test_inputs_in_another_order_are_not_swapped(tmp_path: Path) -> None:
    for inputs in (["left", "right"], ["right", "left"]):
        folder = tmp_path / inputs[0]
        folder.mkdir()
        own, exported, _ = both(folder, Two, inputs, "y")
        given = rows(*inputs)
        wanted = given["left"].sum(1) * 3 - 2 * given["right"].sum(1)
        np.testing.assert_allclose(own, wanted, rtol=1e-5)
        np.testing.assert_allclose(exported, wanted, rtol=1e-5)


def test_a_name_at_another_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="input 'right' is passed by position, but the argument there is scale"):
        both(tmp_path, Two, ["x", "right"], "y")


def test_a_fixed_dimension_is_reported_by_the_manifests_name(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="fixes dimension 0 of 'second' to 2, the size of the example"):
        both(tmp_path, Fixed, ["first", "second"], "y")
