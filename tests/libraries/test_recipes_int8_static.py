"""recipes.calibration and recipes.int8_static: ranges, memory, what is quantised and what is left alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper
from tests.models import graphs

from tailcut.builder import Holdout
from tailcut.builder.recipes import calibration, int8_static
from tailcut.builder.recipes.int8_dynamic import mean_abs_error
from tailcut.errors import BuildError

FLOATS = hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False))


class Recording:
    """A runtime that answers with the sum of each row, and remembers how many rows it was given at once."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.closed = False

    def run(self, inputs: dict[str, np.ndarray], outputs: list[str]) -> dict[str, np.ndarray]:
        self.rows.append(len(inputs["x"]))
        return {outputs[0]: inputs["x"].sum(axis=1)}

    def close(self) -> None:
        self.closed = True


def test_candidates_are_compared_on_small_batches_however_many_rows_there_are() -> None:
    x = np.random.default_rng(0).normal(size=(5000, 3)).astype(np.float32)
    runtime = Recording()
    found = calibration.answers(runtime, Holdout(inputs={"x": x}), "y")
    assert max(runtime.rows) <= calibration.CHUNK_ROWS
    assert runtime.closed
    np.testing.assert_array_equal(found, x[: calibration.COMPARED_ROWS].sum(axis=1))


# -- ranges ----------------------------------------------------------------------------------------------------------


@given(st.lists(FLOATS, min_size=1, max_size=6))
@settings(deadline=None)
def test_no_value_is_lost_and_every_range_lies_within_the_extremes(batches: list[np.ndarray]) -> None:
    spread = calibration.TensorHistogram()
    for batch in batches:
        spread.add(batch)
    values = np.concatenate(batches)
    assert spread.counts.sum() == values.size
    lowest, highest = min(0.0, float(values.min())), max(0.0, float(values.max()))
    assert spread.range("min-max") == (lowest, highest)
    for method in calibration.METHODS:
        low, high = spread.range(method)
        assert lowest <= low <= 0.0 <= high <= highest


@given(FLOATS, st.integers(1, 5))
@settings(deadline=None)
def test_how_rows_are_divided_into_batches_does_not_change_percentiles_much(values: np.ndarray, parts: int) -> None:
    whole, pieces = calibration.TensorHistogram(), calibration.TensorHistogram()
    whole.add(values)
    for part in np.array_split(values, parts):
        pieces.add(part)
    step = 2 * max(whole.limit, pieces.limit) / calibration.BINS
    for method in ("percentile 99.9", "percentile 99.999"):
        np.testing.assert_allclose(whole.range(method), pieces.range(method), atol=2.01 * step)


def test_percentiles_cut_outliers_that_min_max_keeps() -> None:
    values = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    values[::20_000] = 60.0
    spread = calibration.TensorHistogram()
    for part in np.array_split(values, 50):
        spread.add(part)
    assert spread.range("min-max")[1] == 60.0
    assert 3.0 < spread.range("percentile 99.9")[1] < 4.0


def test_nan_and_unknown_methods_are_refused() -> None:
    spread = calibration.TensorHistogram()
    with pytest.raises(ValueError, match="NaN or infinity"):
        spread.add(np.array([1.0, np.nan], np.float32))
    spread.add(np.ones(3, np.float32))
    with pytest.raises(KeyError):
        spread.range("guess")


# -- memory ----------------------------------------------------------------------------------------------------------

PEAK = """
import json, sys
from pathlib import Path
import numpy as np
from tailcut.builder.recipes import calibration
rows, ours = int(sys.argv[3]), sys.argv[4] == "ours"
model, folder = Path(sys.argv[1]), Path(sys.argv[2])
def batches():
    for place in range(rows // 8):
        yield {"x": np.random.default_rng(place).normal(size=(8, 64)).astype(np.float32)}
if ours:
    spreads = calibration.observe(model, ["x", "h", "r", "z"], batches(), folder)
    assert spreads["r"].counts.sum() == rows * 4096
else:
    from onnxruntime.quantization.calibrate import CalibrationMethod, create_calibrator
    class Reader:
        def __init__(self): self.rows = batches()
        def get_next(self): return next(self.rows, None)
    calibrator = create_calibrator(model, ["MatMul"], str(folder / "a.onnx"), CalibrationMethod.Percentile,
        extra_options={"symmetric": False})
    calibrator.collect_data(Reader())
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps(int(status["VmHWM"].split()[0]) / 1024))
"""


