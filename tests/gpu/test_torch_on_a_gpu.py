"""What stand-ins for a GPU cannot show: kernels, launch gaps, CUDA graphs, and variants built and served on one.

Skipped where there is no NVIDIA GPU; which of them were seen to pass on one stands in docs/benchmarks.md (On a GPU).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.gpu_kit import Variant  # noqa: E402
from tests.models import tabular  # noqa: E402

from tailcut.builder.host_capabilities import look  # noqa: E402
from tailcut.manifest import TensorSpec  # noqa: E402
from tailcut.models.runtimes import open_runtime  # noqa: E402
from tailcut.profiler.layers.torch import of_torch  # noqa: E402
from tailcut.system.machine import read_machine  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.quiet,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
    # The compiler's own use of what torch has deprecated.
    pytest.mark.filterwarnings("ignore"),
]

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = TensorSpec(name="numeric", shape=(-1, 6))
KINDS = TensorSpec(name="categorical", datatype="INT64", shape=(-1, 2))
PROBABILITY = TensorSpec(name="probability", shape=(-1,))

APP = """
import torch
from fastapi import FastAPI

app = FastAPI()
model = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192) for _ in range(6))).cuda().eval()
x = torch.randn(2048, 8192, device="cuda")
with torch.inference_mode():
    model(x).sum().item()

@app.post("/predict")
def predict(body: dict) -> dict:
    with torch.inference_mode():
        y = model(x)
    return {"y": y[0, :4].cpu().tolist()}
"""

MANIFEST = """
name = "demo"
python_path = [{root!r}]
[model]
source = "tests.models.tabular:tabular"
inputs = [{{ name = "numeric", shape = [-1, 6] }}, {{ name = "categorical", datatype = "INT64", shape = [-1, 2] }}]
outputs = [{{ name = "probability", shape = [-1] }}]
[holdout]
source = "tests.models.holdouts:holdout"
[quality]
budget = {{ auc = 0.05 }}
[build]
recipes = {recipes}
rounds = 6
round = "200ms"
[batching]
max_rows = 2
"""


def cli(folder: Path, *arguments: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from tailcut.cli.app import main; main()", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip


def by_events(run: Callable[[], Any], runs: int = 20) -> float:
    """Milliseconds a run by the GPU's own clock, back to back, so that nothing waits for a launch."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.inference_mode():
        for _ in range(3):
            run()
        start.record()
        for _ in range(runs):
            run()
        end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / runs


def by_the_clock(run: Callable[[], Any]) -> float:
    """Milliseconds a run, each waited for."""
    took_ms = []
    with torch.inference_mode():
        for _ in range(20):
            began_ns = time.perf_counter_ns()
            run()
            torch.cuda.synchronize()
            took_ms.append((time.perf_counter_ns() - began_ns) / 1e6)
    return float(np.median(took_ms))


def test_the_machine_says_which_gpu_it_has() -> None:
    machine = read_machine()
    assert machine.gpu.startswith(torch.cuda.get_device_name())
    assert machine.driver
    major, minor = torch.cuda.get_device_capability()
    assert machine.capability == f"{major}.{minor}"
    assert look().cuda[0] == torch.cuda.get_device_name()


def test_kernels_gaps_and_memory_are_those_that_the_gpu_tells() -> None:
    layers = (torch.nn.Linear(2048, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 2048))
    model = torch.nn.Sequential(*layers).cuda().eval()
    x = torch.randn(8192, 2048, device="cuda")
    found = of_torch(model, (x,), {}, "mlp")
    used = found.device
    assert used is not None
    assert used.name == torch.cuda.get_device_name()
    assert 3 <= used.kernels <= 9
    assert used.kernel_ms == pytest.approx(by_events(lambda: model(x)), rel=0.2)
    assert used.kernel_ms + used.gap_ms == pytest.approx(by_the_clock(lambda: model(x)), rel=0.2)
    assert sum(one.ms for one in found.operators) == pytest.approx(used.kernel_ms, rel=0.1)
    assert sum(one.ms for one in found.layers) == pytest.approx(used.kernel_ms, rel=0.1)
    assert {one.name for one in found.layers[:2]} == {"0", "2"}
    assert found.operators[0].lever == "quantisation"
    held = sum(one.numel() * one.element_size() for one in (x, *model.parameters()))
    assert held < used.peak_bytes < 8 * held


def test_a_small_model_waits_for_launches_and_its_own_marks_are_no_kernels() -> None:
    class Marked(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(12))

        def forward(self, x: Any) -> Any:
            with torch.profiler.record_function("mine"):
                for layer in self.layers:
                    x = layer(x)
                return x

    found = of_torch(Marked().cuda().eval(), (torch.randn(1, 64, device="cuda"),), {}, "small")
    used = found.device
    assert used is not None
    assert used.gap_ms > used.kernel_ms
    assert 12 <= used.kernels <= 40


def test_what_the_gpu_computes_is_the_models_and_not_whose_line_reads_the_answer(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "bodies.jsonl").write_text('{"n": 1}\n')
    options = ("--rate", "10", "--duration", "6s", "--json", "profile.json")
    done = cli(tmp_path, "profile", "app:app", "--payloads", "bodies.jsonl", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "profile.json").read_text())
    model = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192) for _ in range(6))).cuda().eval()
    x = torch.randn(2048, 8192, device="cuda")
    computed_ms = by_events(lambda: model(x), 5)
    lines = {one["stage"]: one for one in report["budget"]["lines"]}
    assert lines["model"]["p50_ms"] > 0.8 * computed_ms
    assert lines.get("code", {"p50_ms": 0.0})["p50_ms"] < 0.1 * computed_ms
    (layers,) = report["layers"]
    assert layers["device"]["name"] == torch.cuda.get_device_name()
    assert layers["device"]["kernel_ms"] == pytest.approx(computed_ms, rel=0.2)
    assert any("on a GPU ends when the GPU has finished" in note for note in report["notes"])


