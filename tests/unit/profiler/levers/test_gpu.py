"""Pilots with a model on a GPU, as far as stand-ins show it; tests/gpu has the real thing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import msgspec
import pytest
from tests.gpu_kit import Variant
from tests.unit.profiler.levers.test_levers import advice, pilot

from tailcut.errors import ArtifactError, ProfileError
from tailcut.manifest import TensorSpec
from tailcut.profiler.attribution.layers import ModelLayers, device_use
from tailcut.profiler.hooks import models
from tailcut.profiler.layers import child
from tailcut.profiler.layers import onnx as layers_onnx
from tailcut.profiler.layers import torch as layers_torch
from tailcut.profiler.levers.known import know
from tailcut.profiler.levers.priors import Prior
from tailcut.profiler.recording.background_calls import background_calls
from tailcut.profiler.recording.captured import captured
from tailcut.profiler.recording.model_libraries import libraries
from tailcut.profiler.recording.tracing import current, open_root, tracer
from tailcut.profiler.records import TORCH_ON_GPU, Recording, Stage

_BUSY_S = 0.02


class Cuda:
    """``torch.cuda`` with a stream per device: what was launched is done a while later, and none may be waited for that
    is being captured."""

    def __init__(self) -> None:
        self.capturing = False
        self.current = "cuda:0"
        self.done_s: dict[str, float] = {}

    def is_initialized(self) -> bool:
        return True

    @contextmanager
    def device(self, which: str) -> Iterator[None]:
        before, self.current = self.current, which
        yield
        self.current = before

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def current_stream(self) -> SimpleNamespace:
        assert not self.capturing
        done_s = self.done_s.get(self.current, 0.0)

        def synchronize() -> None:
            time.sleep(max(done_s - time.monotonic(), 0.0))  # takes time: a kernel on the GPU

        return SimpleNamespace(synchronize=synchronize)


class Module:
    """As much of torch's as the hook knows."""

    device = "cuda:0"

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda

    def tensor(self) -> SimpleNamespace:
        return SimpleNamespace(is_cuda=self.device != "cpu", device=self.device)

    def parameters(self) -> Iterator[Any]:
        yield self.tensor()

    def buffers(self) -> Iterator[Any]:
        yield from ()

    def __call__(self, x: Any) -> Any:
        self.cuda.done_s[self.device] = time.monotonic() + _BUSY_S
        return x + 1


class OnGpu(Module):
    """A model whose weights are there."""


class OnAnother(Module):
    """One whose weights are on a GPU that is not the thread's own."""

    device = "cuda:1"


class OfBuffers(Module):
    """One that keeps its weights as something else than parameters."""

    def parameters(self) -> Iterator[Any]:
        yield from ()

    def buffers(self) -> Iterator[Any]:
        yield self.tensor()


class Odd(Module):
    """One that has another thing under a name of torch's."""

    parameters = None  # type: ignore[assignment]


class OnCpu(Module):
    """One that is on the processor, beside it."""

    device = "cpu"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    found = Cuda()
    monkeypatch.setitem(sys.modules, "torch.cuda", found)
    monkeypatch.setattr(Module, "__call__", Module.__call__)
    monkeypatch.setattr(captured, "torch", lambda *_: None)
    monkeypatch.setattr(libraries, "_found", {})
    models._hook_torch(SimpleNamespace(Module=Module))  # type: ignore[arg-type]
    tracer.clear()
    background_calls.clear()
    yield found
    current.set(None)
    tracer.clear()
    tracer.notes = []
    background_calls.clear()


def model_ms(module: Module) -> float:
    """Milliseconds of its span in a request."""
    trace = tracer.enter(1, "GET", "/")
    assert trace is not None
    open_root(trace, Stage.CODE, "app", "")
    assert module(1) == 2
    current.set(None)
    span = trace.spans[-1]
    assert span.stage is Stage.MODEL
    return (span.end_ns - span.start_ns) / 1e6


