"""Recipe "tensorrt": an engine for this GPU, half precision put into the ONNX graph first, a profile per bucket.

TensorRT 11 is strongly typed: it runs each operator in the type that the graph gives it, so that precision is decided
before (TensorRT 11 release notes: weak typing and its builder flags are gone), by recipe fp16's conversion. An engine
whose answers are not finite is built again from fp32.

Engines are never looked up by the name or the structure of a model, which has given wrong answers (onnxruntime issues
6455, 32254): the key has a hash of the ONNX file with its weights, and everything else that the engine depends on.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.recipes import cuda, fp16
from tailcut.builder.recipes.base import Precision, Recipe, Result, Subject, Work, missing
from tailcut.common.tensors import Array
from tailcut.errors import BuildError, TailcutError
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes import bucketed
from tailcut.models.runtimes._device import Device, load_cudart
from tailcut.models.runtimes.tensorrt import load_tensorrt
from tailcut.registry.evidence import Settings
from tailcut.system.machine import read_machine

WORKSPACE_BYTES = 4 << 30

Shapes = dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]
"""Least, usual and largest shape of each input."""


class TensorRT(Recipe):
    """An engine of this GPU and this version of TensorRT."""

    name = "tensorrt"
    base = ("onnx",)
    runtime = "tensorrt"
    suffix = ".engine"
    precision: Precision = "lower"
    summary = "TensorRT engine for this GPU, FP16 where it suffices, a profile and CUDA graph per batch size"

    def why_not(self, subject: Subject, here: HostCapabilities) -> str:
        """A device, TensorRT, and what converts the graph."""
        lacks = cuda.why_not(subject, here, "tensorrt", "cuda-bindings", extra="tensorrt")
        return lacks or missing(here, "onnx", extra="build")

    def make(self, work: Work) -> Result:
        """Build from half precision; from fp32 where that does not work.

        Raises:
            BuildError: TensorRT cannot build or run either; names the operator where it is one.
        """
        expected = cuda.answers(work, work.open(work.base))
        attempts: list[dict[str, object]] = []
        failed = ""
        for precision in ("fp16", "fp32"):
            try:
                graph, how = typed(work, precision)
                found, settings = _engine(work, graph, precision)
                given = cuda.answers(work, work.open_file(work.path, self.runtime, settings))
                difference = cuda.difference(expected, given)
            except TailcutError as error:
                failed = error.message
                attempts.append({"precision": precision, "failed": failed})
                continue
            failed = ""
            attempts.append({"precision": precision, "converted_by": how, **difference})
            if difference["max_abs"] < np.inf:
                return Result({**found, "difference": difference, "attempts": attempts}, settings)
        raise BuildError(
            f"TensorRT could not build the model: {failed or 'its answers are NaN or infinite'}",
            hint="leave tensorrt out with build.recipes; onnx-cuda and fp16 run operators that TensorRT lacks",
        )


def typed(work: Work, precision: str) -> tuple[Path, str]:
    """Return a graph whose types are what TensorRT shall compute in, and what made it.

    Raises:
        BuildError: the conversion failed.
    """
    base = Path(work.base.path)
    if precision == "fp32":
        return base, "nothing"
    path = work.folder / "tensorrt-typed.onnx"
    try:
        fp16.write(base, path, fp16.GUARDED)
    except Exception as error:  # the converter raises whatever onnx raises
        raise BuildError(f"conversion to half precision failed: {type(error).__name__}: {error}") from error
    return path, "onnxruntime float16"


def shapes(inputs: tuple[TensorSpec, ...], rows: int, seen: Mapping[str, Array]) -> Shapes:
    """Decide a profile: exactly ``rows`` rows; free dimensions from 1 up to what the holdout shows.

    Args:
        inputs: the manifest's.
        rows: of the bucket.
        seen: holdout rows, the longest ones among them.
    """
    found = {}
    for tensor in inputs:
        longest = seen[tensor.name].shape
        most = (rows, *(longest[place] if size == -1 else size for place, size in enumerate(tensor.shape) if place))
        least = (rows, *(1 if size == -1 else size for size in tensor.shape[1:]))
        usual = (rows, *(max(1, (low + high) // 2) for low, high in zip(least[1:], most[1:], strict=True)))
        found[tensor.name] = (least, usual, most)
    return found


def _engine(work: Work, graph: Path, precision: str) -> tuple[dict[str, object], Settings]:
    """Build the engine; return evidence and the variant's settings."""
    tensorrt = load_tensorrt()
    deployment = work.manifest.deployment
    sizes = list(bucketed.sizes(deployment.batching.max_rows))
    profiles = [shapes(deployment.model.inputs, rows, work.selection.inputs) for rows in sizes]
    device = Device(load_cudart())
    key: dict[str, str] = {
        "onnx_sha256": hashlib.sha256(graph.read_bytes()).hexdigest(),
        "tensorrt": tensorrt.__version__,
        **device.describe(),
        "driver": read_machine().driver,
        "precision": precision,
        "profiles": hashlib.sha256(msgspec.json.encode(profiles)).hexdigest(),
    }
    device.close()
    timings = timing_file(work.manifest.directory, key)
    work.path.write_bytes(build(tensorrt, graph.read_bytes(), profiles, timings))
    return {"key": key, "profiles": profiles}, {"buckets": sizes, "key": key}


