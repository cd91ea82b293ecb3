"""Recipe "int8-static": weights and activations as 8-bit integers, with ranges from the selection split.

Activations are unsigned and weights signed, which is what x86 kernels want (quantize_static's own default is signed
activations). Only operators that have 8-bit kernels worth their conversions are quantised; the products inside
attention, whose two factors are both activations, stay in float. Ranges come from ``calibration``, every method is
tried, and the one whose answers are closest on selection rows is kept.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.recipes import calibration
from tailcut.builder.recipes.base import OnnxInt8, Result, Work
from tailcut.builder.recipes.graph_names import Numbered, name_nodes
from tailcut.builder.recipes.int8_dynamic import mean_abs_error, prepare
from tailcut.errors import BuildError, DoesNotApply
from tailcut.models.runtimes.telemetry import keep_off

ROWS = 500
"""Rows that calibrate, at most; ranges no longer move after a few hundred."""

_INTEGER = frozenset(
    {"QLinearConv", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat", "MatMulInteger", "ConvInteger", "QLinearAdd"}
)
_FLOAT = frozenset({"Conv", "FusedConv", "MatMul", "FusedMatMul", "Gemm", "FusedGemm", "TransposeMatMul"})


class Int8Static(OnnxInt8):
    """Linear layers and convolutions in 8 bits, activations by calibrated ranges."""

    name = "int8-static"
    summary = "INT8 weights and activations, ranges calibrated on the selection split"

    def make(self, work: Work) -> Result:
        """Calibrate once, quantise by every method, keep the closest.

        Raises:
            BuildError: nothing to quantise, or no candidate could be built.
        """
        output = work.manifest.deployment.judged
        cores = work.here.cores
        expected = calibration.answers(work.open(work.base, threads=cores), work.selection, output)

        def error_of(file: Path) -> float:
            opened = work.open_file(file, self.runtime, threads=cores)
            return mean_abs_error(expected, calibration.answers(opened, work.selection, output))

        return Result(
            quantize(Path(work.base.path), work.path, work.selection, saturates=work.here.saturates, error_of=error_of)
        )


def quantize(
    base: Path, path: Path, selection: Holdout, *, saturates: bool, error_of: Callable[[Path], float]
) -> dict[str, object]:
    """Quantise ``base`` with every calibration method and keep the one that is closest to it.

    Args:
        base: the fp32 .onnx file.
        path: the file to write; work files go beside it.
        selection: rows that calibrate.
        saturates: whether weights must keep to 7 bits here (reduce_range).
        error_of: mean absolute difference of a candidate's answers from the base's.

    Returns:
        the choice made, every candidate with its error, rows, and counts of operators as onnxruntime fuses them here.

    Raises:
        BuildError: nothing to quantise, or no candidate could be built.
    """
    import onnx

    prepared = path.with_suffix(".prepared.onnx")
    symbolic = prepare(base, prepared)
    model = onnx.load(str(prepared))
    plan = plan_of(model)
    onnx.save(model, str(prepared))
    rows = min(ROWS, selection.rows)
    spreads = calibration.observe(prepared, plan.tensors, calibration.batches(selection, rows), path.parent)

    def candidate(method: str, outputs: bool) -> calibration.Attempt:
        file = path.with_suffix(f".{method.replace(' ', '-')}-{outputs:d}.onnx")
        found = calibration.ranges(spreads, method)
        write = partial(_quantize, prepared, file, plan, found, saturates, outputs)
        return calibration.attempt({"method": method, "outputs_quantised": outputs}, file, write, error_of)

    best, candidates = _best(candidate, plan.outputs)
    best.file.replace(path)
    return {
        **best.choice,
        "reduce_range": saturates,
        "per_channel": True,
        "weights_of_one_scale": len(plan.stacked),
        "calibration_rows": rows,
        "candidates": [each.shown for each in candidates],
        "symbolic_shapes": symbolic,
        "attention_products_left": len(plan.products),
        "mask_constants_tamed": plan.masks,
        "operators": operators(path),
    }


def _best(
    candidate: Callable[[str, bool], calibration.Attempt], outputs: bool
) -> tuple[calibration.Attempt, list[calibration.Attempt]]:
    """Try every method, and the other choice of ``outputs`` with the best; return the best and all of them."""
    candidates = {method: candidate(method, outputs) for method in calibration.METHODS}
    method, best = min(candidates.items(), key=lambda each: each[1].error)
    if best.failed:
        raise BuildError(
            f"onnxruntime could not quantise the model: {best.failed}",
            hint="leave int8-static out with --recipes onnx, and report the model's operators",
        )
    other = candidate(method, not outputs)
    return min((best, other), key=lambda each: each.error), [*candidates.values(), other]


def _quantize(
    prepared: Path,
    file: Path,
    plan: QuantisationPlan,
    found: Mapping[str, calibration.Range],
    saturates: bool,
    outputs: bool,
) -> None:
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData, save_tensors_data

    model = onnx.load(str(prepared))
    names = Numbered(model)
    known = {names.values[name]: tuple(np.array(value, np.float32) for value in pair) for name, pair in found.items()}
    whole = {"quant_type": QuantType.QInt8, "reduce_range": saturates}
    cache = file.with_suffix(".json")
    save_tensors_data(TensorsData(CalibrationMethod.MinMax, known), cache)
    with _quiet():
        quantize_static(
            model,
            str(file),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(plan.kinds),
            per_channel=True,
            reduce_range=saturates,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=[names.nodes[name] for name in plan.products],
            calibrate_method=CalibrationMethod.MinMax,
            calibration_cache_path=cache,
            extra_options={
                "QDQOpTypePerChannelSupportToAxis": {"MatMul": 1},
                "TensorQuantOverrides": {names.values[name]: [dict(whole)] for name in plan.stacked},
                "OpTypesToExcludeOutputQuantization": [] if outputs else list(LINEAR),
            },
        )
    cache.unlink()
    names.restore_file(file)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The quantizer advises and prints; what matters of it is in the evidence."""
    level = logging.root.level
    logging.root.setLevel(logging.ERROR)
    with open(os.devnull, "w", encoding="utf-8") as nothing, contextlib.redirect_stdout(nothing):
        try:
            yield
        finally:
            logging.root.setLevel(level)


