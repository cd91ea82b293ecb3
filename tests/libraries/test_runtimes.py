"""runtimes: what open_runtime opens, runs and refuses."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.models import graphs, tabular

from tailcut.errors import ArtifactError, InferenceError
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes import open_runtime
from tailcut.registry import Variant
from tailcut.testing.runtimes import FaultyRuntime, StubRuntime

X = TensorSpec(name="x", shape=(-1, 4))
Y = TensorSpec(name="y", shape=(-1,))
NUMERIC = TensorSpec(name="numeric", shape=(-1, tabular.NUMBERS))
CATEGORICAL = TensorSpec(name="categorical", datatype="INT64", shape=(-1, tabular.CATEGORIES))
PROBABILITY = TensorSpec(name="probability", shape=(-1,))


def variant(artifact: Path, *, runtime: str = "onnxruntime", inputs: tuple[TensorSpec, ...] = (X,)) -> Variant:
    return Variant("m", "onnx", runtime, artifact, "", inputs, (Y,), "v1")


@pytest.fixture
def onnx_variant(tmp_path: Path) -> Variant:
    return variant(graphs.linear(tmp_path / "m.onnx"))


@pytest.fixture
def torch_variant(tmp_path: Path) -> Variant:
    path = tmp_path / "m.pt"
    torch.save(tabular.tabular().state_dict(), path)
    return Variant("m", "torch", "torch", path, "", (NUMERIC, CATEGORICAL), (PROBABILITY,), "v1")


def test_onnxruntime_answers_each_row_as_alone(onnx_variant: Variant) -> None:
    runtime = open_runtime(onnx_variant, threads=1)
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    together = runtime.run({"x": x}, ["y"])["y"]
    alone = np.concatenate([runtime.run({"x": x[i : i + 1]}, ["y"])["y"] for i in range(5)])
    np.testing.assert_allclose(together, alone, rtol=1e-6)
    runtime.close()
    runtime.close()


def test_onnxruntime_fails_one_batch_by_name_and_runs_the_next(onnx_variant: Variant) -> None:
    runtime = open_runtime(onnx_variant, threads=2)
    with pytest.raises(InferenceError, match=r"variant 'onnx' failed on x FP32 \[2, 7\]"):
        runtime.run({"x": np.zeros((2, 7), np.float32)}, ["y"])
    assert runtime.run({"x": np.zeros((2, 4), np.float32)}, ["y"])["y"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (TensorSpec(name="z", shape=(-1, 4)), r"inputs of .* are \['x'\], the manifest names \['z'\]"),
        (TensorSpec(name="x", datatype="FP64", shape=(-1, 4)), r"'x' .* is FP32 \[-1, 4\], the manifest says FP64"),
        (TensorSpec(name="x", shape=(-1, 5)), r"is FP32 \[-1, 4\], the manifest says FP32 \[-1, 5\]"),
        (TensorSpec(name="x", shape=(-1, 4, 1)), r"the manifest says FP32 \[-1, 4, 1\]"),
    ],
)
def test_onnxruntime_refuses_a_model_that_is_not_the_manifests(
    onnx_variant: Variant, wrong: TensorSpec, text: str
) -> None:
    with pytest.raises(ArtifactError, match=text):
        open_runtime(replace(onnx_variant, inputs=(wrong,)), threads=1)


def test_onnxruntime_refuses_a_fixed_batch(tmp_path: Path) -> None:
    fixed = variant(graphs.linear(tmp_path / "m.onnx", batch=1))
    with pytest.raises(ArtifactError, match=r"is FP32 \[1, 4\], the manifest says FP32 \[-1, 4\]"):
        open_runtime(fixed, threads=1)


def test_onnxruntime_refuses_an_unknown_output(onnx_variant: Variant) -> None:
    with pytest.raises(ArtifactError, match=r"outputs of .* are \['y'\], the manifest names \['score'\]"):
        open_runtime(replace(onnx_variant, outputs=(TensorSpec(name="score"),)), threads=1)


def test_onnxruntime_names_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"not a model")
    with pytest.raises(ArtifactError, match=r"cannot open .*m\.onnx"):
        open_runtime(variant(tmp_path / "m.onnx"), threads=1)


def test_torch_answers_as_the_module_and_takes_read_only_arrays(torch_variant: Variant) -> None:
    rows = tabular.rows(6)
    for array in rows.values():
        array.flags.writeable = False
    runtime = open_runtime(torch_variant, threads=1, source=tabular.Tabular)
    with torch.inference_mode():
        expected = tabular.tabular()(*(torch.from_numpy(array.copy()) for array in rows.values())).numpy()
    np.testing.assert_allclose(runtime.run(rows, ["probability"])["probability"], expected, rtol=1e-6)
    runtime.close()


class InPlace(torch.nn.Module):
    """Normalises its input where it lies; ``some``: only where a value is above 100."""

    def __init__(self, some: bool = False) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.some = some

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.some or bool((x > 100).any()):
            x.sub_(self.mean)
        return x.sum(1)


@pytest.mark.parametrize("some", [False, True])
def test_torch_changes_no_array_of_its_caller(tmp_path: Path, some: bool) -> None:
    torch.save(InPlace().state_dict(), tmp_path / "m.pt")
    variant = Variant("m", "torch", "torch", tmp_path / "m.pt", "", (X,), (Y,), "v1")
    runtime = open_runtime(variant, threads=1, source=lambda: InPlace(some))
    if some:  # nothing to see in the first batch: what changes its input now and then is seen when it does
        assert runtime.run({"x": np.zeros((1, 4), np.float32)}, ["y"])["y"].tolist() == [0]
        runtime.run({"x": np.full((1, 4), 200, np.float32)}, ["y"])
    given = np.full((2, 4), 200, np.float32)
    for _ in range(3):
        if some:
            runtime.run({"x": np.zeros((1, 4), np.float32)}, ["y"])
        assert runtime.run({"x": given}, ["y"])["y"].tolist() == [790, 790]
        assert (given == 200).all()
    runtime.close()


def test_torch_refuses_weights_of_another_module(torch_variant: Variant) -> None:
    with pytest.raises(ArtifactError, match=r"does not fit the module.*size mismatch"):
        open_runtime(torch_variant, threads=1, source=lambda: tabular.Tabular(width=32))


def test_torch_refuses_pickled_code(torch_variant: Variant) -> None:
    torch.save(tabular.tabular(), torch_variant.artifact)
    with pytest.raises(ArtifactError, match="cannot read the state dict"):
        open_runtime(torch_variant, threads=1, source=tabular.tabular)


def test_torch_refuses_a_source_that_is_no_module(torch_variant: Variant) -> None:
    with pytest.raises(ArtifactError, match=r"returned a str, expected a torch\.nn\.Module"):
        open_runtime(torch_variant, threads=1, source=tabular.not_a_module)
    with pytest.raises(ArtifactError, match="needs the module that it belongs to"):
        open_runtime(torch_variant, threads=1)


def test_torch_fails_one_batch_and_runs_the_next(torch_variant: Variant) -> None:
    runtime = open_runtime(torch_variant, threads=1, source=tabular.tabular)
    rows = tabular.rows(2)
    with pytest.raises(InferenceError, match=r"variant 'torch' failed on .*numeric FP32 \[2, 3\]"):
        runtime.run({**rows, "numeric": rows["numeric"][:, :3]}, ["probability"])
    assert runtime.run(rows, ["probability"])["probability"].shape == (2,)


def test_an_unknown_runtime_is_refused(onnx_variant: Variant) -> None:
    with pytest.raises(ArtifactError, match="wants runtime 'abacus'"):
        open_runtime(replace(onnx_variant, runtime="abacus"), threads=1)


def test_serving_imports_neither_torch_nor_onnx(onnx_variant: Variant) -> None:
    """A serving install has no torch: neither importing nor opening an ONNX variant may want it."""
    script = f"""
