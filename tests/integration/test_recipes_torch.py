"""Recipe int8-qat trained and exported for real; the torch runtime with buckets, bfloat16 and a compiler on the CPU."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from tests import gpu_kit, recipe_kit
from tests.models import qat as model

from tailcut.builder.host_capabilities import look
from tailcut.builder.recipes import fp16, int8_qat, onnx_export, recipe
from tailcut.builder.records import Made
from tailcut.errors import ArtifactError, BuildError, InferenceError
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes import open_runtime
from tailcut.models.runtimes.compiled import CudaGraphs, PlacedTorch
from tailcut.models.runtimes.onnxruntime import session_options

# The exporter's and the compiler's own use of what torch has deprecated.
pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

IMAGE, LOGITS = TensorSpec(name="image", shape=(-1, 1, 6, 6)), TensorSpec(name="logits", shape=(-1, 4))
CNN: dict[str, Any] = {
    "name": "cnn",
    "model": {
        "source": "tests.models.qat:cnn",
        "inputs": [{"name": "image", "shape": [-1, 1, 6, 6]}],
        "outputs": [{"name": "logits", "shape": [-1, 4]}],
    },
    "build": {"train": "tests.models.qat:fine_tune"},
}


@pytest.fixture(scope="module")
def cnn() -> model.Cnn:
    return model.cnn()


@pytest.fixture
def base(cnn: model.Cnn, tmp_path: Path) -> Made:
    return recipe_kit.torch_base(tmp_path, cnn)


def qat_work(folder: Path, base: Made, train: str = "fine_tune") -> recipe_kit.Work:
    values = {**CNN, "build": {"train": f"tests.models.qat:{train}"}}
    return recipe_kit.work(folder, values, base, model.holdout(), "int8-qat.onnx")


def accuracy(work: recipe_kit.Work) -> float:
    unseen = model.holdout(seed=5)
    runtime = work.open_file(work.path, "onnxruntime")
    found = runtime.run(unseen.inputs, ["logits"])["logits"]
    return float((found.argmax(axis=1) == unseen.labels).mean())


# -- int8-qat --------------------------------------------------------------------------------------------------------


def test_the_recipe_gives_an_integer_graph_that_answers_as_the_trained_module(base: Made, tmp_path: Path) -> None:
    work = qat_work(tmp_path, base)
    found = recipe("int8-qat").make(work).found
    assert found["layers"] == ["conv", "deep", "head"]
    assert found["layers_quantised"] == 3
    assert found["weight_bits"] == (7 if look().saturates else 8)
    assert found["parity"]["mean_abs"] <= found["parity"]["limit"]
    assert found["operators"]["integer"] == 3
    assert found["operators"]["float"] == 0
    kinds = [node.op_type for node in onnx.load(str(work.path)).graph.node]
    assert "BatchNormalization" not in kinds
    assert accuracy(work) > 0.8


def test_training_recovers_what_rounding_after_training_loses(base: Made, tmp_path: Path) -> None:
    """Two bits for weights spoil this small model as eight spoil a delicate one."""
    work = qat_work(tmp_path, base)
    untouched = int8_qat.train_and_export(work, lambda module: None, 2)
    lost = accuracy(work)
    trained = int8_qat.train_and_export(work, model.fine_tune, 2)
    assert trained["before_training"] == untouched["before_training"]
    assert accuracy(work) > lost + 0.03


def test_an_export_whose_products_saturate_is_refused(base: Made, tmp_path: Path) -> None:
    """Eight bits for weights: on a processor where sums of their products do not saturate, nothing is wrong with it."""
    work = qat_work(tmp_path, base)
    if not look().saturates:
        parity = int8_qat.train_and_export(work, lambda module: None, 8)["parity"]
        assert parity["mean_abs"] <= parity["limit"]
        return
    with pytest.raises(BuildError, match="differs from the trained module"):
        int8_qat.train_and_export(work, lambda module: None, 8)


@pytest.mark.parametrize(
    ("train", "said"),
    [("explode", "raised RuntimeError"), ("give_back", "returned a "), ("spoil", "NaN or infinity")],
)
def test_a_training_function_that_fails_is_named(base: Made, tmp_path: Path, train: str, said: str) -> None:
    with pytest.raises(BuildError, match=said) as refused:
        recipe("int8-qat").make(qat_work(tmp_path, base, train))
    assert refused.value.hint
    assert "s3://secret" not in refused.value.message
    assert not (tmp_path / "int8-qat.onnx").exists()


# -- fp16 ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder in ONNX."""
    pytest.importorskip("transformers")
    from tests.models import encoder

    folder = tmp_path_factory.mktemp("transformer")
    described = recipe_kit.manifest(folder, recipe_kit.ENCODER).deployment.model
    path = folder / "m.onnx"
    onnx_export.export(encoder.encoder(), encoder.holdout(), described.inputs, described.outputs, path)
    return path