def operators(file: Path) -> dict[str, int]:
    """Count operators as onnxruntime fuses them on this machine: in 8 bits, in float, and conversions between."""
    import onnx

    keep_off()
    import onnxruntime

    from tailcut.models.runtimes.onnxruntime import session_options

    optimized = file.with_suffix(".optimized.onnx")
    options = session_options(1)
    options.optimized_model_filepath = str(optimized)
    onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    kinds = Counter(node.op_type for node in onnx.load(str(optimized)).graph.node)
    optimized.unlink()
    return {
        "integer": sum(kinds[kind] for kind in _INTEGER),
        "float": sum(kinds[kind] for kind in _FLOAT),
        "quantize": kinds["QuantizeLinear"],
        "dequantize": kinds["DequantizeLinear"],
    }


# -- What is quantised -------------------------------------------------------------------------------------------------


LINEAR = ("MatMul", "Gemm")
CONVOLUTIONAL = (
    *("Conv", "Gemm", "MatMul", "Add", "Concat", "Relu", "Clip"),
    *("MaxPool", "AveragePool", "GlobalAveragePool", "Flatten"),
)
_MASKED, _MASK = -1e30, -1e4
"""Constants below the first mask something out; the second masks as well and leaves a range that 8 bits can cut."""


@dataclass(frozen=True)
class QuantisationPlan:
    """What is quantised.

    Attributes:
        kinds: operators.
        products: names of the nodes whose two factors are both activations (inside attention); they stay in float.
        tensors: FP32 activations to observe.
        masks: number of mask constants that were tamed.
        outputs: whether linear layers give their sums in 8 bits too. As float there is one rounding less, and no
            conversion before the addition after it; convolutions follow one another in 8 bits throughout.
        stacked: weights of MatMul that are stacks of matrices; one scale for all of each. The quantizer would give
            scales along axis 1, which are not a stack's columns, and onnxruntime's kernels refuse those ("b zero point
            is not valid").
    """

    kinds: tuple[str, ...]
    products: tuple[str, ...]
    tensors: tuple[str, ...]
    masks: int
    outputs: bool
    stacked: tuple[str, ...]


def plan_of(model: Any) -> QuantisationPlan:
    """Decide what is quantised in an onnx.ModelProto; names its nodes and tames its masks in place.

    Raises:
        DoesNotApply: there is nothing to quantise.
    """
    graph = model.graph
    name_nodes(graph)
    constants = {each.name for each in graph.initializer}
    constants |= {name for node in graph.node if node.op_type == "Constant" for name in node.output}
    kinds = CONVOLUTIONAL if any(node.op_type == "Conv" for node in graph.node) else LINEAR
    products = {node.name for node in graph.node if node.op_type in LINEAR and not constants & set(node.input[:2])}
    chosen = [node for node in graph.node if node.op_type in kinds and node.name not in products]
    if not any(node.op_type in {*LINEAR, "Conv"} for node in chosen):
        raise DoesNotApply(
            "there is nothing to quantise: no Conv, MatMul or Gemm of the model has constant weights",
            hint="int8-static is for linear layers and convolutions; leave it out with --recipes onnx",
        )
    masks = _tame_masks(graph)
    floats = _floats(model) - constants
    tensors = dict.fromkeys(name for node in chosen for name in (*node.input, *node.output) if name in floats)
    return QuantisationPlan(
        kinds,
        tuple(sorted(products)),
        tuple(tensors),
        masks,
        kinds is CONVOLUTIONAL,
        _stacked(chosen, graph.initializer),
    )


def _stacked(chosen: Iterable[Any], weights: Iterable[Any]) -> tuple[str, ...]:
    """Names of the weights that only one scale fits; see ``QuantisationPlan.stacked``."""
    stacks = {each.name for each in weights if len(each.dims) > 2}
    return tuple(sorted({node.input[1] for node in chosen if node.op_type == "MatMul" and node.input[1] in stacks}))


def _floats(model: Any) -> set[str]:
    """Names of the FP32 tensors, as shape inference knows them."""
    import onnx

    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # the exporter's own shapes can contradict onnx's inference; they serve as well
        graph = model.graph
    values = (*graph.value_info, *graph.input, *graph.output)
    return {value.name for value in values if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}


def _tame_masks(graph: Any) -> int:
    """Replace the constants of an attention mask (about -3.4e38, or -inf), which would take up all of a range."""
    import onnx

    if not any(node.op_type == "Softmax" for node in graph.node):
        return 0
    masking = {name for node in graph.node if node.op_type in {"Where", "Mul", "Add"} for name in node.input}
    found = 0
    for tensor in graph.initializer:
        if tensor.name not in masking or tensor.data_type != onnx.TensorProto.FLOAT:
            continue
        values = onnx.numpy_helper.to_array(tensor)
        if (values < _MASKED).any():
            tamed = np.where(values < _MASKED, np.float32(_MASK), values).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(tamed, tensor.name))
            found += 1
    return found