import sys
import tailcut.registry, tailcut.models.runtimes
heavy = {{"torch", "onnx", "onnxscript", "onnxruntime"}} & set(sys.modules)
assert not heavy, heavy
from pathlib import Path
from tailcut.manifest import TensorSpec
variant = tailcut.registry.Variant("m", "onnx", "onnxruntime", Path({str(onnx_variant.artifact)!r}), "",
    (TensorSpec(name="x", shape=(-1, 4)),), (TensorSpec(name="y", shape=(-1,)),), "v1")
tailcut.models.runtimes.open_runtime(variant, threads=1)
heavy = {{"torch", "onnx", "onnxscript"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_stub_runtime_answers_row_sums_and_remembers() -> None:
    stub = StubRuntime()
    x = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
    assert stub.run({"x": x}, ["y"])["y"].tolist() == [3.0, 7.0]
    assert stub.rows == [2]
    stub.close()
    with pytest.raises(InferenceError):
        stub.run({"x": x}, ["y"])


def test_faulty_runtime_fails_as_often_as_told() -> None:
    faulty = FaultyRuntime()
    faulty.fail(ValueError("told to"), times=2)
    x = {"x": np.ones((1, 1), np.float32)}
    for _ in range(2):
        with pytest.raises(ValueError, match="told to"):
            faulty.run(x, ["y"])
    assert faulty.run(x, ["y"])["y"].tolist() == [1.0]


def test_faulty_runtime_hangs_until_released() -> None:
    faulty = FaultyRuntime()
    faulty.hang()
    answers: list[float] = []
    thread = threading.Thread(target=lambda: answers.extend(faulty.run({"x": np.ones((1, 1))}, ["y"])["y"].tolist()))
    thread.start()
    assert faulty.entered.wait(10)
    assert not answers
    faulty.release()
    thread.join(10)
    assert answers == [1.0]


def test_faulty_runtime_gives_up_by_itself() -> None:
    faulty = FaultyRuntime(give_up_s=0.01)
    faulty.hang()
    with pytest.raises(InferenceError, match="was not released"):
        faulty.run({"x": np.ones((1, 1))}, ["y"])
