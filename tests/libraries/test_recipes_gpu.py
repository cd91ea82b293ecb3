"""GPU recipes and runtimes without a GPU: when they apply, buckets, padding, settings and messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from tests import gpu_kit, recipe_kit
from tests.models import graphs
from tests.models.picky import PICKY

from tailcut.builder import Holdout
from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.plan import applicable
from tailcut.builder.recipes import BUILT_IN, cuda, fp16, recipe, tensorrt
from tailcut.builder.recipes.base import Subject
from tailcut.builder.recipes.cuda import NO_DEVICE
from tailcut.builder.records import Made
from tailcut.errors import ArtifactError, BuildError, InferenceError, MissingExtra
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes import bucketed, open_runtime
from tailcut.models.runtimes._device import CudaError, Device
from tailcut.models.runtimes.cuda import OnnxCudaRuntime, Place
from tailcut.models.runtimes.tensorrt import TensorRTRuntime

GPU_RECIPES = ("onnx-cuda", "fp16", "bf16", "torch-compile", "tensorrt")
X, Y = TensorSpec(name="x", shape=(-1, 4)), TensorSpec(name="y")
LINEAR: dict[str, Any] = {
    "name": "linear",
    "model": {"source": "m.onnx", "inputs": [{"name": "x", "shape": [-1, 4]}], "outputs": [{"name": "y"}]},
    "batching": {"max_rows": 8},
}
PACKAGES = {
    name: "1" for name in ("torch", "onnx", "onnxruntime", "onnxruntime-gpu", "onnxscript", "tensorrt", "cuda-bindings")
}
CPU_PLACE = Place("CPUExecutionProvider", "cpu")


def here(*, gpu: bool = True, without: str = "", **packages: str) -> HostCapabilities:
    kept = {name: version for name, version in {**PACKAGES, **packages}.items() if name != without}
    return HostCapabilities(machine="x86_64", flags=(), cores=2, cuda=(gpu_kit.GPU,) if gpu else (), packages=kept)


def subject(tmp_path: Path, kind: str = "torch", trees: bool = False, **model: Any) -> Subject:
    values = {**LINEAR, "model": {**LINEAR["model"], **model}}
    return Subject(kind=kind, trees=trees, deployment=recipe_kit.manifest(tmp_path, values).deployment)


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)


# -- when they apply -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_without_a_device_every_gpu_recipe_is_listed_and_says_so(name: str, tmp_path: Path) -> None:
    for kind in ("", "torch", "onnx", "sklearn"):
        assert recipe(name).why_not(subject(tmp_path, kind), here(gpu=False)) == NO_DEVICE
    listed = {each.name: each.why_not for each in applicable(subject(tmp_path), here(gpu=False))}
    assert listed[name] == "not here: no CUDA device"


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("onnx-cuda", "onnxruntime-gpu", "gpu"),
        ("fp16", "onnxruntime-gpu", "gpu"),
        ("bf16", "torch", "torch"),
        ("torch-compile", "torch", "torch"),
        ("tensorrt", "tensorrt", "tensorrt"),
        ("tensorrt", "cuda-bindings", "tensorrt"),
        ("fp16", "onnx", "build"),
        ("tensorrt", "onnx", "build"),
    ],
)
def test_with_a_device_the_missing_extra_is_named(name: str, package: str, extra: str, tmp_path: Path) -> None:
    assert recipe(name).why_not(subject(tmp_path), here()) == ""
    assert recipe(name).why_not(subject(tmp_path), here(without=package)) == (
        f"needs {package}: pip install 'tailcut[{extra}]'"
    )


def test_trees_other_sources_cpu_torch_and_free_shapes_are_refused_with_the_reason(tmp_path: Path) -> None:
    assert "row by row" in recipe("fp16").why_not(subject(tmp_path, "lightgbm", trees=True), here())
    assert "the source is onnx" in recipe("bf16").why_not(subject(tmp_path, "onnx"), here())
    assert "the CPU build" in recipe("bf16").why_not(subject(tmp_path), here(torch="2.13.0+cpu"))
    free = subject(tmp_path, inputs=[{"name": "ids", "shape": [-1, -1], "datatype": "INT64"}])
    assert "'ids' has a free dimension" in recipe("torch-compile").why_not(free, here())
    assert recipe("bf16").why_not(free, here()) == ""
    assert cuda.sizes(free.deployment) == ()


def test_each_recipe_stands_after_those_that_it_is_made_from() -> None:
    names = [each.name for each in BUILT_IN]
    for place, each in enumerate(BUILT_IN):
        made_here = [base for base in each.base if base in names]
        assert all(names.index(base) < place for base in made_here)
    assert set(GPU_RECIPES) <= set(names)


# -- buckets ---------------------------------------------------------------------------------------------------------


@given(st.integers(1, 5000), st.integers(2, 10))
def test_buckets_ascend_from_one_row_to_the_largest_batch_and_are_few(max_rows: int, most: int) -> None:
    found = bucketed.sizes(max_rows, most)
    assert found[0] == 1
    assert found[-1] == max_rows
    assert list(found) == sorted(set(found))
    assert len(found) <= most


@given(st.integers(1, 300), st.sets(st.integers(1, 40), min_size=1, max_size=8))
def test_parts_hold_every_row_once_in_order_each_in_the_smallest_bucket(count: int, sizes: set[int]) -> None:
    ascending = sorted(sizes)
    found = bucketed.parts(count, ascending)
    assert [row for part in found for row in range(part.start, part.start + part.rows)] == list(range(count))
    for part in found:
        assert part.bucket == next(size for size in ascending if size >= part.rows)


# -- fp16, converted and run for real on the CPU ---------------------------------------------------------------------


def fp16_of(tmp_path: Path, base: Path) -> dict[str, Any]:
    def answers(file: Path) -> np.ndarray:
        # Computes half precision as a GPU does; onnxruntime on the CPU would do it in fp32.
        with np.errstate(all="ignore"):
            return np.asarray(ReferenceEvaluator(str(file)).run(["y"], {"x": rows(64)})[0])

    return fp16.convert(base, tmp_path / "fp16.onnx", answers(base), answers)


def test_fp16_halves_the_weights_keeps_inputs_and_outputs_and_records_the_tolerance(tmp_path: Path) -> None:
    found = fp16_of(tmp_path, graphs.linear(tmp_path / "m.onnx", hidden=32))
    model = onnx.load(str(tmp_path / "fp16.onnx"))
    assert found["operators"]["fp16_weights"] == 2
    assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert model.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert 0 < found["difference"]["max_abs"] <= found["difference"]["tolerance"]
    assert found["kept_fp32"] == []


def squared(path: Path, scale: float) -> Path:
    """y = sqrt(mean((scale * x)^2)) / scale: the square leaves half precision's range, the answer does not."""
    helper = onnx.helper
    constants = {"s": scale, "two": 2.0}
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "s"], ["big"]),
            helper.make_node("Pow", ["big", "two"], ["square"]),
            helper.make_node("ReduceMean", ["square", "axes"], ["mean"], keepdims=0),
            helper.make_node("Sqrt", ["mean"], ["root"]),
            helper.make_node("Div", ["root", "s"], ["y"]),
        ],
        "squared",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n"])],
        [
            *(onnx.numpy_helper.from_array(np.array(value, np.float32), name) for name, value in constants.items()),
            onnx.numpy_helper.from_array(np.array([1], np.int64), "axes"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def test_fp16_keeps_powers_and_sums_in_fp32_where_half_precision_overflows(tmp_path: Path) -> None:
    found = fp16_of(tmp_path, squared(tmp_path / "m.onnx", 250.0))
    assert found["candidates"][0]["max_abs"] == float("inf")
    assert "Pow" in found["kept_fp32"]
    assert found["difference"]["max_abs"] < found["difference"]["tolerance"]


def test_fp16_that_cannot_stay_finite_is_refused_with_the_way_out(tmp_path: Path) -> None:
    base = graphs.linear(tmp_path / "m.onnx")
    with pytest.raises(BuildError, match="NaN or infinite") as refused:
        fp16.convert(base, tmp_path / "o.onnx", np.zeros(3, np.float32), lambda file: np.full(3, np.nan, np.float32))
    assert "bf16" in refused.value.hint


# -- onnxruntime with buckets, its binding run for real on the CPU ---------------------------------------------------


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    return graphs.linear(tmp_path / "m.onnx", hidden=8)


def on_cpu(path: Path, sizes: list[int]) -> OnnxCudaRuntime:
    variant = gpu_kit.Variant("onnxruntime", path, (X,), (Y,), {"provider": "cuda", "buckets": sizes})
    return OnnxCudaRuntime(variant, threads=1, place=CPU_PLACE)


def test_batches_of_every_size_give_the_plain_runtimes_answers(linear: Path) -> None:
    plain = open_runtime(gpu_kit.Variant("onnxruntime", linear, (X,), (Y,)), threads=1)
    runtime = on_cpu(linear, [1, 2, 4])
    for count in (1, 2, 3, 4, 5, 11):
        values = {"x": rows(count, seed=count)}
        np.testing.assert_allclose(runtime.run(values, ["y"])["y"], plain.run(values, ["y"])["y"], rtol=1e-5)
    first = runtime.run({"x": rows(2, seed=1)}, ["y"])["y"]
    kept = first.copy()
    runtime.run({"x": rows(2, seed=2)}, ["y"])
    np.testing.assert_array_equal(first, kept)  # an answer is not overwritten by the next batch
    with pytest.raises(InferenceError, match=r"x FP32 \[2, 3\]"):
        runtime.run({"x": np.zeros((2, 3), np.float32)}, ["y"])
    np.testing.assert_array_equal(runtime.run({"x": rows(2, seed=1)}, ["y"])["y"], kept)
    runtime.close()
    runtime.close()


def test_a_model_that_refuses_zeros_is_prepared_by_its_first_rows(tmp_path: Path) -> None:
    years = PICKY["an index before the first"]
    tensor = TensorSpec(name="year", datatype="INT64")
    settings = {"provider": "cuda", "buckets": [1, 4]}
    variant = gpu_kit.Variant("onnxruntime", years.save(tmp_path / "years.onnx"), (tensor,), (Y,), settings)
    runtime = OnnxCudaRuntime(variant, threads=1, place=CPU_PLACE)
    for count in (1, 3, 4, 6):
        values = years.rows(count)
        np.testing.assert_array_equal(runtime.run(values, ["y"])["y"], years.answer(values))
    with pytest.raises(InferenceError):
        runtime.run({"year": np.zeros(2, np.int64)}, ["y"])
    runtime.close()


def test_the_cuda_variant_on_this_machine_names_what_is_missing(linear: Path) -> None:
    variant = gpu_kit.Variant("onnxruntime", linear, (X,), (Y,), {"provider": "cuda"})
    with pytest.raises(MissingExtra, match="is the CPU build") as refused:
        open_runtime(variant, threads=1)
    assert "tailcut[gpu]" in refused.value.hint


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"provider": "rocm"}, "provider is 'rocm'"),
        ({"provider": "cuda", "bucket": [1]}, "no setting 'bucket'"),
        ({"provider": "cuda", "buckets": [4, 2]}, "ascending"),
        ({"provider": "cuda", "buckets": ["a"]}, "ascending"),
    ],
)
def test_settings_that_make_no_sense_are_refused(linear: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ArtifactError, match=said):
        open_runtime(gpu_kit.Variant("onnxruntime", linear, (X,), (Y,), settings), threads=1)