def timing_file(folder: Path, key: Mapping[str, str]) -> Path:
    """Where this GPU's kernel timings are kept between builds: they hold for one version, device and driver."""
    parts = "\n".join(key[name] for name in ("tensorrt", "gpu", "capability", "cuda", "driver"))
    return folder / ".tailcut" / "tensorrt" / f"{hashlib.sha256(parts.encode()).hexdigest()[:16]}.timings"


def build(tensorrt: Any, graph: bytes, profiles: list[Shapes], timings: Path) -> bytes:
    """Build an engine.

    Args:
        tensorrt: the module.
        graph: the .onnx file.
        profiles: shapes of each bucket.
        timings: cache of kernel timings; read where it is there, and written again.

    Raises:
        BuildError: the parser refuses an operator, or the builder finds no kernels.
    """
    log = _logger(tensorrt)
    builder = tensorrt.Builder(log)
    network = builder.create_network(0)
    parser = tensorrt.OnnxParser(network, log)
    if not parser.parse(graph):
        raise BuildError(_parser_error(parser))
    config = builder.create_builder_config()
    config.set_memory_pool_limit(tensorrt.MemoryPoolType.WORKSPACE, WORKSPACE_BYTES)
    cache = config.create_timing_cache(timings.read_bytes() if timings.exists() else b"")
    config.set_timing_cache(cache, False)
    for each in profiles:
        profile = builder.create_optimization_profile()
        for name, (least, usual, most) in each.items():
            profile.set_shape(name, least, usual, most)
        if config.add_optimization_profile(profile) < 0:
            raise BuildError(f"TensorRT refuses the shapes {each}")
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise BuildError(f"TensorRT built no engine: {log.last or 'it gave no reason'}")
    _keep(timings, bytes(config.get_timing_cache().serialize()))
    return bytes(engine)


def _keep(timings: Path, found: bytes) -> None:
    timings.parent.mkdir(parents=True, exist_ok=True)
    written = timings.with_suffix(f".{os.getpid()}")
    written.write_bytes(found)
    written.replace(timings)


def _logger(tensorrt: Any) -> Any:
    """Make a logger that remembers the last error: it is the only reason that the builder gives."""

    class Log(tensorrt.ILogger):  # type: ignore[misc]  # a class of a module that is only known now
        def __init__(self) -> None:
            tensorrt.ILogger.__init__(self)
            self.last = ""

        def log(self, severity: Any, message: str) -> None:
            if severity in {tensorrt.ILogger.ERROR, tensorrt.ILogger.INTERNAL_ERROR}:
                self.last = message.strip()

    return Log()


def _parser_error(parser: Any) -> str:
    if not parser.num_errors:
        return "TensorRT cannot read the ONNX graph"
    error = parser.get_error(0)
    return f"TensorRT cannot take operator {error.node_operator()} (node {error.node_name()!r}): {error.desc()}"