def test_a_model_on_a_gpu_takes_until_the_gpu_is_done(cuda: Cuda) -> None:
    for kind in (OnGpu, OnAnother, OfBuffers):
        assert model_ms(kind(cuda)) >= 1e3 * _BUSY_S
    for kind in (OnCpu, Odd):
        assert model_ms(kind(cuda)) < 1e3 * _BUSY_S / 2
    on_gpu = dict.fromkeys(("OnGpu", "OnAnother", "OfBuffers"), TORCH_ON_GPU)
    assert libraries.found() == {**on_gpu, "OnCpu": "torch", "Odd": "torch"}
    assert [note for note in tracer.notes if "on a GPU ends when the GPU has finished" in note]


def test_so_it_does_where_no_request_is_known_to_wait_for_it(cuda: Cuda) -> None:
    OnGpu(cuda)(1)
    (one,) = background_calls.found()
    assert one.took_ns >= 1e9 * _BUSY_S


def test_a_stream_that_is_captured_is_not_waited_for(cuda: Cuda) -> None:
    cuda.capturing = True
    assert model_ms(OnGpu(cuda)) < 1e3 * _BUSY_S / 2
    assert not tracer.notes


def test_a_model_that_generates_on_a_gpu_runs_on_one(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    class Generating(OnGpu):
        def generate(self) -> int:
            return 7

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(nn=SimpleNamespace(Module=Module)))
    models._hook_generation(SimpleNamespace(GenerationMixin=Generating))  # type: ignore[arg-type]
    assert Generating(cuda).generate() == 7
    trace = tracer.enter(1, "GET", "/")
    assert trace is not None
    open_root(trace, Stage.CODE, "app", "")
    assert Generating(cuda).generate() == 7
    assert libraries.found() == {"Generating.generate": TORCH_ON_GPU}


def recorded(library: str, **changed: Any) -> Recording:
    """Of a model that takes 20 ms of 20.3 in a thread."""
    recording = pilot(sql_ms=0.1, model_ms=20.0, rate=20.0)
    pilots = msgspec.structs.replace(recording.pilot, libraries={"Net": library})
    return msgspec.structs.replace(recording, pilot=pilots, **changed)


def test_int8_is_for_the_processor() -> None:
    there = {one.lever: one for one in advice(recorded(TORCH_ON_GPU)).levers}["INT8"]
    assert there.reason.startswith("not worth it: INT8 variants are for the processor")
    found = {one.lever: one for one in advice(recorded("torch")).levers}["INT8"]
    assert max(found.p95_ms) < 0.9 * min(there.p95_ms)


def on_gpu(run_ms: float, kernel_ms: float) -> ModelLayers:
    used = device_use("gpu", [(0.0, kernel_ms)], [(0.0, 2 * run_ms)], 1 << 20, run_ms=run_ms)
    return ModelLayers(
        model="Net", runtime="torch 2", inputs="", runs=1, run_ms=run_ms, profiled_ms=run_ms, layers=(), operators=(),
        device=used,
    )  # fmt: skip


def levers_of(*layers: ModelLayers) -> dict[str, Any]:
    return {one.lever: one for one in advice(recorded(TORCH_ON_GPU, layers=layers)).levers}


def test_a_graph_leaves_out_the_gaps_between_kernels_and_what_lower_precision_wins_is_not_guessed() -> None:
    waiting = levers_of(on_gpu(0.88, 0.072))["runtime"]
    assert max(waiting.p95_ms) < 7.0  # of 20 ms
    assert any("kernels are 0.072 of a run's 0.88 ms" in one for one in waiting.basis)
    busy = levers_of(on_gpu(20.0, 19.99))["runtime"]
    assert busy.reason.startswith("not worth it: a CUDA graph would take as long as a run does")
    assert levers_of()["runtime"].reason.startswith("not known: what leaving torch on a GPU wins")
    another = msgspec.structs.replace(on_gpu(0.88, 0.072), model="Other")
    assert levers_of(another)["runtime"].reason.startswith("not known: what leaving torch on a GPU wins")


def shared(*layers: ModelLayers) -> Prior | None:
    """The share of a row's time that a batch takes once."""
    return know(recorded(TORCH_ON_GPU, layers=layers), (), None, 20.0).batch_share


def test_rows_of_a_batch_share_the_gaps() -> None:
    layers = (on_gpu(0.88, 0.072),)
    found = shared(*layers)
    assert found is not None
    assert (found.mid, found.high) == (pytest.approx(0.918, abs=0.001), 1.0)
    assert shared() is None
    assert shared(on_gpu(20.0, 20.5)) == Prior(low=0.0, mid=0.0, high=1.0, source=ANY)


