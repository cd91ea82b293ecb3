"""The onnxruntime runtime on an NVIDIA GPU: buffers that stay on the device, and a CUDA graph per bucket.

Settings of the variant: ``provider`` ("cuda"), ``buckets`` (batch sizes; none: any shape, without graphs), ``tf32``.

With graphs every batch is run by one thread of the runtime's own: onnxruntime keeps a captured graph with the thread
that captured it, so that another one would capture anew in the middle of a request
(onnxruntime/core/providers/cuda/cuda_execution_provider.h, PerThreadContext).
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from tailcut.common.tensors import NUMPY_OF, Array, Arrays
from tailcut.errors import ArtifactError, MissingExtra
from tailcut.models.runtimes import bucketed
from tailcut.models.runtimes.base import Openable, OpenOptions, Runtime
from tailcut.models.runtimes.checks import (
    AGAIN,
    batch_failed,
    first_line,
    refuse_text,
    unfit_settings,
    unknown_setting,
)
from tailcut.models.runtimes.onnxruntime import OnnxRuntime, check_nodes, load_onnxruntime, session_options


class Place(NamedTuple):
    """Where a session runs: onnxruntime's names of the provider and of its memory."""

    provider: str
    device: str


CUDA = Place("CUDAExecutionProvider", "cuda")
_SETTINGS = ("provider", "buckets", "tf32")


class _Bucket(NamedTuple):
    staged: dict[str, Array]
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    binding: Any
    options: Any


def open_onnx(variant: Openable, options: OpenOptions) -> Runtime:
    """Open an .onnx file on the device that the variant's settings name: the processor or a GPU."""
    if variant.settings.get("provider", "cpu") == "cpu":
        return OnnxRuntime(variant, threads=options.threads)
    return OnnxCudaRuntime(variant, threads=options.threads)


