"""The onnx and int8-dynamic recipes on real models, in this process: what they make and how they refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from tests.models import graphs, tabular

from tailcut.builder import Holdout, sources
from tailcut.builder.quality import export_check
from tailcut.builder.recipes import int8_dynamic, onnx_export
from tailcut.errors import BuildError
from tailcut.manifest import Deployment, Manifest, Model, TensorSpec
from tailcut.models.runtimes import open_runtime
from tailcut.models.runtimes.base import OpenSpec

# The exporter's own use of a torch function that torch has since deprecated, and its naming of a shared dimension.
pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

INPUTS = (
    TensorSpec(name="numeric", shape=(-1, tabular.NUMBERS)),
    TensorSpec(name="categorical", datatype="INT64", shape=(-1, tabular.CATEGORIES)),
)
OUTPUTS = (TensorSpec(name="probability"),)


@pytest.fixture(scope="module")
def holdout() -> Holdout:
    rows = tabular.rows(50)
    return Holdout(inputs=rows, labels=tabular.labels(rows))


def export(module: torch.nn.Module, holdout: Holdout, path: Path) -> dict:
    return onnx_export.export(module, holdout, INPUTS, OUTPUTS, path)


def test_an_export_has_a_symbolic_batch_and_names_no_file_of_this_machine(holdout: Holdout, tmp_path: Path) -> None:
    export(tabular.tabular(), holdout, tmp_path / "m.onnx")
    model = onnx.load(str(tmp_path / "m.onnx"))
    for value in (*model.graph.input, *model.graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param, value.name
    assert [value.name for value in model.graph.input] == ["numeric", "categorical"]
    assert [value.name for value in model.graph.output] == ["probability"]
    assert b"tabular.py" not in (tmp_path / "m.onnx").read_bytes()
    assert list(tmp_path.iterdir()) == [tmp_path / "m.onnx"]


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        (tabular.unsupported, ["operator prims.bessel_j0", "tabular.py:", "bessel_j0(numeric)"]),
        (tabular.branching, ["its Python code at tabular.py:", "if numeric.sum() > 0:", "data-dependent"]),
    ],
)
def test_a_model_that_cannot_be_exported_names_operator_and_line(
    source: Callable[[], torch.nn.Module], texts: list[str], holdout: Holdout, tmp_path: Path
) -> None:
    with pytest.raises(BuildError) as error:
        export(source(), holdout, tmp_path / "m.onnx")
    for text in texts:
        assert text in error.value.message
    assert "torch.where" in error.value.hint


def test_a_model_that_bakes_its_batch_in_is_refused(holdout: Holdout, tmp_path: Path) -> None:
    with pytest.raises(
        BuildError, match="its Python code fixes dimension 0 of 'numeric' to 2, the size of the example"
    ):
        export(tabular.bakes_batch(), holdout, tmp_path / "m.onnx")


def test_an_onnx_source_with_a_fixed_batch_is_refused(tmp_path: Path) -> None:
    source = graphs.linear(tmp_path / "source.onnx", batch=1)
    with pytest.raises(BuildError, match="dimension 0 of 'x' is fixed to 1 in the ONNX model"):
        onnx_export.copy(source, (TensorSpec(name="x", shape=(-1, 4)),), (TensorSpec(name="y"),), tmp_path / "m.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(BuildError, match=r"text\.onnx is not a valid ONNX file"):
        onnx_export.copy(tmp_path / "text.onnx", (), (), tmp_path / "m.onnx")


def test_a_source_that_is_no_model_is_refused(tmp_path: Path) -> None:
    model = Model(source="tests.models.tabular:not_a_module", inputs=INPUTS, outputs=OUTPUTS)
    manifest = Manifest(Deployment(name="m", model=model), Path(), {})
    with pytest.raises(BuildError, match="gave a str, from which tailcut cannot build"):
        sources.make(tmp_path, manifest, None)


@pytest.mark.parametrize("saturates", [True, False])
def test_int8_follows_the_processor_and_keeps_the_closest_candidate(saturates: bool, tmp_path: Path) -> None:
    base = graphs.linear(tmp_path / "base.onnx", width=64, hidden=32)
    errors = iter([0.3, 0.1, 0.4, 0.2] if saturates else [0.3, 0.1])
    seen: list[Path] = []

    def error_of(file: Path) -> float:
        seen.append(file)
        return next(errors)

    found = int8_dynamic.quantize(base, tmp_path / "q.onnx", saturates=saturates, error_of=error_of)
    usable = [each for each in found["candidates"] if each["reduce_range"] == saturates]
    assert found["reduce_range"] is saturates
    assert found["per_channel"] == min(usable, key=lambda each: each["mean_abs_error"])["per_channel"]
    assert len(seen) == len(found["candidates"]) == (4 if saturates else 2)
    assert found["operators"] == {"integer": 2, "float": 0, "quantize": 2}
    weights = [onnx.numpy_helper.to_array(each) for each in onnx.load(str(tmp_path / "q.onnx")).graph.initializer]
    largest = max(int(np.abs(each.astype(int)).max()) for each in weights if each.dtype == np.int8)
    assert largest <= 64 if saturates else largest > 64


def test_int8_of_a_model_without_linear_layers_is_refused(tmp_path: Path) -> None:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Sigmoid", ["x"], ["y"])],
        "none",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 4])],
    )
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9), tmp_path / "m.onnx")
    with pytest.raises(BuildError, match="nothing to quantise"):
        int8_dynamic.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", saturates=False, error_of=lambda file: 0.0)


class Gives(torch.nn.Module):
    """Gives what it was told to, whatever comes in."""

    def __init__(self, answer: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: torch.Tensor) -> object:
        return self.answer(x)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda x: {"p": x}, r"variant 'torch': forward returned a dict of 1 \(p\), model.outputs names 1 \(y\)"),
        (lambda x: (x, x), r"forward returned 2 outputs \(Tensor, Tensor\), model.outputs names 1 \(y\)"),
        (lambda x: x.tolist(), r"forward returned \d+ outputs"),
        (lambda x: None, r"forward returned a NoneType, model.outputs names 1 \(y\)"),
        (lambda x: x, r"output 'y' of the source model is FP32 \[3, 4\] for 3 rows, the manifest says FP32 \[-1\]"),
        (
            lambda x: x[:, 0].double(),
            r"output 'y' of the source model is FP64 \[3\] for 3 rows",
        ),
        (lambda x: x[:1, 0], r"output 'y' of the source model is FP32 \[1\] for 3 rows, the manifest says FP32 \[-1\]"),
    ],
)
def test_outputs_that_are_not_the_manifests_are_described(
    answer: Callable[[torch.Tensor], object], text: str, tmp_path: Path
) -> None:
    torch.save({}, tmp_path / "m.pt")
    opening = OpenSpec(
        "torch", "torch", tmp_path / "m.pt", (TensorSpec(name="x", shape=(-1, 4)),), (TensorSpec(name="y"),), {}
    )
    rows = Holdout(inputs={"x": np.ones((5, 4), np.float32)})
    runtime = open_runtime(opening, threads=1, source=lambda: Gives(answer))
    with pytest.raises(BuildError, match=text) as refused:
        export_check.check_outputs(runtime, rows, opening.outputs)
    assert "one at a time" not in refused.value.hint
    assert refused.value.hint