@pytest.mark.parametrize("kept", [(), fp16.GUARDED])
def test_a_transformer_in_half_precision_stays_valid_and_close(
    transformer: Path, tmp_path: Path, kept: tuple[str, ...]
) -> None:
    """With what stays in fp32 for TensorRT too; onnxruntime's own fusions come after."""
    from tests.models import encoder

    fp16.write(transformer, tmp_path / "h.onnx", kept)
    found = []
    for path in (transformer, tmp_path / "h.onnx"):
        session = onnxruntime.InferenceSession(str(path), session_options(1))
        found.append(session.run(["embedding"], encoder.holdout().take(8))[0])
    counts = fp16.operators(tmp_path / "h.onnx")
    assert counts["fp16_weights"] > 10
    assert found[1].dtype == np.float32
    assert 0 < np.abs(found[0] - found[1]).max() < 0.02


# -- the torch runtime with settings ---------------------------------------------------------------------------------


def variant(base: Made, **settings: Any) -> gpu_kit.Variant:
    return gpu_kit.Variant("torch", Path(base.path), (IMAGE,), (LOGITS,), settings)


def images(rows: int, seed: int = 7) -> dict[str, np.ndarray]:
    return {"image": model.images(rows, seed)[0]}


def expected(cnn: model.Cnn, rows: dict[str, np.ndarray]) -> np.ndarray:
    with torch.no_grad():
        return cnn(torch.from_numpy(rows["image"])).numpy()


def test_each_batch_is_filled_up_to_its_graph_and_answers_are_copies(cnn: model.Cnn, base: Made) -> None:
    graphs = gpu_kit.Graphs()
    runtime = PlacedTorch(variant(base, buckets=[1, 2, 4]), threads=1, source=model.Cnn, graphs=graphs)
    assert graphs.captures == 3
    for count, replays in ((1, 1), (3, 1), (4, 1), (7, 2)):
        before, rows = graphs.replays, images(count, seed=count)
        np.testing.assert_allclose(runtime.run(rows, ["logits"])["logits"], expected(cnn, rows), atol=1e-4)
        assert graphs.replays == before + replays
    first = runtime.run(images(2, seed=1), ["logits"])["logits"]
    kept = first.copy()
    runtime.run(images(2, seed=2), ["logits"])
    np.testing.assert_array_equal(first, kept)
    with pytest.raises(InferenceError, match="prepared for"):
        runtime.run({"image": np.zeros((2, 1, 5, 6), np.float32)}, ["logits"])
    runtime.close()


