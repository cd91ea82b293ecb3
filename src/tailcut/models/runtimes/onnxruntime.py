"""The onnxruntime runtime: an .onnx file on the CPU.

``InferenceSession.run`` on plain arrays is used because nothing public beat it. Medians of interleaved rounds at
batch 1 on a 2-core AVX2 machine: a 2-layer transformer 148 us, 157 us with I/O binding, 249 us with OrtValues; an MLP
64-256-1 13.5 us, 18.3 us with I/O binding (14.5 us through this class).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from typing import Any

from tailcut.common.tensors import Array, Arrays
from tailcut.errors import ArtifactError
from tailcut.models.runtimes.base import Openable
from tailcut.models.runtimes.checks import AGAIN, Described, batch_failed, check_tensors, first_line
from tailcut.models.runtimes.floats import subnormals_kept
from tailcut.models.runtimes.priority import LOADERS, aside
from tailcut.models.runtimes.telemetry import keep_off
from tailcut.models.tensor_bytes import objects

_DATATYPES: dict[str, str] = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}

_SPIN_US = 200


def load_onnxruntime() -> Any:
    """Import onnxruntime, its telemetry kept off."""
    keep_off()
    return import_module("onnxruntime")


class OnnxRuntime:
    """An opened ONNX model. Use ``open_runtime``.

    Settings of the variant: "spin_us" and "denormals", see ``session_options``.
    """

    def __init__(self, variant: Openable, *, threads: int) -> None:
        onnxruntime = load_onnxruntime()
        self._name = variant.name
        self._keeps_subnormals = bool(variant.settings.get("denormals", False))
        options = session_options(threads, variant.settings)
        try:
            # The session's own threads take over how this one treats subnormals.
            with subnormals_kept() if self._keeps_subnormals else nullcontext():
                path, providers = str(variant.artifact), ["CPUExecutionProvider"]
                create = partial(onnxruntime.InferenceSession, path, options, providers=providers)
                session = aside(create) if _frees_gil(onnxruntime.__version__) else create()
        except Exception as error:  # onnxruntime's own classes share no public base
            raise ArtifactError(
                f"onnxruntime {onnxruntime.__version__} cannot open {variant.artifact} "
                f"(variant {variant.name!r}): {first_line(error)}",
                hint=AGAIN,
            ) from error
        check_nodes(variant, session)
        self._texts = tuple(tensor.name for tensor in variant.inputs if tensor.datatype == "BYTES")
        self._session: Any = session
        # The session inside the session: its wrapper checks again what the path has checked (12 us of a lone request).
        inner = getattr(session, "_sess", None)
        self._run: Any = (
            inner.run if inner is not None else lambda outputs, inputs, options: session.run(outputs, inputs)
        )

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run one batch; see ``Runtime.run``.

        Raises:
            InferenceError: onnxruntime refused the batch or failed in it.
        """
        try:
            if self._texts:
                inputs = {**inputs, **{name: _as_text(inputs[name]) for name in self._texts}}
            if self._keeps_subnormals or LOADERS:
                # With subnormals where they are wanted, and aside where this thread loads.
                with subnormals_kept() if self._keeps_subnormals else nullcontext():
                    values = aside(self._run, outputs, inputs, None)
            else:
                values = self._run(outputs, inputs, None)
            if len(values) == 1:
                return {outputs[0]: values[0]}
            return dict(zip(outputs, values, strict=True))
        except Exception as error:
            raise batch_failed(self._name, inputs, first_line(error)) from error

    def close(self) -> None:
        """Drop the session; its threads and memory go with it."""
        self._session = self._run = None


def _frees_gil(version: str) -> bool:
    """Whether other threads may run Python while a session is made.

    Seen with 1.31; 1.23 is said to hold the lock all the while (onnxruntime issue 27063).
    """
    return tuple(int(part) for part in version.split(".")[:2]) >= (1, 31)


def _as_text(array: Array) -> Array:
    """Return an array of text: of bytes onnxruntime would make their representation, "b'...'", without a word."""
    values = [value.decode() if isinstance(value, bytes) else value for value in array.ravel().tolist()]
    return objects(values, array.shape)


def session_options(threads: int, settings: Mapping[str, Any] | None = None) -> Any:
    """Return the SessionOptions that every session of tailcut runs with.

    Args:
        threads: inside one operator.
        settings: "spin_us", how long idle threads spin, in microseconds (0: not at all; 200 with several threads, 0
            with one, where it is not said); "denormals", whether subnormal floats are computed as they are.

    One operator at a time (latency). Idle threads do not spin: spinning takes the cores that the server and its
    neighbours need; with several threads they spin for a bounded 200 us, about the gap between two operators.
    Denormals count as zero: pruned and decayed weights otherwise run up to 30 times slower. onnxruntime does that once
    per process: the thread that opens the first session, and those that it starts later, flush subnormals from then
    on. So open the first session in the main thread, before the executors' threads are started.
    """
    onnxruntime = load_onnxruntime()
    settings = settings or {}
    spin_us = int(settings.get("spin_us", _SPIN_US if threads > 1 else 0))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin_us else "0")
    if spin_us:
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(spin_us))
    options.add_session_config_entry("session.set_denormal_as_zero", "0" if settings.get("denormals") else "1")
    options.log_severity_level = 3
    return options


_IDENTITY = bytes.fromhex(
    "080812003a370a100a017812017922084964656e746974791201675a0f0a0178120a0a08080112040a020801"
    "620f0a0179120a0a08080112040a02080142040a001011"
)
"""The smallest ONNX model: one float in, the same float out."""


def flush_subnormals() -> None:
    """Make this thread, and every thread that it starts from now on, count subnormal floats as zero.

    onnxruntime does so once per process, for the thread that opens the first session (seen with 1.31): call this in
    the thread that starts the executors, before anything else opens a session, or they run at denormal speed.
    """
    load_onnxruntime().InferenceSession(_IDENTITY, session_options(1), providers=["CPUExecutionProvider"])


def check_nodes(variant: Openable, session: Any) -> None:
    """Compare the manifest's tensors with a session's; see ``check_tensors``."""
    inputs, outputs = session.get_inputs(), session.get_outputs()
    check_tensors(variant, "input", variant.inputs, described(inputs), [node.name for node in inputs])
    check_tensors(variant, "output", variant.outputs, described(outputs), [node.name for node in outputs])


def described(nodes: Sequence[Any]) -> dict[str, Described]:
    """Datatypes and shapes of a session's inputs or outputs, by name."""
    found: dict[str, Described] = {}
    for node in nodes:
        shape = tuple(dim if isinstance(dim, int) else -1 for dim in node.shape)
        # onnxruntime shows an unknown rank as no dimensions
        found[node.name] = (_DATATYPES.get(node.type, node.type), shape or None)
    return found
