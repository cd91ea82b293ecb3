"""Recipe int8-qat: when it is offered, what rounding does to a module, and how weights are rounded in the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper
from tests import recipe_kit

from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.plan import applicable
from tailcut.builder.recipes import int8_qat, recipe
from tailcut.builder.recipes.base import Subject

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

HERE = HostCapabilities(
    machine="x86_64", flags=(), cores=2, packages={name: "1" for name in ("torch", "onnx", "onnxscript", "onnxruntime")}
)
MODEL: dict[str, Any] = {
    "name": "cnn",
    "model": {
        "source": "tests.models.qat:cnn",
        "inputs": [{"name": "image", "shape": [-1, 1, 6, 6]}],
        "outputs": [{"name": "logits", "shape": [-1, 4]}],
    },
}


def subject(tmp_path: Path, kind: str = "torch", **build: Any) -> Subject:
    return Subject(kind=kind, deployment=recipe_kit.manifest(tmp_path, {**MODEL, "build": build}).deployment)


# -- when it is offered ----------------------------------------------------------------------------------------------


def why_not(tmp_path: Path, kind: str = "torch", **build: Any) -> str:
    return next(e.why_not for e in applicable(subject(tmp_path, kind, **build), HERE) if e.name == "int8-qat")


def test_it_is_made_only_where_it_is_asked_for_and_can_be_trained(tmp_path: Path) -> None:
    train = "tests.models.qat:fine_tune"
    assert why_not(tmp_path) == int8_qat.NEEDS_TRAIN
    assert why_not(tmp_path, quantize=True) == int8_qat.NEEDS_TRAIN
    assert why_not(tmp_path, train=train) == "off by default: set build.quantize = true"
    assert why_not(tmp_path, train=train, quantize=True) == ""
    assert why_not(tmp_path, train=train, recipes=("int8-qat",)) == ""
    assert why_not(tmp_path, train=train, recipes=("onnx",)) == "not among build.recipes"
    assert "the source is onnx" in why_not(tmp_path, "onnx", train=train, quantize=True)


def test_it_is_offered_by_name_where_int8_lost_quality() -> None:
    offered = int8_qat.offer(int8_qat.NEEDS_TRAIN, {"int8-static", "int8-dynamic"})
    assert offered == (
        "set build.train to a function that fine-tunes the module; "
        "offered because INT8 lost quality (int8-dynamic, int8-static)"
    )
    assert int8_qat.offer(int8_qat.NEEDS_TRAIN, set()) == int8_qat.NEEDS_TRAIN
    assert int8_qat.offer("needs a torch module", {"int8-dynamic"}) == "needs a torch module"
    assert int8_qat.offer("", {"int8-dynamic"}) == ""


# -- rounding in the module ------------------------------------------------------------------------------------------


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = torch.nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.inner(x, x, x, need_weights=False)[0])


def test_rounding_follows_training_stays_still_in_eval_and_passes_gradients() -> None:
    from tailcut.builder.recipes import qat

    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 3)
    plain = layer.weight.detach().clone()
    layers = qat.insert(layer, 4)
    assert isinstance(layer, torch.nn.Linear)
    assert len(torch.unique(layer.weight[0].detach())) <= 4
    layers = qat.calibrate(layer, layers, [(torch.linspace(-1, 1, 16).reshape(4, 4),)])
    assert layers[0].rounding.scale() == pytest.approx((2 / 255, 128), abs=1e-6)
    layer.train()
    layer(torch.full((2, 4), 11.0)).sum().backward()
    assert float(layers[0].rounding.high) == pytest.approx(0.95 + 0.05 * 11)
    assert layer.parametrizations.weight.original.grad.abs().sum() > 0
    before = layers[0].rounding.scale()
    layer.eval()
    layer(torch.full((2, 4), 99.0))
    assert layers[0].rounding.scale() == before
    qat.remove_weight(layers[0])
    qat.remove_input(layers[0])
    torch.testing.assert_close(layer.weight.detach(), plain)


def test_layers_that_are_never_called_are_left_as_they_are() -> None:
    from tailcut.builder.recipes import qat

    torch.manual_seed(0)
    module = Attention()
    weight = module.inner.out_proj.weight.detach().clone()
    layers = qat.calibrate(module, qat.insert(module, 8), [(torch.randn(2, 3, 8),)])
    assert [layer.name for layer in layers] == ["head"]
    torch.testing.assert_close(module.inner.out_proj.weight.detach(), weight)


# -- weights in the graph --------------------------------------------------------------------------------------------


def gemm(path: Path, weight: np.ndarray, bias: np.ndarray, turned: bool) -> Path:
    """x -> rounded to 8 bits at 1/128 around 0 -> Gemm."""
    constants = {"scale": np.float32(1 / 128), "zero": np.uint8(128), "b": bias}
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
            helper.make_node("Gemm", ["d", "w", "b"], ["y"], transB=int(turned)),
        ],
        "gemm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", weight.shape[1 if turned else 0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", len(bias)])],
        [
            numpy_helper.from_array(weight, "w"),
            *(numpy_helper.from_array(np.array(v), k) for k, v in constants.items()),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


WEIGHTS = hnp.arrays(np.float32, (3, 5), elements=st.floats(-8, 8, width=32, allow_subnormal=False))
BIASES = hnp.arrays(np.float32, 3, elements=st.floats(-100, 100, width=32, allow_subnormal=False))


@given(weight=WEIGHTS, bias=BIASES, turned=st.booleans())
@settings(deadline=None, max_examples=40)
def test_weights_and_biases_in_integers_stay_within_their_step(
    weight: np.ndarray, bias: np.ndarray, turned: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of a channel without weights as well, whose bias would not fit into 32 bits at a step of almost nothing."""
    path = gemm(tmp_path_factory.mktemp("g") / "m.onnx", weight if turned else weight.T.copy(), bias, turned)
    assert int8_qat.quantize_weights(path, 7) == 1
    constants = {each.name: numpy_helper.to_array(each) for each in onnx.load(str(path)).graph.initializer}
    assert "w" not in constants
    integers, scale = constants["w/0/integer"], constants["w/0/scale"]
    assert integers.dtype == np.int8
    assert np.abs(integers).max() <= 63
    rows = integers if turned else integers.T
    assert (np.abs(rows * scale[:, None] - weight) <= 0.5 * scale[:, None] + 1e-6).all()
    back = constants["b/0/integer"].astype(np.float64) * constants["b/0/scale"]
    np.testing.assert_allclose(back, bias, atol=1e-3, rtol=1e-5)


def test_layers_whose_input_is_not_rounded_are_left_in_float(tmp_path: Path) -> None:
    from tests.models import graphs

    path = graphs.linear(tmp_path / "m.onnx", hidden=8)
    before = path.read_bytes()
    assert int8_qat.quantize_weights(path, 8) == 0
    assert onnx.load(str(path)).graph == onnx.load_from_string(before).graph


def test_the_recipe_is_in_the_catalogue_with_a_summary() -> None:
    assert recipe("int8-qat").base == ("torch",)
    assert "build.train" in recipe("int8-qat").summary