def test_text_and_free_shapes_are_no_buckets(linear: Path) -> None:
    text = gpu_kit.Variant("onnxruntime", linear, (TensorSpec(name="t", datatype="BYTES"),), (Y,), {"provider": "cuda"})
    with pytest.raises(ArtifactError, match="BYTES"):
        open_runtime(text, threads=1)
    free = (TensorSpec(name="x", shape=(-1, -1)),)
    with pytest.raises(ArtifactError, match="free dimensions"):
        OnnxCudaRuntime(
            gpu_kit.Variant("onnxruntime", linear, free, (Y,), {"provider": "cuda", "buckets": [1]}),
            threads=1,
            place=CPU_PLACE,
        )


# -- TensorRT: memory and graphs of the fake are real memory ---------------------------------------------------------


def summed(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"y": given["x"].sum(axis=1)}


class Bench:
    """An engine in a file, and the fakes that open it."""

    def __init__(self, folder: Path, inputs: tuple[TensorSpec, ...] = (X,), sizes: tuple[int, ...] = (1, 4)) -> None:
        self.cudart = gpu_kit.Cudart()
        self.module = gpu_kit.TensorRT(self.cudart, inputs, (Y,), summed)
        self.path = folder / "v.engine"
        seen = {"x": np.zeros((9, 6 if inputs[0].shape[1] == -1 else 4), np.float32)}
        profiles = [tensorrt.shapes(inputs, size, seen) for size in sizes]
        graph = (folder / "graph.onnx", b"graph")
        self.path.write_bytes(tensorrt.build(self.module, graph[1], profiles, folder / "t" / "x.timings"))
        self.key = {"tensorrt": "11.4.1", "gpu": gpu_kit.GPU, "capability": "9.0"}
        self.variant = gpu_kit.Variant("tensorrt", self.path, inputs, (Y,), {"buckets": list(sizes), "key": self.key})

    def open(self) -> TensorRTRuntime:
        return TensorRTRuntime(self.variant, tensorrt=self.module, cudart=self.cudart)


