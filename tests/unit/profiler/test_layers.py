"""Slow layers: ranked and addressed by what they are, from a real torch module and a real ONNX graph."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tailcut.errors import ProfileError
from tailcut.profiler.attribution.layers import (
    DISPATCH,
    ModelLayers,
    device_use,
    layers_of,
    lever_of,
    operators_of,
    quiet,
)
from tailcut.profiler.layers import onnx as layers_onnx
from tailcut.profiler.layers import torch as layers_torch
from tailcut.profiler.layers.child import outcome_of
from tailcut.profiler.layers.onnx import of_onnx
from tailcut.profiler.layers.search import InputShape, LayersSpec, parse_shape
from tailcut.profiler.recording.captured import Captured


@pytest.mark.parametrize(
    ("operator", "lever"),
    [
        ("aten::addmm", "quantisation"),
        ("MatMul", "quantisation"),
        ("FusedConv", "quantisation"),
        ("aten::native_layer_norm", "fusion"),
        ("Transpose", "fusion"),
        ("MatMulInteger", ""),
        ("SkipLayerNormalization", ""),
        ("aten::bmm", ""),
        ("Gather", ""),
    ],
)
def test_what_addresses_an_operator(operator: str, lever: str) -> None:
    assert lever_of(operator) == lever


def test_operators_and_layers_are_ranked_and_their_shares_make_one() -> None:
    operators = operators_of([("Add", 2, 1.0), ("MatMul", 1, 6.0), (DISPATCH, 1, 3.0)])
    assert [each.name for each in operators] == ["MatMul", DISPATCH, "Add"]
    assert sum(each.share for each in operators) == pytest.approx(1.0)
    layers = layers_of([("a", "Norm", 1, 1.0, "Add"), ("b", "Linear", 1, 3.0, "MatMul")])
    assert [(each.name, each.lever, each.share) for each in layers] == [
        ("b", "quantisation", 0.75),
        ("a", "fusion", 0.25),
    ]
    found = ModelLayers(
        model="m", runtime="r", inputs="", runs=1, run_ms=4.0, profiled_ms=10.0, layers=layers, operators=operators
    )
    assert (found.addressed("quantisation"), found.addressed("fusion"), found.dispatch) == (0.6, 0.1, 0.3)
    assert "2.5 times as long" in found.doubt


def test_the_quicker_half_of_the_runs_is_kept() -> None:
    assert quiet([(0, 10), (20, 25), (30, 36), (40, 90)]) == [(20, 25), (30, 36)]
    assert quiet([]) == []


def test_kernels_side_by_side_count_once_and_gaps_are_what_no_kernel_covers() -> None:
    kernels = [(1.0, 3.0), (2.0, 4.0), (6.0, 7.0), (20.0, 30.0)]
    used = device_use("gpu", kernels, [(0.0, 10.0)], 1 << 20, run_ms=7.0)
    assert (used.kernels, used.kernel_ms, used.gap_ms) == (3, 4.0, 3.0)  # what the profiler takes is no gap
    assert device_use("gpu", kernels, [(0.0, 10.0)], 1 << 20, run_ms=3.5).gap_ms == 0.0


def test_a_shape_is_read() -> None:
    assert parse_shape("ids=1x128:int64") == InputShape(name="ids", dims=(1, 128), datatype="INT64")
    for text in ("ids", "ids=1x", "ids=0x4", "ids=1:INT7"):
        with pytest.raises(ProfileError):
            parse_shape(text)


@pytest.mark.torch
def test_a_torch_module_by_layer_and_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    # So many runs, and so much work in a layer, that no neighbour's stall makes another layer the slowest.
    monkeypatch.setattr(layers_onnx, "_BUDGET_S", 0.2)
    wide = torch.nn.Linear(512, 16384)
    module = torch.nn.Sequential(torch.nn.LayerNorm(512), wide, torch.nn.Sequential(torch.nn.Linear(16384, 2))).eval()
    found = layers_torch.of_torch(module, (torch.zeros(32, 512),), {}, "wide")
    slowest = found.layers[0]
    assert (slowest.name, slowest.kind, slowest.lever) == ("1", "Linear", "quantisation")
    assert slowest.calls == pytest.approx(1.0)
    assert {each.name for each in found.layers} == {"(the model itself)", "0", "1", "2", "2.0"}
    assert found.operators[0].name == "aten::addmm"
    assert found.addressed("quantisation") > 0.5
    assert found.inputs == "#0 float32 [32, 512]"
    assert found.device is None
    assert found.device_note == "not here: no CUDA device" or torch.cuda.is_available()


@pytest.mark.torch
def test_an_input_that_the_module_does_not_take_is_named() -> None:
    import torch

    with pytest.raises(ProfileError, match=r"cannot be profiled on #0 float32 \[1, 3\]"):
        layers_torch.of_torch(torch.nn.Linear(4, 1), (torch.zeros(1, 3),), {}, "m")


@pytest.mark.torch
def test_on_a_gpu_time_is_that_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profiler's events as a GPU gives them: an operator's own time is its kernels', launching is none of it."""

    def event(name: str, start: float, end: float, *, parent: object = None, kernel_us: float = 0.0) -> SimpleNamespace:
        kernels = [SimpleNamespace(duration=kernel_us)] if kernel_us else []
        times = SimpleNamespace(start=start, end=end)
        return SimpleNamespace(
            name=name, time_range=times, cpu_parent=parent, kernels=kernels, device_type="DeviceType.CPU",
            self_cpu_time_total=end - start,
        )  # fmt: skip

    run = event(layers_torch._RUN, 0, 1000)
    mark = event(f"{layers_torch._MARK}fc", 10, 500, parent=run)
    events = [run, mark, event("aten::addmm", 20, 400, parent=mark, kernel_us=90.0)]
    (operator,) = layers_torch._operators(events, 1, True)
    assert (operator.name, operator.ms) == ("aten::addmm", pytest.approx(0.09))
    module = SimpleNamespace(named_modules=lambda: [("fc", module)])
    (layer,) = layers_torch._layers(module, events, 1, True)
    assert (layer.name, layer.lever, layer.ms) == ("fc", "quantisation", pytest.approx(0.09))


