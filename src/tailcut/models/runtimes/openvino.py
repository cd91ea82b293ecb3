"""The OpenVINO runtime on the CPU: an .onnx file, or OpenVINO's own format in one file (.ovir).

An .ovir file is a ZIP archive, nothing compressed, of model.xml and model.bin; it is read into memory and no part of
it is written to disk. One request per runtime is used again and again; its outputs are copied, because the next batch
overwrites them.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.common.tensors import Array, Arrays
from tailcut.errors import ArtifactError
from tailcut.models.runtimes.base import Openable, OpenOptions
from tailcut.models.runtimes.checks import (
    AGAIN,
    Described,
    batch_failed,
    check_tensors,
    first_line,
    load_library,
    refuse_text,
)
from tailcut.models.runtimes.floats import subnormals_kept
from tailcut.models.runtimes.priority import LOADERS, aside

GRAPH, WEIGHTS = "model.xml", "model.bin"

_DATATYPES = {
    "boolean": "BOOL",
    "u8": "UINT8",
    "u16": "UINT16",
    "u32": "UINT32",
    "u64": "UINT64",
    "i8": "INT8",
    "i16": "INT16",
    "i32": "INT32",
    "i64": "INT64",
    "f16": "FP16",
    "f32": "FP32",
    "f64": "FP64",
    "string": "BYTES",
}


class OpenVinoRuntime:
    """An opened model. Use ``open_runtime``.

    Settings of the variant: see ``properties``.
    """

    def __init__(self, variant: Openable, options: OpenOptions) -> None:
        openvino = load_openvino()
        self._name = variant.name
        refuse_text(variant, "OpenVINO")
        try:
            with subnormals_kept():
                core = openvino.Core()
                model, self._weights = read_model(openvino, core, variant.artifact)
                compiled = aside(core.compile_model, model, "CPU", properties(options.threads, variant.settings))
        except ArtifactError:
            raise
        except Exception as error:  # OpenVINO raises RuntimeError and TypeError alike
            raise ArtifactError(
                f"OpenVINO {openvino.__version__.partition('-')[0]} cannot open {variant.artifact} "
                f"(variant {variant.name!r}): {_reason(error)}",
                hint=AGAIN,
            ) from error
        for kind, wanted, ports in (
            ("input", variant.inputs, compiled.inputs),
            ("output", variant.outputs, compiled.outputs),
        ):
            check_tensors(variant, kind, wanted, _described(ports), [port.get_any_name() for port in ports])
        wanted_names = {tensor.name for tensor in variant.inputs}
        self._inputs = [
            (place, next(iter(wanted_names & port.get_names()))) for place, port in enumerate(compiled.inputs)
        ]
        self._places = {name: place for place, port in enumerate(compiled.outputs) for name in port.get_names()}
        self._tensor: Any = openvino.Tensor
        self._request: Any = compiled.create_infer_request()

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run one batch; see ``Runtime.run``. The GIL is free while the model runs.

        Raises:
            InferenceError: OpenVINO refused the batch or failed in it.
        """
        request = self._request
        try:
            # The request reads the arrays where they are: they live until the batch is done.
            held = [(place, _plain(inputs[name])) for place, name in self._inputs]
            for place, array in held:
                request.set_input_tensor(place, self._tensor(array, shared_memory=True))
            with subnormals_kept():
                aside(request.infer) if LOADERS else request.infer()
            return {name: request.get_output_tensor(self._places[name]).data.copy() for name in outputs}
        except Exception as error:
            raise batch_failed(self._name, inputs, _reason(error)) from error

    def close(self) -> None:
        """Drop the request and the compiled model; threads and memory go with them."""
        self._request = self._weights = None


def load_openvino() -> Any:
    """Import openvino with its telemetry switched off.

    The package sends a usage event over the network when it is imported, and so does nncf when it quantises, unless
    openvino_telemetry cannot be imported; so that name is blocked in this process.

    Raises:
        MissingExtra: openvino is not installed.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None blocks an import
    return load_library("openvino", "the openvino runtime needs the openvino package")


def properties(threads: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return OpenVINO's properties: one stream for latency, full precision, threads that the scheduler may move.

    Args:
        threads: for one batch.
        settings: "hint" ("LATENCY" or "THROUGHPUT"), "pinning" (whether threads stay on their cores) and "precision"
            ("f32", "bf16" or "f16", in which fp32 layers are computed); those in capitals are OpenVINO's own and go
            before all others.

    CPU_DENORMALS_OPTIMIZATION stays off: it sets the very flag that ``subnormals_kept`` guards against, in the thread
    that compiles, and leaves it there (2026.4). Pinning stays off because several processes would pin to the same
    cores (openvino issue 32444).
    """
    return {
        "PERFORMANCE_HINT": settings.get("hint", "LATENCY"),
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": bool(settings.get("pinning", False)),
        "INFERENCE_PRECISION_HINT": settings.get("precision", "f32"),
        **{name: value for name, value in settings.items() if name.isupper()},
    }


def pack(graph: Path, weights: Path, path: Path) -> None:
    """Write an .ovir file from OpenVINO's two files. The same model gives the same bytes, whenever it is packed."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, file in ((GRAPH, graph), (WEIGHTS, weights)):
            with file.open("rb") as source, archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as target:
                while chunk := source.read(1 << 20):
                    target.write(chunk)


def read_model(openvino: Any, core: Any, artifact: Path) -> tuple[Any, Any]:
    """Read a model; weights that it does not own come beside it and must outlive it."""
    if artifact.suffix == ".onnx":
        return core.read_model(str(artifact)), None
    try:
        with zipfile.ZipFile(artifact) as archive:
            size_bytes = {entry.filename: entry.file_size for entry in archive.infolist()}
            if set(size_bytes) != {GRAPH, WEIGHTS}:
                raise zipfile.BadZipFile(f"it holds {sorted(size_bytes)}, expected {GRAPH} and {WEIGHTS}")
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise zipfile.BadZipFile("its parts are compressed, expected uncompressed parts")
            graph = archive.read(GRAPH)
            weights = np.empty(size_bytes[WEIGHTS], np.uint8)
            with archive.open(WEIGHTS) as part:
                _fill(part, weights.data)
    except (OSError, zipfile.BadZipFile, EOFError) as error:
        raise ArtifactError(
            f"{artifact} is not an OpenVINO model in one file: {first_line(error)}", hint=AGAIN
        ) from error
    return core.read_model(graph, openvino.Tensor(weights, shared_memory=True)), weights


def _fill(part: Any, view: memoryview) -> None:
    done = 0
    while done < len(view):
        read = part.readinto(view[done : done + (1 << 24)])
        if not read:
            raise EOFError(f"{WEIGHTS} ends after {done} of {len(view)} bytes")
        done += read
    part.read(1)  # at its end the part's checksum is compared


def _described(ports: Sequence[Any]) -> dict[str, Described]:
    found: dict[str, Described] = {}
    for port in ports:
        kind, shape = port.element_type.get_type_name(), port.partial_shape
        dimensions = None if shape.rank.is_dynamic else tuple(-1 if d.is_dynamic else d.get_length() for d in shape)
        for name in port.get_names():
            found[name] = (_DATATYPES.get(kind, kind), dimensions)
    return found


def _plain(array: Array) -> Array:
    """OpenVINO shares only memory that is contiguous and may be written."""
    return array if array.flags.c_contiguous and array.flags.writeable else array.copy()


def _reason(error: Exception) -> str:
    """The last telling line: OpenVINO's first ones name its own source files."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and "src/" not in line[:60]]
    return lines[0] if lines else first_line(error) or type(error).__name__