def test_tensorrt_replays_one_graph_per_bucket_and_pads_with_real_rows(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    runtime = bench.open()
    warmed = len(bench.module.engine.executed)  # type: ignore[union-attr]
    assert bench.cudart.launches == 0
    for count in (1, 3, 4, 6):
        values = {"x": rows(count, seed=count)}
        np.testing.assert_allclose(runtime.run(values, ["y"])["y"], values["x"].sum(axis=1), rtol=1e-5)
    assert bench.cudart.launches == 5  # one each, and 6 rows are 4 and 2
    executed = bench.module.engine.executed[warmed:]  # type: ignore[union-attr]
    assert [each["x"][0] for each in executed] == [1, 4, 4, 4, 4]


def test_tensorrt_gives_everything_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    runtime = bench.open()
    assert bench.cudart.alive == {"streams": 1, "graphs": 0, "executables": 2}
    runtime.close()
    runtime.close()
    assert bench.cudart.alive == {"streams": 0, "graphs": 0, "executables": 0}
    assert not bench.cudart.memory


def test_tensorrt_takes_free_shapes_up_to_what_the_engine_was_built_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, (TensorSpec(name="x", shape=(-1, -1)),))
    runtime = bench.open()
    for width in (1, 3, 6):
        values = {"x": np.arange(3 * width, dtype=np.float32).reshape(3, width)}
        np.testing.assert_allclose(runtime.run(values, ["y"])["y"], values["x"].sum(axis=1))
    assert bench.cudart.launches == 0  # a graph is of one shape
    with pytest.raises(InferenceError, match=r"is \[4, 7\], the engine was built for up to \[4, 6\]"):
        runtime.run({"x": np.zeros((3, 7), np.float32)}, ["y"])


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("tensorrt", "10.9.0", "tensorrt 10.9.0, but here it is 11.4.1"),
        ("gpu", "Tesla T4", "Tesla T4"),
        ("capability", "7.5", "capability 7.5, but here it is 9.0"),
    ],
)
def test_an_engine_of_another_machine_is_not_opened(tmp_path: Path, name: str, value: str, said: str) -> None:
    bench = Bench(tmp_path)
    bench.key[name] = value
    with pytest.raises(ArtifactError, match=said) as refused:
        bench.open()
    assert "not portable" in refused.value.hint
    assert not bench.cudart.memory
    assert bench.cudart.alive["streams"] == 0


