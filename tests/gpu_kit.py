"""Stand-ins for what only a machine with an NVIDIA GPU has: the CUDA runtime, TensorRT, and a variant to open on it.

Memory is real memory, so that what is copied where, and what a replayed graph reads, is decided by the code under test.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from tailcut.manifest import TensorSpec

GPU = "NVIDIA H100 80GB HBM3"


@dataclass(frozen=True)
class Variant:
    """What ``open_runtime`` is given."""

    runtime: str
    artifact: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    name: str = "v"


class Cudart:
    """``cuda.bindings.runtime``, as far as ``runtimes._device`` calls it; a captured stream waits to be launched."""

    def __init__(self) -> None:
        self.cudaError_t = SimpleNamespace(cudaSuccess=0)
        self.cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)
        self.cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)
        self.memory: dict[int, Any] = {}
        self.recording: list[Callable[[], Any]] | None = None
        self.failing: dict[str, int] = {}
        self.alive: dict[str, int] = {"streams": 0, "graphs": 0, "executables": 0}
        self.launches = 0

    def __getattribute__(self, name: str) -> Any:
        failing = object.__getattribute__(self, "__dict__").get("failing", {})
        if name in failing:
            return lambda *_: (failing[name],)
        return object.__getattribute__(self, name)

    def put(self, work: Callable[[], Any]) -> None:
        """Do some work of the stream, or record it."""
        if self.recording is None:
            work()
        else:
            self.recording.append(work)

    def cudaSetDevice(self, device: int) -> tuple[int]:
        return (0,)

    def cudaGetDeviceProperties(self, device: int) -> tuple[int, Any]:
        return 0, SimpleNamespace(name=GPU.encode() + b"\0\0", major=9, minor=0)

    def cudaRuntimeGetVersion(self) -> tuple[int, int]:
        return 0, 13010

    def cudaDriverGetVersion(self) -> tuple[int, int]:
        return 0, 13000

    def cudaMalloc(self, size_bytes: int) -> tuple[int, int]:
        buffer = ctypes.create_string_buffer(size_bytes)
        self.memory[ctypes.addressof(buffer)] = buffer
        return 0, ctypes.addressof(buffer)

    def cudaHostAlloc(self, size_bytes: int, flags: int) -> tuple[int, int]:
        return self.cudaMalloc(size_bytes)

    def cudaFree(self, address: int) -> tuple[int]:
        del self.memory[address]
        return (0,)

    def cudaFreeHost(self, address: int) -> tuple[int]:
        return self.cudaFree(address)

    def cudaStreamCreate(self) -> tuple[int, int]:
        self.alive["streams"] += 1
        return 0, 7

    def cudaStreamDestroy(self, stream: int) -> tuple[int]:
        self.alive["streams"] -= 1
        return (0,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[int]:
        return (0,)

    def cudaMemcpyAsync(self, target: int, source: int, size_bytes: int, kind: int, stream: int) -> tuple[int]:
        self.put(lambda: ctypes.memmove(target, source, size_bytes))
        return (0,)

    def cudaStreamBeginCapture(self, stream: int, mode: int) -> tuple[int]:
        assert self.recording is None
        self.recording = []
        return (0,)

    def cudaStreamEndCapture(self, stream: int) -> tuple[int, Any]:
        graph, self.recording = self.recording, None
        self.alive["graphs"] += 1
        return 0, graph

    def cudaGraphInstantiate(self, graph: Any, flags: int) -> tuple[int, Any]:
        self.alive["executables"] += 1
        return 0, list(graph)

    def cudaGraphDestroy(self, graph: Any) -> tuple[int]:
        self.alive["graphs"] -= 1
        return (0,)

    def cudaGraphExecDestroy(self, graph: Any) -> tuple[int]:
        self.alive["executables"] -= 1
        return (0,)

    def cudaGraphLaunch(self, graph: Any, stream: int) -> tuple[int]:
        self.launches += 1
        for work in graph:
            work()
        return (0,)


class Context:
    """An execution context: reads and writes the addresses that it was told."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.shapes, self.addresses, self.profile = engine, {}, {}, -1

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self.profile = profile
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        least, _, most = self.engine.profiles[self.profile][name]
        good = len(shape) == len(least) and all(a <= b <= c for a, b, c in zip(least, shape, most, strict=True))
        if good:
            self.shapes[name] = tuple(shape)
        return good

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        tensor = self.engine.outputs[name]
        given = self.shapes[next(iter(self.engine.inputs))]
        return tuple(given[place] if size == -1 else size for place, size in enumerate(tensor.shape))

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        self.engine.cudart.put(self._execute)
        return True

    def _array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        size = int(np.prod(shape))
        return np.ctypeslib.as_array((ctypes.c_float * size).from_address(self.addresses[name])).reshape(shape)

    def _execute(self) -> None:
        self.engine.executed.append(dict(self.shapes))
        given = {name: self._array(name, self.shapes[name]) for name in self.engine.inputs}
        for name, value in self.engine.function(given).items():
            self._array(name, self.get_tensor_shape(name))[...] = value