def test_graphs_answer_as_the_module_does_from_any_thread_and_for_any_number_of_rows(tmp_path: Path) -> None:
    torch.save(tabular.tabular().state_dict(), tmp_path / "m.pt")
    eager = tabular.tabular()
    draw = np.random.default_rng(0)
    inputs = {
        "numeric": draw.normal(size=(50, 6)).astype(np.float32),
        "categorical": draw.integers(0, 10, size=(50, 2)),
    }
    with torch.inference_mode():
        expected = eager(torch.from_numpy(inputs["numeric"]), torch.from_numpy(inputs["categorical"])).numpy()
    settings = {"device": "cuda", "buckets": [1, 2, 4, 8]}
    for added, allowed in (({}, 1e-4), ({"dtype": "bfloat16"}, 0.05), ({"compile": True, "tf32": True}, 0.01)):
        variant = Variant("torch", tmp_path / "m.pt", (NUMBERS, KINDS), (PROBABILITY,), {**settings, **added})
        runtime = open_runtime(variant, threads=1, source=tabular.tabular)

        def ask(start: int, rows: int, runtime: Any = runtime) -> Any:
            part = {name: one[start : start + rows] for name, one in inputs.items()}
            return runtime.run(part, ["probability"])["probability"]

        try:
            for rows in (1, 3, 8, 20):
                with ThreadPoolExecutor(1) as other:  # a thread that the graphs were not captured in
                    found = other.submit(ask, 5, rows).result()
                np.testing.assert_allclose(found, expected[5 : 5 + rows], atol=allowed)
        finally:
            runtime.close()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("built")
    recipes = ["onnx", "bf16", "torch-compile", "onnx-cuda", "fp16", "tensorrt"]
    (folder / "tailcut.toml").write_text(MANIFEST.format(root=str(ROOT), recipes=json.dumps(recipes)))
    done = cli(folder, "build", "--json", "build.json")
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return SimpleNamespace(folder=folder, done=done, report=json.loads((folder / "build.json").read_text()))


def _variants(built: SimpleNamespace) -> dict[str, Any]:
    from tailcut.registry import Registry

    return dict(Registry(built.folder / ".tailcut" / "registry").version("demo").variants)


@pytest.mark.parametrize("name", ["bf16", "torch-compile"])
def test_variants_of_the_module_are_built_measured_and_judged(built: SimpleNamespace, name: str) -> None:
    found = _variants(built)[name]
    evidence = found.evidence.recipe.details
    assert evidence["device"] == torch.cuda.get_device_name()
    assert evidence["graphs"] == [1, 2]
    assert evidence["difference"]["max_abs"] < 0.05
    assert found.evidence.bare_ms[1]
    assert found.evidence.quality.metrics[0].outcome == "pass"


@pytest.mark.parametrize("name", ["onnx-cuda", "fp16"])
def test_variants_of_the_graph_are_built_where_onnxruntime_is_the_one_for_gpus(
    built: SimpleNamespace, name: str
) -> None:
    if "onnxruntime-gpu" not in look().packages:
        pytest.skip("onnxruntime-gpu is not installed")
    evidence = _variants(built)[name].evidence.recipe.details
    assert evidence["device"] == torch.cuda.get_device_name()
    assert evidence["graphs"] == [1, 2]
    assert evidence["difference"]["max_abs"] < 0.05


def test_a_variant_on_a_gpu_has_layers_of_its_own_precision(built: SimpleNamespace) -> None:
    options = ("--rate", "20", "--duration", "3s", "--json", "p.json", "--set", "serve.variant=bf16")
    asking = ("--payloads", _bodies(built.folder), "--path", "/v2/models/demo/infer")
    done = cli(built.folder, "profile", ".", *options, *asking)
    assert done.returncode == 0, done.stdout + done.stderr
    (layers,) = json.loads((built.folder / "p.json").read_text())["layers"]
    assert layers["device"]["name"] == torch.cuda.get_device_name()
    assert any("CUDA graph" in note for note in layers["notes"])
    assert "bfloat16" in layers["inputs"]


def _bodies(folder: Path) -> str:
    body = {
        "inputs": [
            {"name": "numeric", "shape": [1, 6], "datatype": "FP32", "data": [0.1] * 6},
            {"name": "categorical", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]},
        ]
    }
    (folder / "bodies.jsonl").write_text(json.dumps(body) + "\n")
    return "bodies.jsonl"


def test_memory_streams_and_graphs_of_the_device_by_cuda_bindings() -> None:
    pytest.importorskip("cuda.bindings.runtime")
    from tailcut.models.runtimes._device import Device, load_cudart

    device = Device(load_cudart())
    try:
        assert device.describe()["gpu"] == torch.cuda.get_device_name()
        given = device.pinned((4, 8), np.dtype(np.float32))
        taken = device.pinned((4, 8), np.dtype(np.float32))
        address = device.reserve(given.nbytes)
        given[:] = np.arange(32, dtype=np.float32).reshape(4, 8)

        def there_and_back() -> None:
            device.upload(address, given)
            device.download(taken, address)

        replay = device.capture(there_and_back)
        for added in (0, 1):
            given += added
            replay()
            device.wait()
            np.testing.assert_array_equal(taken, given)
    finally:
        device.close()