def test_errors_of_cuda_and_tensorrt_are_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    runtime = bench.open()
    bench.cudart.failing["cudaGraphLaunch"] = 700
    with pytest.raises(InferenceError, match="cudaGraphLaunch failed: 700"):
        runtime.run({"x": rows(1)}, ["y"])
    bench.cudart.failing = {"cudaStreamCreate": 100}
    with pytest.raises(ArtifactError, match="no CUDA device can be used"):
        bench.open()
    bench.cudart.failing = {"cudaGraphInstantiate": 2}
    with pytest.raises(ArtifactError, match="cannot be prepared for batches of 1: cudaGraphInstantiate"):
        bench.open()
    bench.cudart.failing = {}
    bench.path.write_bytes(b"\0 no engine")
    with pytest.raises(ArtifactError, match="reads no engine"):
        bench.open()


def test_a_capture_that_fails_ends_so_that_the_stream_can_be_used_again(tmp_path: Path) -> None:
    cudart = gpu_kit.Cudart()
    device = Device(cudart)

    def work() -> None:
        raise CudaError("refused")

    with pytest.raises(CudaError, match="refused"):
        device.capture(work)
    assert cudart.recording is None


def test_the_builder_names_the_operator_and_the_reason(tmp_path: Path) -> None:
    module = gpu_kit.TensorRT(gpu_kit.Cudart(), (X,), (Y,), summed)
    profiles = [tensorrt.shapes((X,), 2, {"x": rows(3)})]
    module.refuses = "NonZero"
    with pytest.raises(BuildError, match=r"operator NonZero \(node 'node_3'\): it is not supported"):
        tensorrt.build(module, b"graph", profiles, tmp_path / "a.timings")
    module.refuses, module.builds = "", False
    with pytest.raises(BuildError, match="no kernel for node_5"):
        tensorrt.build(module, b"graph", profiles, tmp_path / "a.timings")
    assert not (tmp_path / "a.timings").exists()