class OnnxCudaRuntime:
    """An opened ONNX model on a GPU. Use ``open_runtime``."""

    def __init__(self, variant: Openable, *, threads: int, place: Place = CUDA) -> None:
        self._variant, self._place = variant, place
        _check_settings(variant)
        refuse_text(variant, "onnxruntime's CUDA provider")
        sizes = bucketed.buckets_of(variant.settings, variant.name)
        if sizes and not (bucketed.fixed(variant.inputs) and bucketed.fixed(variant.outputs)):
            raise ArtifactError(
                f"variant {variant.name!r} has buckets, and tensors with free dimensions beside the batch",
                hint="run `tailcut build` again",
            )
        self._own = ThreadPoolExecutor(1, thread_name_prefix="tailcut-cuda") if sizes else None
        self._buckets: dict[int, _Bucket] = {}
        try:
            self._session: Any = self._in_thread(lambda: _session(variant, threads, place, bool(sizes)))
            self._in_thread(lambda: self._prepare(sizes))
        except BaseException:
            self.close()
            raise

    def _in_thread(self, work: Callable[[], Any]) -> Any:
        return self._own.submit(work).result() if self._own is not None else work()

    def _prepare(self, sizes: Sequence[int]) -> None:
        """Reserve and run every bucket.

        Zeros may be no input that the model takes. Then the first real rows of each bucket capture its graph.
        """
        takes_zeros = True
        for number, rows in enumerate(sizes, start=1):
            try:
                self._buckets[rows] = self._bucket(rows, number)
                takes_zeros = takes_zeros and self._runs_zeros(self._buckets[rows], is_smallest=number == 1)
            except Exception as error:
                raise ArtifactError(
                    f"variant {self._variant.name!r} cannot be prepared for batches of {rows}: {first_line(error)}",
                    hint=AGAIN,
                ) from error

    def _runs_zeros(self, bucket: _Bucket, *, is_smallest: bool) -> bool:
        try:
            for _ in range(bucketed.WARM_UP_RUNS):
                self._launch(bucket)
        except Exception:
            if not is_smallest:
                raise
            return False
        return True

    def _bucket(self, rows: int, number: int) -> _Bucket:
        """Reserve buffers of the device: a graph reads and writes the same addresses every time."""
        onnxruntime = load_onnxruntime()

        def value(array: Array) -> Any:
            return onnxruntime.OrtValue.ortvalue_from_numpy(array, self._place.device, 0)

        staged = bucketed.zeros(self._variant.inputs, rows)
        inputs = {name: value(array) for name, array in staged.items()}
        outputs = {
            tensor.name: value(np.zeros((rows, *tensor.shape[1:]), NUMPY_OF[tensor.datatype]))
            for tensor in self._variant.outputs
        }
        binding = self._session.io_binding()
        for name, each in inputs.items():
            binding.bind_ortvalue_input(name, each)
        for name, each in outputs.items():
            binding.bind_ortvalue_output(name, each)
        options = onnxruntime.RunOptions()
        if self._place == CUDA:
            options.add_run_config_entry("gpu_graph_id", str(number))
        return _Bucket(staged, inputs, outputs, binding, options)

    def _launch(self, bucket: _Bucket) -> None:
        for name, value in bucket.inputs.items():
            value.update_inplace(bucket.staged[name])
        self._session.run_with_iobinding(bucket.binding, bucket.options)

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run one batch; see ``Runtime.run``.

        Raises:
            InferenceError: onnxruntime refused the batch or failed in it.
        """
        try:
            if not self._buckets:
                return dict(zip(outputs, self._session.run(list(outputs), inputs), strict=True))
            found: Arrays = self._in_thread(
                lambda: bucketed.in_parts(
                    inputs, outputs, tuple(self._buckets), lambda *part: self._part(inputs, outputs, *part)
                )
            )
            return found
        except Exception as error:
            raise batch_failed(self._variant.name, inputs, first_line(error)) from error

    def _part(self, inputs: Arrays, outputs: Sequence[str], start: int, rows: int, size: int) -> Arrays:
        bucket = self._buckets[size]
        for name, staged in bucket.staged.items():
            bucketed.fill(inputs[name], start, rows, staged)
        self._launch(bucket)
        # On the device .numpy() copies already; a copy of its own keeps the answer from the next batch everywhere.
        return {name: np.array(bucket.outputs[name].numpy()[:rows]) for name in outputs}

    def close(self) -> None:
        """Drop the session, its buffers and its graphs."""
        self._buckets, self._session = {}, None
        if self._own is not None:
            self._own.shutdown(wait=True)


def _check_settings(variant: Openable) -> None:
    why, provider = unknown_setting(variant.settings, _SETTINGS), variant.settings.get("provider")
    if why or provider != "cuda":
        raise unfit_settings(variant.name, why or f"provider is {provider!r}, expected 'cuda' or 'cpu'")


def _session(variant: Openable, threads: int, place: Place, graphs: bool) -> Any:
    onnxruntime = load_onnxruntime()
    if place.provider not in onnxruntime.get_available_providers():
        raise MissingExtra(
            f"variant {variant.name!r} runs on a GPU, but onnxruntime {onnxruntime.__version__} here is the CPU build",
            hint="pip uninstall onnxruntime, then pip install 'tailcut[gpu]'",
        )
    # The CUDA libraries of pip's nvidia packages, where they are installed; what it prints is not for stdout.
    if hasattr(onnxruntime, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
            onnxruntime.preload_dlls()
    options = {"device_id": "0", "use_tf32": str(int(bool(variant.settings.get("tf32", True))))}
    if graphs:
        options["enable_cuda_graph"] = "1"
    # What the GPU has no kernel for runs on the CPU.
    providers = [(place.provider, options), "CPUExecutionProvider"] if place == CUDA else [place.provider]
    try:
        session = onnxruntime.InferenceSession(str(variant.artifact), session_options(threads), providers=providers)
    except Exception as error:  # onnxruntime's own classes share no public base
        raise ArtifactError(
            f"onnxruntime {onnxruntime.__version__} cannot open {variant.artifact} on the GPU "
            f"(variant {variant.name!r}): {first_line(error)}",
            hint=AGAIN,
        ) from error
    if session.get_providers()[0] != place.provider:
        raise ArtifactError(
            f"onnxruntime {onnxruntime.__version__} could not start its CUDA provider for variant {variant.name!r}, "
            "and would run it on the CPU",
            hint="check nvidia-smi and the versions of CUDA and cuDNN that onnxruntime-gpu needs",
        )
    check_nodes(variant, session)
    return session