# VmHWM, because ru_maxrss begins with the parent's size.


def peak_mib(model: Path, folder: Path, rows: int, whose: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(model), str(folder), str(rows), whose],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return float(json.loads(done.stdout.splitlines()[-1]))


def test_memory_stays_flat_when_the_calibration_set_grows_tenfold(tmp_path: Path) -> None:
    """Rows of 64 floats with activations of 4096: kept, 9 times 400 rows of them would be 115 MiB and more."""
    model = graphs.linear(tmp_path / "m.onnx", width=64, hidden=4096)
    ours = [peak_mib(model, tmp_path, rows, "ours") for rows in (400, 4000)]
    assert ours[1] - ours[0] < 12, ours
    theirs = [peak_mib(model, tmp_path, rows, "theirs") for rows in (400, 4000)]
    assert theirs[1] - theirs[0] > 60, f"the test would not see growth: {theirs}"


# -- what is quantised -----------------------------------------------------------------------------------------------


def answers(file: Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    import onnxruntime

    return onnxruntime.InferenceSession(str(file)).run(None, inputs)[0]


def quantize(base: Path, folder: Path, holdout: Holdout, saturates: bool = True) -> dict[str, object]:
    expected = answers(base, holdout.inputs)
    return int8_static.quantize(
        base,
        folder / "q.onnx",
        holdout,
        saturates=saturates,
        error_of=lambda file: mean_abs_error(expected, answers(file, holdout.inputs)),
    )


def holdout(*shape: int, name: str = "x") -> Holdout:
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    return Holdout(inputs={name: x}, labels=np.zeros(shape[0]))


def save(path: Path, nodes: list, inputs: dict, outputs: dict, weights: dict) -> Path:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def attention(path: Path) -> Path:
    """One head of attention over 6 places of 8 numbers, with a mask of float32's lowest number."""
    random = np.random.default_rng(2)
    node = helper.make_node
    nodes = [
        *(node("MatMul", ["x", f"w{name}"], [name]) for name in "qkv"),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Add", ["scores", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["shares"], axis=-1),
        node("MatMul", ["shares", "v"], ["mixed"]),
        node("MatMul", ["mixed", "wo"], ["y"]),
    ]
    mask = np.zeros((1, 6, 6), np.float32)
    mask[:, :, 4:] = np.finfo(np.float32).min
    weights = {f"w{name}": (random.normal(size=(8, 8)) / 8**0.5).astype(np.float32) for name in "qkvo"}
    return save(path, nodes, {"x": ["batch", 6, 8]}, {"y": ["batch", 6, 8]}, {**weights, "mask": mask})


def convolutional(path: Path) -> Path:
    random = np.random.default_rng(3)
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "a", "ab"], ["c1"], pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "b", "bb"], ["c2"], pads=[1, 1, 1, 1]),
        node("Relu", ["c2"], ["r2"]),
        node("GlobalAveragePool", ["r2"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "g", "gb"], ["y"]),
    ]
    normal = lambda *shape: (random.normal(size=shape) * 0.3).astype(np.float32)  # noqa: E731
    weights = {
        **{"a": normal(8, 1, 3, 3), "ab": normal(8), "b": normal(16, 8, 3, 3), "bb": normal(16)},
        **{"g": normal(16, 10), "gb": normal(10)},
    }
    return save(path, nodes, {"x": ["batch", 1, 8, 8]}, {"y": ["batch", 10]}, weights)


def test_linear_layers_run_in_8_bits_and_attention_products_do_not(tmp_path: Path) -> None:
    base = attention(tmp_path / "m.onnx")
    rows = holdout(64, 6, 8)
    found = quantize(base, tmp_path, rows)
    assert found["attention_products_left"] == 2
    assert found["mask_constants_tamed"] == 1
    assert found["operators"]["integer"] == 4
    assert found["operators"]["float"] == 2
    assert found["reduce_range"] is True
    methods = [each["method"] for each in found["candidates"]]
    assert set(methods) == set(calibration.METHODS)
    errors = [each["mean_abs_error"] for each in found["candidates"]]
    expected = answers(base, rows.inputs)
    kept = mean_abs_error(expected, answers(tmp_path / "q.onnx", rows.inputs))
    assert kept == pytest.approx(min(errors))
    assert kept < 0.03 * np.abs(expected).mean()