def test_timings_are_kept_from_build_to_build_for_this_gpu_and_version_only(tmp_path: Path) -> None:
    module = gpu_kit.TensorRT(gpu_kit.Cudart(), (X,), (Y,), summed)
    profiles = [tensorrt.shapes((X,), 2, {"x": rows(3)})]
    key = {"tensorrt": "11.4.1", "gpu": gpu_kit.GPU, "capability": "9.0", "cuda": "13.1", "driver": "580.1"}
    timings = tensorrt.timing_file(tmp_path, key)
    for _ in range(2):
        tensorrt.build(module, b"graph", profiles, timings)
    assert module.cache_given == [b"", b"timings+"]
    assert tensorrt.timing_file(tmp_path, {**key, "driver": "581.0"}) != timings


def test_a_profile_is_exact_in_rows_and_free_where_the_manifest_is() -> None:
    ids = TensorSpec(name="ids", shape=(-1, -1), datatype="INT64")
    assert tensorrt.shapes((ids, X), 4, {"ids": np.zeros((9, 128)), "x": rows(9)}) == {
        "ids": ((4, 1), (4, 64), (4, 128)),
        "x": ((4, 4), (4, 4), (4, 4)),
    }


def test_the_recipe_builds_half_precision_and_fp32_where_that_is_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = graphs.linear(tmp_path / "m.onnx", hidden=8)
    made = Made(name="onnx", runtime="onnxruntime", path=str(base))
    cudart = gpu_kit.Cudart()
    halved: list[bool] = []

    def function(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        halved.append(module.parsed[-1] != base.read_bytes())
        return {"y": np.full(len(given["x"]), np.nan if halved[-1] else 0.5, np.float32)}

    module = gpu_kit.TensorRT(cudart, (X,), (Y,), function)
    for place in ("tailcut.builder.recipes.tensorrt", "tailcut.models.runtimes.tensorrt"):
        monkeypatch.setattr(f"{place}.load_tensorrt", lambda: module)
        monkeypatch.setattr(f"{place}.load_cudart", lambda: cudart)
    work = recipe_kit.work(tmp_path, LINEAR, made, Holdout(inputs={"x": rows(40)}), "tensorrt.engine", here())
    result = recipe("tensorrt").make(work)
    assert set(halved) == {True, False}
    assert [each["precision"] for each in result.found["attempts"]] == ["fp16", "fp32"]
    assert result.found["attempts"][0]["max_abs"] == float("inf")
    assert result.settings["buckets"] == [1, 2, 4, 8]
    assert result.settings["key"]["precision"] == "fp32"
    assert {"onnx_sha256", "tensorrt", "cuda", "driver", "capability"} <= set(result.settings["key"])
    again = work.open_file(work.path, "tensorrt", result.settings)
    assert again.run({"x": rows(3)}, ["y"])["y"].tolist() == [0.5] * 3


def test_without_tensorrt_or_cuda_bindings_the_extra_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with pytest.raises(MissingExtra, match="needs the tensorrt package") as refused:
        open_runtime(bench.variant, threads=1)
    assert "tailcut[tensorrt]" in refused.value.hint
    with pytest.raises(MissingExtra, match="cuda-bindings"):
        TensorRTRuntime(bench.variant, tensorrt=bench.module)


# -- what the recipes do where graphs cannot be captured -------------------------------------------------------------


class Opening:
    """A Work whose runtimes answer, or refuse by their settings."""

    def __init__(self, manifest: Any, refuses: Any) -> None:
        self.manifest, self.refuses, self.path = manifest, refuses, Path("a")
        self.opened: list[dict[str, Any]] = []

    def open_file(self, path: Path, runtime: str, settings: dict[str, Any]) -> dict[str, Any]:
        self.opened.append(settings)
        if self.refuses(settings):
            raise ArtifactError("cannot be captured", hint="h")
        return settings


def test_a_model_that_cannot_be_captured_is_served_without_graphs(tmp_path: Path) -> None:
    manifest = recipe_kit.manifest(tmp_path, LINEAR)
    work = Opening(manifest, lambda settings: "buckets" in settings)
    settings, _, evidence = cuda.with_graphs(work, "torch", {"device": "cuda"}, lambda runtime: rows(1))  # type: ignore[arg-type]
    assert settings == {"device": "cuda"}
    assert evidence == {"graphs": [], "why_no_graphs": "cannot be captured"}
    with pytest.raises(BuildError, match="cannot be captured"):
        cuda.with_graphs(Opening(manifest, lambda settings: True), "torch", {}, lambda runtime: rows(1))  # type: ignore[arg-type]
    work = Opening(manifest, lambda settings: False)
    settings, _, evidence = cuda.with_graphs(work, "torch", {}, lambda runtime: rows(1))  # type: ignore[arg-type]
    assert settings == {"buckets": [1, 2, 4, 8]}
    assert evidence == {"graphs": [1, 2, 4, 8]}
