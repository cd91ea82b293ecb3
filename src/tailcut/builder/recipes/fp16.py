"""Recipe "fp16": the ONNX model in mixed precision, half precision wherever its range is enough, on a GPU.

Inputs and outputs stay as the manifest has them. Half precision ends at 65504: where the plain conversion leaves that
range or the tolerance, sums and powers, which leave it first, are kept in fp32.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.recipes import cuda
from tailcut.builder.recipes.base import Precision, Recipe, Result, Subject, Work, missing
from tailcut.builder.recipes.graph_names import Numbered
from tailcut.common.tensors import Array
from tailcut.errors import BuildError, TailcutError

ABSOLUTE = 0.01
RELATIVE = 0.01
"""Tolerance on selection rows: the largest difference may be ABSOLUTE + RELATIVE * the largest value."""

GUARDED = (
    *("Pow", "Exp", "Log", "Reciprocal", "Softmax", "LogSoftmax", "LayerNormalization", "InstanceNormalization"),
    *("ReduceMean", "ReduceSum", "ReduceL2", "ReduceSumSquare", "Sqrt", "Div"),
)
"""Operators that square, sum or divide: kept in fp32 by the second candidate."""


_CONVERTERS = "_cast_to_fp16"
"""End of the name that the converter gives an fp32 output which it casts down."""


class Fp16(Recipe):
    """Half precision on a GPU by onnxruntime."""

    name = "fp16"
    base = ("onnx",)
    runtime = "onnxruntime"
    suffix = ".onnx"
    precision: Precision = "lower"
    summary = "mixed FP16 and FP32 on a GPU by onnxruntime, a CUDA graph per batch size"

    def why_not(self, subject: Subject, here: HostCapabilities) -> str:
        """A device and onnxruntime for it."""
        return cuda.why_not(subject, here, "onnxruntime-gpu", extra="gpu") or missing(here, "onnx", extra="build")

    def make(self, work: Work) -> Result:
        """Convert, run on the GPU, keep the closest.

        Raises:
            BuildError: no conversion works on the GPU or stays finite.
        """
        expected = cuda.answers(work, work.open(work.base))
        plain = {"provider": "cuda"}

        def answers(file: Path) -> Array:
            return cuda.answers(work, work.open_file(file, self.runtime, plain))

        found = convert(Path(work.base.path), work.path, expected, answers)
        settings, _, evidence = cuda.with_graphs(work, self.runtime, plain, partial(cuda.answers, work))
        return Result({**found, **evidence, "device": work.here.cuda[0]}, settings)


def convert(base: Path, path: Path, expected: Array, answers: Callable[[Path], Array]) -> dict[str, object]:
    """Write ``base`` in mixed precision.

    Args:
        base: the fp32 .onnx file.
        path: the file to write.
        expected: the base's answers on selection rows.
        answers: of a candidate on the same rows.

    Returns:
        the candidates with their differences, the operators kept in fp32, and the tolerance.

    Raises:
        BuildError: no candidate could be converted and run with finite answers.
    """
    tolerance = ABSOLUTE + RELATIVE * float(np.abs(expected.astype(np.float64)).max(initial=0.0))
    attempts: list[_Attempt] = []
    for kept in ((), GUARDED):
        file = path.with_suffix(f".{len(attempts)}.onnx")
        attempts.append(_attempt(base, file, kept, lambda file: cuda.difference(expected, answers(file))))
        if attempts[-1].max_abs <= tolerance:
            break
    best = min(attempts, key=lambda each: each.max_abs)
    if best.max_abs == np.inf:
        why = attempts[-1].failed or "its answers are NaN or infinite"
        raise BuildError(
            f"the model does not work in half precision: {why}",
            hint="bfloat16 has the range of fp32: try recipe bf16, or leave fp16 out with build.recipes",
        )
    best.file.replace(path)
    return {
        "kept_fp32": list(best.kept),
        "difference": {**best.difference, "tolerance": tolerance},
        "candidates": [each.shown for each in attempts],
        "operators": operators(path),
    }


class _Attempt(NamedTuple):
    """A conversion: operators kept in fp32, its file, and the difference of its answers or why there is none."""

    kept: tuple[str, ...]
    file: Path
    difference: Mapping[str, float] = {}
    failed: str = ""

    @property
    def max_abs(self) -> float:
        return self.difference.get("max_abs", np.inf)

    @property
    def shown(self) -> dict[str, object]:
        return {"kept_fp32": list(self.kept), **(self.difference or {"failed": self.failed})}


def _attempt(
    base: Path, file: Path, kept: tuple[str, ...], difference_of: Callable[[Path], Mapping[str, float]]
) -> _Attempt:
    try:
        write(base, file, kept)
        return _Attempt(kept, file, difference_of(file))
    except TailcutError as error:
        return _Attempt(kept, file, failed=error.message)
    except Exception as error:  # the converter raises whatever onnx raises
        return _Attempt(kept, file, failed=f"{type(error).__name__}: {error}")


def write(base: Path, path: Path, kept: tuple[str, ...]) -> None:
    """Convert with onnxruntime's converter; ``kept`` are operators that stay in fp32 beside its own list.

    Raises:
        ValueError: nothing of the model is in fp32.
    """
    import onnx
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    plain = onnx.load(str(base))
    names = Numbered(plain)
    with warnings.catch_warnings():
        # It says which weights are too small or too large for half precision; the comparison judges that.
        warnings.simplefilter("ignore")
        model = convert_float_to_float16(plain, keep_io_types=True, op_block_list=[*DEFAULT_OP_BLOCK_LIST, *kept])
    _unique(model.graph)
    _join(model.graph)
    OnnxModel.graph_topological_sort(model.graph)  # the converter puts its casts at the end
    names.restore(model)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    if not operators(path)["fp16_weights"]:
        raise ValueError("the model has no fp32 weights to convert")


def _unique(graph: Any) -> None:
    """Keep one cast of each weight: the converter adds one per reader, all with the same name."""
    seen: set[str] = set()
    for node in [node for node in graph.node if node.op_type == "Cast"]:
        if node.output[0] in seen:
            graph.node.remove(node)
        seen.add(node.output[0])


def _join(graph: Any) -> None:
    """Let operators that stay in fp32 hand each other fp32.

    The converter casts the output of each down and the input of the next one up again, which is where values between
    the two would leave the range after all.
    """
    import onnx

    if any(attribute.HasField("g") for node in graph.node for attribute in node.attribute):
        return  # the bodies of If and Loop read values of the graph around them by name
    casts = {
        kind: {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Cast" and _to(node) == kind}
        for kind in (onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT)
    }
    down, up = casts[onnx.TensorProto.FLOAT16], casts[onnx.TensorProto.FLOAT]
    # Only what came from fp32: the model's own casts of integers and masks change what a value is.
    given = {value.name for value in graph.input if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    down = {name: source for name, source in down.items() if source in given or source.endswith(_CONVERTERS)}
    kept = {value.name for value in graph.output}
    sources = {name: down[source] for name, source in up.items() if source in down and name not in kept}
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = sources.get(name, name)
    used = kept | {name for node in graph.node for name in node.input}
    # Casts up go first: those down may have had no other reader.
    for readers in (up, down):
        for node in [node for node in graph.node if node.op_type == "Cast" and node.output[0] in readers]:
            if node.output[0] not in used:
                graph.node.remove(node)
        used = kept | {name for node in graph.node for name in node.input}


def _to(node: Any) -> int:
    return next(int(attribute.i) for attribute in node.attribute if attribute.name == "to")


def operators(path: Path) -> dict[str, int]:
    """Count nodes, casts among them, and weights in half precision."""
    import onnx

    graph = onnx.load(str(path)).graph
    return {
        "nodes": len(graph.node),
        "casts": sum(node.op_type == "Cast" for node in graph.node),
        "fp16_weights": sum(each.data_type == onnx.TensorProto.FLOAT16 for each in graph.initializer),
    }
