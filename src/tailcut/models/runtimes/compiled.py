"""The torch runtime on a device: another precision, compiled, and as CUDA graphs, one per bucket of batch sizes.

Settings of the variant: ``device`` ("cuda", "cpu"), ``dtype`` ("float32", "bfloat16", "float16"), ``compile``,
``fullgraph`` (the compiler may not fall back to Python), ``tf32``, ``buckets``.

Graphs are captured here and not by torch.compile(mode="reduce-overhead"): its graphs belong to the thread that made
them (torch._inductor.cudagraph_trees keeps them in thread-local storage), and executors are threads of their own. A
captured graph holds no Python: nothing can be compiled on the path of a request.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from tailcut.common.tensors import NUMPY_OF, Array, Arrays
from tailcut.errors import ArtifactError
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes import bucketed
from tailcut.models.runtimes.base import Openable, OpenOptions, Runtime
from tailcut.models.runtimes.checks import (
    AGAIN,
    batch_failed,
    named_line,
    refuse_text,
    source_for,
    unfit_settings,
    unknown_setting,
)
from tailcut.models.runtimes.torch import TorchRuntime, load_module, load_torch
from tailcut.models.runtimes.torch_call import in_order

DEVICES = ("cpu", "cuda")
DTYPES = ("float32", "bfloat16", "float16")


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how a module runs: the variant's settings."""

    device: str = "cpu"
    dtype: str = "float32"
    compile: bool = False
    fullgraph: bool = True
    tf32: bool = False
    buckets: tuple[int, ...] = ()


class Graphs(Protocol):
    """What captures a call on fixed buffers, to replay it."""

    def capture(self, call: Callable[[], tuple[Any, ...]]) -> tuple[tuple[Any, ...], Callable[[], None]]:
        """Return the buffers that the outputs will be in, and what fills them anew from the same inputs."""


class CudaGraphs:
    """CUDA graphs (pytorch.org/docs: "CUDA Graphs"); each has memory of its own, so that they replay in any order."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def capture(self, call: Callable[[], tuple[Any, ...]]) -> tuple[tuple[Any, ...], Callable[[], None]]:
        """Warm up on a side stream, as capturing requires, then capture."""
        cuda = self._torch.cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(bucketed.WARM_UP_RUNS):
                call()
        cuda.current_stream().wait_stream(side)
        graph = cuda.CUDAGraph()
        # Other threads may use the device meanwhile: an old version that still serves, for one.
        with cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = call()
        return outputs, graph.replay


def open_torch(variant: Openable, options: OpenOptions) -> Runtime:
    """Open a state dict with the module that ``options.source`` makes, on the device that the settings name."""
    source = source_for(variant, options, "a torch state dict and needs the module")
    if placed(variant.settings):
        return PlacedTorch(variant, threads=options.threads, source=source)
    return TorchRuntime(variant, threads=options.threads, source=source)


class PlacedTorch:
    """An opened torch module on a device. Use ``open_runtime``."""

    def __init__(
        self, variant: Openable, *, threads: int, source: Callable[[], Any], graphs: Graphs | None = None
    ) -> None:
        refuse_text(variant, "torch")
        torch = load_torch()
        self._torch, self._variant = torch, variant
        self._placement = placement = placement_of(variant.settings, variant.name)
        check_device(torch, placement, variant.name)
        if graphs is None and placement.device == "cuda":
            graphs = CudaGraphs(torch)
        if placement.compile and graphs is None:
            raise ArtifactError(
                f"variant {variant.name!r} is compiled for {placement.device}, where graphs cannot be captured: "
                "another thread would compile it again during a request",
                hint="serve variant 'torch' on the CPU",
            )
        torch.set_num_threads(threads)
        self._dtype = getattr(torch, placement.dtype)
        module = put(torch, load_module(variant, source), placement)
        # For fixed shapes; nothing is compiled before the first call.
        made = torch.compile(module, dynamic=False, fullgraph=placement.fullgraph) if placement.compile else None
        self._call: Any = in_order(module, [tensor.name for tensor in variant.inputs], compiled=made)
        self._graphs = graphs
        self._buckets: dict[int, _Bucket] = {}
        self._prepare()

    def _prepare(self) -> None:
        """Run every bucket: compile it, capture it.

        Zeros may be no input that the module takes. Then the first real rows of each bucket prepare it.
        """
        try:
            for rows in self._placement.buckets:
                self._buckets[rows] = self._bucket(bucketed.zeros(self._variant.inputs, rows))
        except Exception as error:  # compilers raise whatever their passes raise
            if self._buckets:
                raise ArtifactError(
                    f"variant {self._variant.name!r} cannot be prepared for its buckets "
                    f"{list(self._placement.buckets)}: {named_line(error)}",
                    hint=AGAIN,
                ) from error

    def _bucket(self, arrays: Arrays) -> _Bucket:
        with warnings.catch_warnings(), self._torch.inference_mode():
            warnings.simplefilter("ignore")
            buffers = self._placed(arrays)
            call = partial(self._forward, buffers)
            if self._graphs is None:
                call()
                return _Bucket(buffers, None, call)
            return _Bucket(buffers, *self._graphs.capture(call))

    def _forward(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        found = self._call(*given)
        return tuple(found) if isinstance(found, (tuple, list)) else (found,)

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run one batch; see ``Runtime.run``. How inputs reach forward: see ``in_order``.

        Raises:
            InferenceError: the module raised, or gave another number of outputs than the manifest names.
        """
        try:
            with self._torch.inference_mode():
                if not self._placement.buckets:
                    found = self._forward(self._placed(inputs))
                    return self._named(found, outputs, len(next(iter(inputs.values()))))
                return bucketed.in_parts(
                    inputs, outputs, self._placement.buckets, lambda *part: self._part(inputs, outputs, *part)
                )
        except Exception as error:
            raise batch_failed(self._variant.name, inputs, named_line(error)) from error

    def _part(self, inputs: Arrays, outputs: Sequence[str], start: int, rows: int, size: int) -> Arrays:
        if size not in self._buckets:
            self._buckets[size] = self._bucket(bucketed.filled(inputs, start, rows, size))
        bucket = self._buckets[size]
        for tensor, buffer in zip(self._variant.inputs, bucket.buffers, strict=True):
            given = self._tensor(inputs[tensor.name][start : start + rows])
            if given.shape[1:] != buffer.shape[1:]:
                raise ValueError(f"input {tensor.name!r} is {list(given.shape)}, prepared for {list(buffer.shape)}")
            buffer[:rows].copy_(given)
            if rows < size:
                # A copy of a real row, as in ``bucketed.fill``, made on the device.
                buffer[rows:].copy_(buffer[rows - 1 : rows].expand(size - rows, *buffer.shape[1:]))
        found = bucket.replay()
        return self._named(found if bucket.outputs is None else bucket.outputs, outputs, rows)

    def _tensor(self, array: Array) -> Any:
        # torch warns of arrays that it could write to by mistake; only those are copied.
        return self._torch.from_numpy(array if array.flags.writeable else array.copy())

    def _placed(self, inputs: Arrays) -> tuple[Any, ...]:
        tensors = [self._tensor(inputs[tensor.name]) for tensor in self._variant.inputs]
        device, dtype = self._placement.device, self._dtype
        return tuple([tensor.to(device, dtype if tensor.is_floating_point() else None) for tensor in tensors])

    def _named(self, found: tuple[Any, ...], outputs: Sequence[str], rows: int) -> Arrays:
        """Outputs by name, on the host, as the manifest has them; NumPy knows no bfloat16.

        Buffers of a bucket are written again by the next batch: what leaves is a copy.
        """
        named = dict(zip(self._variant.outputs, found, strict=True))
        return {
            tensor.name: self._host(value[:rows], tensor) for tensor, value in named.items() if tensor.name in outputs
        }

    def _host(self, value: Any, tensor: TensorSpec) -> Array:
        if value.dtype is self._torch.bfloat16:
            value = value.to(self._torch.float32)
        array: Array = value.cpu().numpy()
        return array.astype(NUMPY_OF[tensor.datatype], copy=bool(self._placement.buckets))

    def close(self) -> None:
        """Drop the module, its weights and its graphs."""
        self._call = None
        self._buckets = {}


