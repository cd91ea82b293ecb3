"""Runtime settings of a variant: onnxruntime's spinning and subnormals, OpenVINO's hint, pinning and precision."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.models import graphs

from tailcut.manifest import TensorSpec
from tailcut.models.runtimes import open_runtime
from tailcut.models.runtimes.onnxruntime import session_options
from tailcut.registry import Variant

X = TensorSpec(name="x", shape=(-1,))
Y = TensorSpec(name="y", shape=(-1,))

SPINNING = "session.intra_op.allow_spinning"
SPIN_US = "session.intra_op.spin_duration_us"


def doubling(path: Path) -> Path:
    """x (batch,) FP32 -> y = x + x."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch"]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "doubling", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.parametrize(
    ("threads", "settings", "spins"),
    [
        (1, {}, None),
        (2, {}, "200"),
        (2, {"spin_us": 1000}, "1000"),
        (2, {"spin_us": 0}, None),
    ],
)
def test_threads_spin_as_long_as_the_variant_says(threads: int, settings: dict[str, Any], spins: str | None) -> None:
    options = session_options(threads, settings)
    assert options.get_session_config_entry(SPINNING) == ("0" if spins is None else "1")
    if spins is not None:
        assert options.get_session_config_entry(SPIN_US) == spins


_CODE = """
import sys
from pathlib import Path
import numpy as np
from tailcut.manifest import TensorSpec
from tailcut.registry import Variant
from tailcut.models.runtimes import open_runtime
tensors = [(TensorSpec(name=name, shape=(-1,)),) for name in ("x", "y")]
plain = Variant("m", "onnx", "onnxruntime", Path(sys.argv[1]), "", *tensors, "v1")
kept = Variant("m", "onnx", "onnxruntime", Path(sys.argv[1]), "", *tensors, "v1", settings={"denormals": True})
x = np.full(2, 1e-40, np.float32)
for each in (plain, kept, plain):
    print(int((open_runtime(each, threads=1).run({"x": x}, ["y"])["y"].view(np.uint32) != 0).all()))
"""


def test_subnormals_are_computed_where_the_variant_says_so_and_zero_elsewhere(tmp_path: Path) -> None:
    """In a process of its own: onnxruntime sets a thread's mode once and for all."""
    command = [sys.executable, "-W", "ignore", "-c", _CODE, str(doubling(tmp_path / "m.onnx"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["0", "1", "0"], done.stderr


def test_openvino_takes_the_variants_hint_pinning_and_precision() -> None:
    from tailcut.models.runtimes.openvino import properties

    plain = properties(2, {})
    assert (plain["PERFORMANCE_HINT"], plain["ENABLE_CPU_PINNING"], plain["INFERENCE_PRECISION_HINT"]) == (
        "LATENCY", False, "f32"
    )  # fmt: skip
    found = properties(2, {"hint": "THROUGHPUT", "pinning": True, "precision": "bf16", "NUM_STREAMS": "2"})
    assert (found["PERFORMANCE_HINT"], found["ENABLE_CPU_PINNING"], found["INFERENCE_PRECISION_HINT"]) == (
        "THROUGHPUT", True, "bf16"
    )  # fmt: skip
    assert (found["NUM_STREAMS"], found["INFERENCE_NUM_THREADS"]) == ("2", 2)


@pytest.mark.parametrize(
    ("runtime", "settings"),
    [
        ("onnxruntime", {"spin_us": 0, "denormals": True, "executors": 2, "threads": 2}),
        ("openvino", {"hint": "THROUGHPUT", "pinning": True}),
    ],
)
def test_settings_change_no_answer(tmp_path: Path, runtime: str, settings: dict[str, Any]) -> None:
    pytest.importorskip(runtime)
    x = np.random.default_rng(3).normal(size=(5, 4)).astype(np.float32)
    inputs = (TensorSpec(name="x", shape=(-1, 4)),)
    plain = Variant("m", "v", runtime, graphs.linear(tmp_path / "m.onnx", hidden=8), "", inputs, (Y,), "v1")
    answers = [
        open_runtime(each, threads=2).run({"x": x}, ["y"])["y"] for each in (plain, replace(plain, settings=settings))
    ]
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-6)
