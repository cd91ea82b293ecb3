"""The TensorRT runtime: an engine that was built on this kind of GPU, with this version, for its buckets.

An engine has one optimisation profile per bucket; each has an execution context, buffers on the device and, where
shapes are fixed, a CUDA graph with the copies in it: one launch per batch. Settings of the variant: ``buckets``, in
the order of the profiles, and ``key``, what the engine was built with.

Source: TensorRT 11 Python API (docs.nvidia.com/deeplearning/tensorrt, IExecutionContext, ICudaEngine).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tailcut.common.tensors import DATATYPE_OF, NUMPY_OF, Array, Arrays
from tailcut.errors import ArtifactError
from tailcut.models.runtimes import bucketed
from tailcut.models.runtimes._device import Device, load_cudart
from tailcut.models.runtimes.base import Openable, OpenOptions
from tailcut.models.runtimes.checks import batch_failed, check_tensors, first_line, load_library, refuse_text

_SETTINGS = ("buckets", "key")


class _Bucket(NamedTuple):
    context: Any
    arrays: dict[str, Array]
    addresses: dict[str, int]
    launch: Callable[[], Any]


class TensorRTRuntime:
    """An opened engine. Use ``open_runtime``.

    Args:
        variant: its artifact is the serialised engine.
        tensorrt, cudart: the modules; imported where they are not given.
    """

    def __init__(self, variant: Openable, *, tensorrt: Any = None, cudart: Any = None) -> None:
        refuse_text(variant, "TensorRT")
        self._variant = variant
        self._tensorrt = tensorrt = tensorrt or load_tensorrt()
        self._sizes = bucketed.buckets_of(variant.settings, variant.name)
        if not self._sizes or set(variant.settings) - set(_SETTINGS):
            raise ArtifactError(
                f"settings of variant {variant.name!r} are {sorted(variant.settings)}, expected {', '.join(_SETTINGS)}",
                hint="run `tailcut build` again",
            )
        self._device = Device(cudart or load_cudart())
        self._buckets: dict[int, _Bucket] = {}
        self._fixed = bucketed.fixed(variant.inputs) and bucketed.fixed(variant.outputs)
        try:
            _check_key(variant, {"tensorrt": tensorrt.__version__, **self._device.describe()})
            self._engine: Any = self._deserialized()
            self._check_tensors()
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _deserialized(self) -> Any:
        self._logger = self._tensorrt.Logger(self._tensorrt.Logger.ERROR)
        self._runtime: Any = self._tensorrt.Runtime(self._logger)
        engine = self._runtime.deserialize_cuda_engine(self._variant.artifact.read_bytes())
        if engine is None or engine.num_optimization_profiles != len(self._sizes):
            profiles = "no engine" if engine is None else f"{engine.num_optimization_profiles} profiles"
            raise ArtifactError(
                f"TensorRT {self._tensorrt.__version__} reads {profiles} from {self._variant.artifact} "
                f"(variant {self._variant.name!r}), expected {len(self._sizes)} profiles",
                hint="run `tailcut build` again on this machine",
            )
        return engine

    def _check_tensors(self) -> None:
        engine, given = self._engine, self._tensorrt.TensorIOMode.INPUT
        names = [engine.get_tensor_name(place) for place in range(engine.num_io_tensors)]
        for kind, wanted in (("input", self._variant.inputs), ("output", self._variant.outputs)):
            mine = [name for name in names if (engine.get_tensor_mode(name) == given) == (kind == "input")]
            found = {name: (self._datatype(name), tuple(engine.get_tensor_shape(name))) for name in mine}
            check_tensors(self._variant, kind, wanted, found, mine)

    def _datatype(self, name: str) -> str:
        kind: np.dtype[np.generic] = np.dtype(self._tensorrt.nptype(self._engine.get_tensor_dtype(name)))
        return DATATYPE_OF.get(kind, kind.name)

    def _prepare(self) -> None:
        for profile, rows in enumerate(self._sizes):
            try:
                self._buckets[rows] = self._bucket(profile, rows)
            except ArtifactError:
                raise
            except Exception as error:
                raise ArtifactError(
                    f"variant {self._variant.name!r} cannot be prepared for batches of {rows}: {first_line(error)}",
                    hint="run `tailcut build` again on this machine, or promote another version",
                ) from error

    def _bucket(self, profile: int, rows: int) -> _Bucket:
        """Reserve the largest shapes of the profile, bind them, and capture where no shape can change."""
        engine, device = self._engine, self._device
        context = engine.create_execution_context()
        if context is None or not context.set_optimization_profile_async(profile, int(device.stream)):
            raise RuntimeError("no execution context: the GPU's memory is too small")
        device.wait()
        largest = {
            tensor.name: tuple(engine.get_tensor_profile_shape(tensor.name, profile)[2])
            for tensor in self._variant.inputs
        }
        for name, shape in largest.items():
            context.set_input_shape(name, shape)
        largest |= {tensor.name: tuple(context.get_tensor_shape(tensor.name)) for tensor in self._variant.outputs}
        arrays, addresses = {}, {}
        for tensor in (*self._variant.inputs, *self._variant.outputs):
            arrays[tensor.name] = device.pinned(largest[tensor.name], NUMPY_OF[tensor.datatype])
            arrays[tensor.name][...] = np.zeros((), NUMPY_OF[tensor.datatype])
            addresses[tensor.name] = device.reserve(arrays[tensor.name].nbytes)
            context.set_tensor_address(tensor.name, addresses[tensor.name])
        bucket = _Bucket(context, arrays, addresses, lambda: None)
        for _ in range(bucketed.WARM_UP_RUNS):
            self._enqueue(bucket, arrays)
            device.wait()
        if not self._fixed:
            return bucket
        return bucket._replace(launch=device.capture(lambda: self._enqueue(bucket, arrays)))

    def _enqueue(self, bucket: _Bucket, arrays: Mapping[str, Array]) -> None:
        """Put the copies and the engine's kernels into the stream."""
        for tensor in self._variant.inputs:
            self._device.upload(bucket.addresses[tensor.name], arrays[tensor.name])
        if not bucket.context.execute_async_v3(int(self._device.stream)):
            raise RuntimeError("execute_async_v3 refused the batch")
        for tensor in self._variant.outputs:
            self._device.download(arrays[tensor.name], bucket.addresses[tensor.name])

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run one batch; see ``Runtime.run``.

        Raises:
            InferenceError: TensorRT refused the batch, it is outside the engine's profiles, or CUDA failed.
        """
        try:
            self._device.current()
            return bucketed.in_parts(inputs, outputs, self._sizes, lambda *part: self._part(inputs, outputs, *part))
        except Exception as error:
            raise batch_failed(self._variant.name, inputs, first_line(error)) from error

    def _part(self, inputs: Arrays, outputs: Sequence[str], start: int, rows: int, size: int) -> Arrays:
        bucket = self._buckets[size]
        arrays = bucket.arrays if self._fixed else self._reshaped(bucket, inputs, size)
        for tensor in self._variant.inputs:
            bucketed.fill(inputs[tensor.name], start, rows, arrays[tensor.name])
        if self._fixed:
            bucket.launch()
        else:
            self._enqueue(bucket, arrays)
        self._device.wait()
        return {name: np.array(arrays[name][:rows]) for name in outputs}

    def _reshaped(self, bucket: _Bucket, inputs: Arrays, size: int) -> dict[str, Array]:
        """Tell the context the batch's own shapes, and take the front of each buffer for them."""
        wanted = {tensor.name: (size, *inputs[tensor.name].shape[1:]) for tensor in self._variant.inputs}
        for name, shape in wanted.items():
            largest = bucket.arrays[name].shape
            if any(one > most for one, most in zip(shape, largest, strict=True)):
                raise ValueError(f"input {name!r} is {list(shape)}, the engine was built for up to {list(largest)}")
            if not bucket.context.set_input_shape(name, shape):
                raise ValueError(f"input {name!r} of shape {list(shape)} is outside the engine's profile")
        wanted |= {t.name: tuple(bucket.context.get_tensor_shape(t.name)) for t in self._variant.outputs}
        return {
            name: bucket.arrays[name].reshape(-1)[: int(np.prod(shape))].reshape(shape)
            for name, shape in wanted.items()
        }

    def close(self) -> None:
        """Give everything on the device back."""
        self._buckets = {}
        self._engine = self._runtime = None
        self._device.close()


def load_tensorrt() -> Any:
    """Import TensorRT.

    Raises:
        MissingExtra: it is not installed.
    """
    return load_library("tensorrt", "the TensorRT runtime needs the tensorrt package")


def _check_key(variant: Openable, here: Mapping[str, str]) -> None:
    """Compare what the engine was built with: an engine of another GPU or version runs wrongly or not at all."""
    key = variant.settings.get("key", {})
    differing = [name for name in ("tensorrt", "gpu", "capability") if key.get(name) != here[name]]
    if differing:
        name = differing[0]
        raise ArtifactError(
            f"the engine of variant {variant.name!r} was built with {name} {key.get(name)}, but here it is "
            f"{here[name]}",
            hint="run `tailcut build` on this machine: engines are not portable",
        )


def open_variant(variant: Openable, options: OpenOptions) -> TensorRTRuntime:
    """Open a variant of this runtime; see ``open_runtime``."""
    return TensorRTRuntime(variant)