class _Bucket(msgspec.Struct, frozen=True):
    """Input buffers; output buffers, None where ``replay`` returns new outputs each time; what runs it."""

    buffers: tuple[Any, ...]
    outputs: tuple[Any, ...] | None
    replay: Callable[[], Any]


def check_device(torch: Any, placement: Placement, variant: str) -> None:
    """Check that the device of a placement is here.

    Raises:
        ArtifactError: it is not.
    """
    if placement.device == "cuda" and not torch.cuda.is_available():
        raise ArtifactError(
            f"variant {variant!r} runs on a GPU, but torch {torch.__version__} finds no CUDA device here",
            hint="serve another variant, or install torch for CUDA on a machine with an NVIDIA GPU",
        )


def put(torch: Any, module: Any, placement: Placement) -> Any:
    """Move a module to its device and precision; products in TF32 where the placement says so, for the process."""
    if placement.tf32:
        torch.set_float32_matmul_precision("high")
    return module.to(device=placement.device, dtype=getattr(torch, placement.dtype))


def placement_of(settings: Mapping[str, Any], variant: str) -> Placement:
    """Read a variant's settings.

    Raises:
        ArtifactError: an unknown setting, device or precision, or compilation without buckets.
    """
    buckets = bucketed.buckets_of(settings, variant)
    try:
        placement = msgspec.convert({**settings, "buckets": buckets}, Placement)
    except msgspec.ValidationError as error:
        raise unfit_settings(variant, str(error)) from error
    if why := unknown_setting(settings, Placement.__struct_fields__):
        raise unfit_settings(variant, why)
    if placement.device not in DEVICES:
        why = f"device is {placement.device!r}, expected one of {', '.join(DEVICES)}"
    elif placement.dtype not in DTYPES:
        why = f"dtype is {placement.dtype!r}, expected one of {', '.join(DTYPES)}"
    elif placement.compile and not placement.buckets:
        why = "compile needs buckets; without them a request could wait for the compiler"
    if why:
        raise unfit_settings(variant, why)
    return placement


def placed(settings: Mapping[str, Any]) -> bool:
    """Tell whether a torch variant's settings ask for this runtime, rather than for eager fp32 on the CPU."""
    return bool(set(settings) & set(Placement.__struct_fields__))