def test_bfloat16_takes_and_gives_the_manifests_datatypes(cnn: model.Cnn, base: Made) -> None:
    rows = images(5)
    for settings in ({}, {"buckets": [1, 4]}):
        runtime = open_runtime(variant(base, dtype="bfloat16", **settings), threads=1, source=model.Cnn)
        found = runtime.run(rows, ["logits"])["logits"]
        assert found.dtype == np.float32
        error = np.abs(found - expected(cnn, rows)).max()
        assert 1e-6 < error < 0.3


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.whole)])
def test_compiled_for_its_buckets_it_answers_as_before_and_never_compiles_again(
    cnn: model.Cnn, base: Made, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.utils import counters

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    torch.compiler.reset()

    counters.clear()
    runtime = PlacedTorch(
        variant(base, compile=True, buckets=[1, 4]), threads=1, source=model.Cnn, graphs=gpu_kit.Graphs()
    )
    compiled = counters["stats"]["unique_graphs"]
    assert compiled == 2
    for count in (1, 2, 3, 4, 5):
        rows = images(count, seed=count)
        np.testing.assert_allclose(runtime.run(rows, ["logits"])["logits"], expected(cnn, rows), atol=1e-4)
    assert counters["stats"]["unique_graphs"] == compiled


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"device": "cuda"}, "finds no CUDA device here"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"dtype": "int4"}, "dtype is 'int4'"),
        ({"compile": True}, "compile needs buckets"),
        ({"compile": True, "buckets": [1]}, "graphs cannot be captured"),
        ({"device": "cpu", "graphs": True}, "no setting 'graphs'"),
        ({"dtype": 3}, "dtype"),
    ],
)
def test_settings_that_make_no_sense_are_refused(base: Made, settings: dict[str, Any], said: str) -> None:
    if settings.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(ArtifactError, match=said) as refused:
        open_runtime(variant(base, **settings), threads=1, source=model.Cnn)
    assert refused.value.hint


def test_a_module_that_refuses_zeros_is_prepared_by_its_first_rows(cnn: model.Cnn, base: Made) -> None:
    class Picky(model.Cnn):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            if not image.any():
                raise ValueError("an empty image")
            return super().forward(image)

    graphs = gpu_kit.Graphs()
    runtime = PlacedTorch(variant(base, buckets=[1, 4]), threads=1, source=Picky, graphs=graphs)
    assert graphs.captures == 1, "tried, once"
    for count, captures in ((3, 2), (1, 3), (4, 3), (6, 3)):
        rows = images(count, seed=count)
        np.testing.assert_allclose(runtime.run(rows, ["logits"])["logits"], expected(cnn, rows), atol=1e-4)
        assert graphs.captures == captures
    with pytest.raises(InferenceError, match="an empty image"):
        PlacedTorch(variant(base, buckets=[1]), threads=1, source=Picky).run(
            {"image": np.zeros((1, *images(1)["image"].shape[1:]), np.float32)}, ["logits"]
        )


def test_a_module_that_breaks_in_a_bucket_is_refused_at_opening(base: Made) -> None:
    class Picky(model.Cnn):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            if image.shape[0] > 2:
                raise RuntimeError("out of memory")
            return super().forward(image)

    with pytest.raises(
        ArtifactError, match=r"cannot be prepared for its buckets \[1, 4\]: RuntimeError: out of memory"
    ):
        open_runtime(variant(base, buckets=[1, 4]), threads=1, source=Picky)


class FakeCuda:
    """Notes the order of what capturing does."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.CUDAGraph = lambda: self
        self.cuda = self

    def replay(self) -> None:
        self.notes.append("replay")

    def Stream(self) -> FakeCuda:
        return self

    def current_stream(self) -> FakeCuda:
        return self

    def wait_stream(self, other: Any) -> None:
        self.notes.append("wait")

    def stream(self, side: Any) -> Any:
        return self

    def graph(self, graph: Any, capture_error_mode: str) -> Any:
        self.notes.append(capture_error_mode)
        return self

    def __enter__(self) -> None:
        self.notes.append("(")

    def __exit__(self, *_: object) -> None:
        self.notes.append(")")


def test_cuda_graphs_are_captured_after_a_warm_up_on_a_side_stream() -> None:
    fake = FakeCuda()

    def call() -> tuple[int]:
        fake.notes.append("call")
        return (3,)

    outputs, replay = CudaGraphs(fake).capture(call)
    replay()
    assert outputs == (3,)
    warm = ["wait", "(", "call", "call", "call", ")", "wait"]
    assert fake.notes == [*warm, "thread_local", "(", "call", ")", "replay"]