class Engine:
    """A deserialised engine of FP32 tensors that computes ``function``."""

    def __init__(self, cudart: Cudart, inputs: Any, outputs: Any, profiles: list[Any], function: Any) -> None:
        self.cudart, self.function, self.profiles = cudart, function, profiles
        self.inputs = {tensor.name: tensor for tensor in inputs}
        self.outputs = {tensor.name: tensor for tensor in outputs}
        self.names = [*self.inputs, *self.outputs]
        self.num_io_tensors = len(self.names)
        self.num_optimization_profiles = len(profiles)
        self.executed: list[dict[str, tuple[int, ...]]] = []

    def get_tensor_name(self, place: int) -> str:
        return self.names[place]

    def get_tensor_mode(self, name: str) -> str:
        return "in" if name in self.inputs else "out"

    def get_tensor_dtype(self, name: str) -> str:
        return "float"

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return ({**self.inputs, **self.outputs})[name].shape

    def get_tensor_profile_shape(self, name: str, profile: int) -> Any:
        return self.profiles[profile][name]

    def create_execution_context(self) -> Context:
        return Context(self)


class TensorRT:
    """The module ``tensorrt``: an "engine" is JSON of the profiles that it was built with."""

    __version__ = "11.4.1"
    TensorIOMode = SimpleNamespace(INPUT="in", OUTPUT="out")
    MemoryPoolType = SimpleNamespace(WORKSPACE="workspace")

    class ILogger:
        ERROR, INTERNAL_ERROR = "error", "internal"

    class Logger(ILogger):
        def __init__(self, severity: str) -> None:
            self.severity = severity

    def __init__(self, cudart: Cudart, inputs: Any, outputs: Any, function: Any) -> None:
        self._made = (cudart, inputs, outputs, function)
        self.engine: Engine | None = None
        self.refuses = ""
        self.builds = True
        self.parsed: list[bytes] = []
        self.cache_given: list[bytes] = []

    def nptype(self, kind: str) -> type:
        return np.float32

    def Runtime(self, logger: Any) -> Any:
        def deserialize(data: bytes) -> Engine | None:
            try:
                profiles = msgspec.json.decode(data)
            except msgspec.DecodeError:
                return None
            cudart, inputs, outputs, function = self._made
            self.engine = Engine(cudart, inputs, outputs, profiles, function)
            return self.engine

        return SimpleNamespace(deserialize_cuda_engine=deserialize)

    def OnnxParser(self, network: Any, logger: Any) -> Any:
        def parse(data: bytes) -> bool:
            self.parsed.append(data)
            return not self.refuses

        error = SimpleNamespace(
            node_operator=lambda: self.refuses, node_name=lambda: "node_3", desc=lambda: "it is not supported"
        )
        return SimpleNamespace(parse=parse, num_errors=int(bool(self.refuses)), get_error=lambda place: error)

    def Builder(self, logger: Any) -> Any:
        return _Builder(self, logger)


class _Builder:
    def __init__(self, module: TensorRT, logger: Any) -> None:
        self.module, self.logger = module, logger

    def create_network(self, flags: int) -> Any:
        assert flags == 0  # TensorRT 11 knows no other than strongly typed networks
        return object()

    def create_builder_config(self) -> Any:
        return _Config(self.module)

    def create_optimization_profile(self) -> Any:
        shapes: dict[str, Any] = {}
        return SimpleNamespace(shapes=shapes, set_shape=lambda name, *each: shapes.update({name: each}))

    def build_serialized_network(self, network: Any, config: Any) -> Any:
        if not self.module.builds:
            self.logger.log(self.module.ILogger.ERROR, "no kernel for node_5\n")
            return None
        return msgspec.json.encode([profile.shapes for profile in config.profiles])


class _Config:
    def __init__(self, module: TensorRT) -> None:
        self.module, self.profiles, self.limits = module, [], {}

    def set_memory_pool_limit(self, pool: str, size_bytes: int) -> None:
        self.limits[pool] = size_bytes

    def create_timing_cache(self, data: bytes) -> Any:
        self.module.cache_given.append(data)
        return SimpleNamespace(serialize=lambda: b"timings+" + data)

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        self.cache = cache
        return True

    def get_timing_cache(self) -> Any:
        return self.cache

    def add_optimization_profile(self, profile: Any) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1


class Graphs:
    """CUDA graphs for a CPU: a replay writes into the buffers that the capture returned, and counts."""

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def capture(self, call: Callable[[], tuple[Any, ...]]) -> tuple[tuple[Any, ...], Callable[[], None]]:
        self.captures += 1
        outputs = call()

        def replay() -> None:
            self.replays += 1
            for buffer, value in zip(outputs, call(), strict=True):
                buffer.copy_(value)

        return outputs, replay