def test_weights_are_signed_per_channel_and_activations_unsigned(tmp_path: Path) -> None:
    quantize(graphs.linear(tmp_path / "m.onnx", width=16, hidden=32), tmp_path, holdout(64, 16))
    graph = onnx.load(str(tmp_path / "q.onnx")).graph
    tensors = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    weight = next(value for name, value in tensors.items() if value.shape == (16, 32))
    assert weight.dtype == np.int8
    assert -64 <= weight.min() < weight.max() <= 64  # 7 bits
    assert any(value.shape == (32,) and value.dtype == np.float32 for value in tensors.values())
    zeros = [tensors[node.input[2]] for node in graph.node if node.op_type == "QuantizeLinear"]
    assert zeros
    assert {zero.dtype for zero in zeros} == {np.dtype(np.uint8)}


def test_stacks_of_matrices_get_one_scale_and_run_in_8_bits(tmp_path: Path) -> None:
    """Tokens made of columns, each by a matrix of its own: (columns, batch, 6) times (columns, 6, 16)."""
    random = np.random.default_rng(4)
    nodes = [
        helper.make_node("Transpose", ["x"], ["columns"], perm=[1, 0, 2]),
        helper.make_node("MatMul", ["columns", "stack"], ["tokens"]),
        helper.make_node("Relu", ["tokens"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["y"], perm=[1, 0, 2]),
    ]
    weights = {
        "stack": random.normal(size=(5, 6, 16)).astype(np.float32),
        "w": random.normal(size=(16, 8)).astype(np.float32),
    }
    base = save(tmp_path / "m.onnx", nodes, {"x": ["batch", 5, 6]}, {"y": ["batch", 5, 8]}, weights)
    rows = holdout(64, 5, 6)
    found = quantize(base, tmp_path, rows)
    assert found["weights_of_one_scale"] == 1
    assert found["operators"]["integer"] == 2
    assert found["operators"]["float"] == 0
    tensors = [numpy_helper.to_array(each) for each in onnx.load(str(tmp_path / "q.onnx")).graph.initializer]
    stack = next(value for value in tensors if value.shape == (5, 6, 16))
    assert stack.dtype == np.int8
    assert -64 <= stack.min() < stack.max() <= 64  # 7 bits here as well
    expected = answers(base, rows.inputs)
    assert mean_abs_error(expected, answers(tmp_path / "q.onnx", rows.inputs)) < 0.05 * np.abs(expected).mean()


def test_convolutions_run_in_8_bits(tmp_path: Path) -> None:
    rows = holdout(64, 1, 8, 8)
    base = convolutional(tmp_path / "m.onnx")
    found = quantize(base, tmp_path, rows)
    assert found["operators"]["integer"] >= 3
    assert found["operators"]["float"] == 0
    expected = answers(base, rows.inputs)
    assert mean_abs_error(expected, answers(tmp_path / "q.onnx", rows.inputs)) < 0.05 * np.abs(expected).mean()


def test_a_model_without_weights_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "x"], ["y"])]
    base = save(tmp_path / "m.onnx", nodes, {"x": ["batch", 4, 4]}, {"y": ["batch", 4, 4]}, {})
    with pytest.raises(BuildError, match="nothing to quantise"):
        quantize(base, tmp_path, holdout(8, 4, 4))


def test_an_intermediate_tensor_that_overflows_is_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("MatMul", ["e", "w"], ["y"]),
    ]
    base = save(tmp_path / "m.onnx", nodes, {"x": ["b", 4]}, {"y": ["b", 2]}, {"w": np.ones((4, 2), np.float32)})
    rows = Holdout(inputs={"x": np.full((8, 4), 200, np.float32)}, labels=np.zeros(8))
    with pytest.raises(BuildError, match="NaN or infinity in the intermediate tensor 'e'"):
        quantize(base, tmp_path, rows)