def test_a_layers_own_time_leaves_out_the_layers_inside_it() -> None:
    def mark(name: str, start: float, end: float, parent: object = None) -> SimpleNamespace:
        times = SimpleNamespace(start=start, end=end)
        return SimpleNamespace(
            name=f"{layers_torch._MARK}{name}", time_range=times, cpu_parent=parent, device_type="DeviceType.CPU",
        )  # fmt: skip

    outer = mark("", 0, 1000)
    events = [outer, mark("a", 100, 700, outer), mark("a", 700, 900, outer)]
    module = SimpleNamespace(named_modules=lambda: [("", 0), ("a", 0.0)])
    found = {one.name: (one.kind, one.calls, one.ms) for one in layers_torch._layers(module, events, 2, False)}
    assert found == {"a": ("float", 1.0, 0.4), "(the model itself)": ("int", 0.5, pytest.approx(0.1))}


def _onnx(folder: Path) -> Path:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.ones((256, 256), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="dense"),
        helper.make_node("Tanh", ["h"], ["y"], name="squash"),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 256]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def test_an_onnx_model_by_node_and_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers_onnx, "_BUDGET_S", 0.02)
    found = of_onnx(_onnx(tmp_path), {"x": np.ones((64, 256), np.float32)}, "m", threads=1)
    assert {(each.name, each.kind) for each in found.layers} == {("dense", "MatMul"), ("squash", "Tanh")}
    assert {each.name: each.lever for each in found.operators} == {"MatMul": "quantisation", "Tanh": "fusion"}
    assert sum(each.share for each in found.operators) == pytest.approx(1.0)
    assert all(each.calls == pytest.approx(1.0) for each in found.layers)
    assert found.inputs == "x float32 [64, 256]"


def test_inputs_are_made_from_what_the_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers_onnx, "_BUDGET_S", 0.02)
    outcome = outcome_of(LayersSpec(model=str(_onnx(tmp_path))))
    assert outcome.found is not None
    assert outcome.found.inputs == "x float32 [1, 256]"
    wider = outcome_of(LayersSpec(model=str(tmp_path / "m.onnx"), shapes=(parse_shape("x=8x256"),)))
    assert wider.found is not None
    assert wider.found.inputs == "x float32 [8, 256]"


def test_what_is_wrong_with_a_model_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    (tmp_path / "odd_models_c.py").write_text(
        "def number(): return 3\ndef broken(): raise RuntimeError('no weights')\n"
    )
    wrong = {
        str(tmp_path / "absent.onnx"): "there is no file",
        str(tmp_path / "broken.onnx"): "onnxruntime cannot open",
        "odd_models_c:absent": "has no absent",
        "no_such_module_c:m": "there is no module no_such_module_c",
        "odd_models_c:number": "expected a torch.nn.Module",
        "odd_models_c:broken": "RuntimeError: no weights",
        "nonsense": "name an .onnx file",
    }
    for model, text in wrong.items():
        outcome = outcome_of(LayersSpec(model=model))
        assert outcome.found is None
        assert text in f"{outcome.error} {outcome.hint}"


@pytest.mark.torch
def test_an_applications_own_models_are_timed_on_what_they_were_called_with(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(layers_onnx, "_BUDGET_S", 0.02)
    captured = Captured()
    large, small, idle = (torch.nn.Linear(8, width).eval() for width in (64, 2, 4))
    captured.torch(idle, (torch.zeros(1, 8),), {}, 5)
    captured.clear()  # what was called before the recording counts for nothing
    captured.torch(small, (torch.zeros(1, 8),), {}, 10)
    captured.torch(large, (torch.zeros(3, 8),), {}, 500)
    captured.torch(large, (torch.zeros(7, 8),), {}, 500)
    found = captured.find()
    assert [one.inputs for one in found.layers] == ["#0 float32 [3, 8]", "#0 float32 [1, 8]"]
    assert found.notes == ()
    broken = Captured()
    broken.torch(small, (torch.zeros(1, 3),), {}, 10)
    found = broken.find()
    assert found.layers == ()
    assert found.notes[0].startswith("no slow layers of Linear: Linear cannot be profiled on #0 float32 [1, 3]")


def test_an_applications_own_session_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    monkeypatch.setattr(layers_onnx, "_BUDGET_S", 0.02)
    session = onnxruntime.InferenceSession(str(_onnx(tmp_path)), providers=["CPUExecutionProvider"])
    captured = Captured()
    captured.onnx(session, {"x": np.ones((2, 256), np.float32)}, 10)
    captured.onnx(SimpleNamespace(), {"x": 1}, 10)  # nobody knows its file
    found = captured.find()
    assert [(one.model, one.inputs) for one in found.layers] == [("m.onnx", "x float32 [2, 256]")]
    assert found.notes == ()
