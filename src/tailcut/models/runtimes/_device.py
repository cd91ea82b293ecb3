"""Memory, a stream and graphs of one CUDA device, by cuda-bindings: what the TensorRT runtime runs on.

Source: CUDA Runtime API (docs.nvidia.com/cuda/cuda-runtime-api); every call of cuda.bindings.runtime returns a tuple
whose first item is the error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tailcut.common.tensors import Array
from tailcut.errors import ArtifactError
from tailcut.models.runtimes.checks import load_library


class CudaError(RuntimeError):
    """A call of the CUDA runtime failed; names the call and the error."""


def load_cudart() -> Any:
    """Import CUDA's runtime.

    Raises:
        MissingExtra: cuda-bindings is not installed.
    """
    return load_library("cuda.bindings.runtime", "the TensorRT runtime needs the cuda-bindings package")


class Device:
    """One device with one stream.

    Args:
        cudart: the module ``cuda.bindings.runtime``.

    Raises:
        ArtifactError: there is no CUDA device.
    """

    def __init__(self, cudart: Any) -> None:
        self._cudart = cudart
        self._freed: list[Callable[[], Any]] = []
        try:
            self._call("cudaSetDevice", 0)
            self.stream = self._call("cudaStreamCreate")
        except CudaError as error:
            raise ArtifactError(
                f"no CUDA device can be used: {error}", hint="check nvidia-smi, or serve a variant for the CPU"
            ) from error
        self._freed.append(lambda: self._call("cudaStreamDestroy", self.stream))

    def _call(self, name: str, *arguments: Any) -> Any:
        error, *found = getattr(self._cudart, name)(*arguments)
        if error != self._cudart.cudaError_t.cudaSuccess:
            raise CudaError(f"{name} failed: {getattr(error, 'name', error)}")
        return found[0] if found else None

    def describe(self) -> dict[str, str]:
        """Name the device, its compute capability, and CUDA's and the driver's versions."""
        properties = self._call("cudaGetDeviceProperties", 0)
        name = properties.name
        versions = {"cuda": self._call("cudaRuntimeGetVersion"), "driver_cuda": self._call("cudaDriverGetVersion")}
        return {
            "gpu": (name.decode() if isinstance(name, bytes) else str(name)).rstrip("\0"),
            "capability": f"{properties.major}.{properties.minor}",
            **{key: f"{value // 1000}.{value % 1000 // 10}" for key, value in versions.items()},
        }

    def reserve(self, size_bytes: int) -> int:
        """Reserve memory of the device; return its address."""
        address = int(self._call("cudaMalloc", max(1, size_bytes)))
        self._freed.append(lambda: self._call("cudaFree", address))
        return address

    def pinned(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """Reserve memory of the host that the device reads and writes by itself."""
        size_bytes = max(1, prod(shape) * dtype.itemsize)
        address = int(self._call("cudaHostAlloc", size_bytes, 0))
        self._freed.append(lambda: self._call("cudaFreeHost", address))
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))
        return memory[: prod(shape) * dtype.itemsize].view(dtype).reshape(shape)

    def upload(self, address: int, array: Array) -> None:
        """Copy to the device, in the stream's order."""
        kind = self._cudart.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call("cudaMemcpyAsync", address, array.ctypes.data, array.nbytes, kind, self.stream)

    def download(self, array: Array, address: int) -> None:
        """Copy from the device, in the stream's order."""
        kind = self._cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call("cudaMemcpyAsync", array.ctypes.data, address, array.nbytes, kind, self.stream)

    def wait(self) -> None:
        """Wait for everything in the stream."""
        self._call("cudaStreamSynchronize", self.stream)

    def current(self) -> None:
        """Make the device this thread's: each thread has its own choice."""
        self._call("cudaSetDevice", 0)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record what ``work`` puts into the stream; return what puts all of it there again."""
        mode = self._cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", self.stream, mode)
        try:
            work()
        except BaseException:
            # The capture must end before the stream can be used again; its graph is worth nothing.
            self._cudart.cudaStreamEndCapture(self.stream)
            raise
        graph = self._call("cudaStreamEndCapture", self.stream)
        try:
            launched = self._call("cudaGraphInstantiate", graph, 0)
        finally:
            self._call("cudaGraphDestroy", graph)
        self._freed.append(lambda: self._call("cudaGraphExecDestroy", launched))
        return lambda: self._call("cudaGraphLaunch", launched, self.stream)

    def close(self) -> None:
        """Give back memory, graphs and the stream, the last one first."""
        while self._freed:
            self._freed.pop()()