def test_what_a_profiler_draws_beside_kernels_is_none() -> None:
    def event(name: str, start: float, *, device: str = "DeviceType.CUDA", annotation: bool = False) -> SimpleNamespace:
        times = SimpleNamespace(start=start, end=start + 1000.0)
        return SimpleNamespace(name=name, time_range=times, device_type=device, is_user_annotation=annotation)

    events = [
        event("gemm", 0.0),
        event("copy", 2000.0),
        event("## Call CompiledFxGraph", 0.0, annotation=True),
        event(layers_torch._RUN, 0.0),
        event("aten::addmm", 0.0, device="DeviceType.CPU"),
    ]
    assert layers_torch._kernels(events) == [(0.0, 1.0), (2.0, 3.0)]


@pytest.mark.torch
def test_inputs_are_made_where_the_module_is_and_in_its_half_precision() -> None:
    import torch

    shapes = (
        child.InputShape(name="x", dims=(2, 4)),
        child.InputShape(name="n", dims=(2,), datatype="INT64"),
    )
    arrays = child._arrays((), shapes)
    for dtype, wanted in (
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.float32),
        (torch.float64, torch.float32),
    ):
        x, n = child._tensors(arrays, "m", torch.nn.Linear(4, 1).to(dtype))
        assert (x.dtype, n.dtype) == (wanted, torch.int64)
    (x, _) = child._tensors(arrays, "m", torch.nn.Linear(4, 1).to("meta"))
    assert x.device.type == "meta"


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_a_variant_in_half_precision_has_the_layers_of_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from tests.models import tabular

    monkeypatch.setattr(layers_onnx, "_BUDGET_S", 0.05)

    torch.save(tabular.tabular().state_dict(), tmp_path / "m.pt")
    inputs = (
        TensorSpec(name="numeric", shape=(-1, 6)),
        TensorSpec(name="categorical", datatype="INT64", shape=(-1, 2)),
    )
    settings = {"device": "cpu", "dtype": "bfloat16", "buckets": [1, 2]}
    variant = Variant("torch", tmp_path / "m.pt", inputs, (TensorSpec(name="probability", shape=(-1,)),), settings)
    arrays = child._arrays(inputs, ())
    found = child._served_torch(variant, tabular.tabular, arrays, "demo bf16", torch.get_num_threads())
    assert found.inputs.startswith("#0 bfloat16 [1, 6]")
    assert any("replayed as a CUDA graph" in note for note in found.notes)
    before = torch.get_float32_matmul_precision()
    try:
        in_tf32 = replace(variant, settings={"device": "cpu", "tf32": True})
        found = child._served_torch(in_tf32, tabular.tabular, arrays, "demo", torch.get_num_threads())
        assert torch.get_float32_matmul_precision() == "high"
        assert found.inputs.startswith("#0 float32 [1, 6]")
    finally:
        torch.set_float32_matmul_precision(before)
    away = Variant("torch", tmp_path / "m.pt", inputs, variant.outputs, {**settings, "device": "cuda"})
    if not torch.cuda.is_available():
        with pytest.raises(ArtifactError, match="finds no CUDA device here"):
            child._served_torch(away, tabular.tabular, arrays, "demo bf16", torch.get_num_threads())


@pytest.mark.parametrize("runtime", ["openvino", "tensorrt"])
def test_of_a_runtime_without_layers_the_served_variant_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    from tailcut.serving import deployment_loader

    manifest: Any = SimpleNamespace(
        deployment=SimpleNamespace(name="demo", pool=SimpleNamespace(threads_of=lambda settings: 1))
    )
    variant = Variant(runtime, tmp_path / "m", (TensorSpec(name="x", shape=(-1, 6)),), (), {})
    monkeypatch.setattr(deployment_loader, "find_variant", lambda manifest: variant)
    with pytest.raises(
        ProfileError, match=f"runs on {runtime}: layers are known for torch and for ONNX Runtime"
    ) as found:
        child._served(manifest, ())
    assert "--layers module:callable" in str(found.value.hint)
