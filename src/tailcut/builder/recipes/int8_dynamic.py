"""Recipe "int8-dynamic": weights of MatMul and Gemm as 8-bit integers, activations quantised while the model runs.

One scale serves all rows of a run, so each row runs alone when it is served.

Weights are signed (QInt8), activations unsigned, which is what x86 kernels want. Where the processor's 8-bit products
saturate (see ``HostCapabilities.saturates``) weights keep to 7 bits (reduce_range); the other choice is built as well
and its agreement recorded, so that the evidence shows what saturation does to this model. Fusions that the 8-bit
products do better without are undone before (see ``kernels``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from tailcut.builder.recipes import calibration, kernels
from tailcut.builder.recipes.base import OnnxInt8, Result, Work
from tailcut.builder.recipes.graph_names import Numbered
from tailcut.common.tensors import Array
from tailcut.errors import BuildError, DoesNotApply

OPERATORS = ("MatMul", "Gemm", "Attention")
"""Attention is onnxruntime's fused one, whose weights are its second input as well; see ``fusions``."""


class Int8Dynamic(OnnxInt8):
    """Linear layers with 8-bit weights; activations are quantised row by row."""

    name = "int8-dynamic"
    summary = "INT8 weights, activations quantised per row, so each row runs alone; needs no calibration"

    def make(self, work: Work) -> Result:
        """Quantise the fp32 file every way that fits this processor; keep the closest."""
        return Result(make(work, Path(work.base.path)))


def make(work: Work, base: Path) -> dict[str, object]:
    """Quantise the fp32 file ``base`` to ``work.path``; return the evidence. Errors are those from ``work.base``."""
    output = work.manifest.deployment.judged
    # Row by row, as it will be served.
    cores = work.here.cores
    expected = calibration.answers(work.open(work.base, threads=cores), work.selection, output, chunk_rows=1)

    def error_of(file: Path) -> float:
        opened = work.open_file(file, "onnxruntime", threads=cores)
        given = calibration.answers(opened, work.selection, output, chunk_rows=1)
        return mean_abs_error(expected, given)

    apart = work.folder / f"{work.path.stem}.apart.onnx"
    undone = kernels.apart(base, apart)
    return {**quantize(apart, work.path, saturates=work.here.saturates, error_of=error_of), "undone": undone}


def quantize(base: Path, path: Path, *, saturates: bool, error_of: Callable[[Path], float]) -> dict[str, object]:
    """Quantise ``base`` per channel and per tensor, and keep the one that is closer to it.

    Args:
        base: the fp32 .onnx file.
        path: the file to write.
        saturates: whether this processor needs reduce_range.
        error_of: mean absolute difference of a candidate's scores from the base's, on holdout rows.

    Returns:
        the choice made, every candidate with its error, and counts of quantised operators.

    Raises:
        DoesNotApply: nothing to quantise.
        BuildError: no candidate could be built.
    """
    prepared = path.with_suffix(".prepared.onnx")
    symbolic = prepare(base, prepared)
    candidates = []
    for reduce_range in sorted({saturates, False}):
        for per_channel in (True, False):
            file = path.with_suffix(f".{per_channel:d}{reduce_range:d}.onnx")
            write = partial(_quantize, prepared, file, per_channel, reduce_range)
            choice = {"per_channel": per_channel, "reduce_range": reduce_range}
            candidates.append(calibration.attempt(choice, file, write, error_of))
    usable = [each for each in candidates if not each.failed and each.choice["reduce_range"] == saturates]
    if not usable:
        raise BuildError(
            f"onnxruntime could not quantise the model: {candidates[0].failed or 'no candidate was built'}",
            hint="leave int8-dynamic out with --recipes onnx, and report the model's operators",
        )
    best = min(usable, key=lambda each: each.error)
    counts = _operators(best.file)
    best.file.replace(path)
    return {
        **best.shown,
        "candidates": [each.shown for each in candidates],
        "symbolic_shapes": symbolic,
        "operators": counts,
    }


def mean_abs_error(expected: Array, given: Array) -> float:
    """Mean absolute difference of two outputs."""
    return float(abs(expected.astype("f8") - given.astype("f8")).mean())


def prepare(base: Path, prepared: Path) -> bool:
    """Infer shapes and fold constants; say whether symbolic inference worked, which some exports defeat."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    try:
        quant_pre_process(str(base), str(prepared), skip_symbolic_shape=False, auto_merge=True)
    except Exception:  # sympy and onnx raise many kinds; the fallback does without symbolic shapes
        quant_pre_process(str(base), str(prepared), skip_symbolic_shape=True)
        return False
    return True


def _quantize(prepared: Path, file: Path, per_channel: bool, reduce_range: bool) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(prepared))
    weights = {each.name for each in model.graph.initializer}
    fixed = [node for node in model.graph.node if node.op_type in OPERATORS and weights & set(node.input[1:2])]
    if not fixed:
        raise DoesNotApply(
            "there is nothing to quantise: no MatMul or Gemm of the model has constant weights",
            hint="int8-dynamic is for models that are mostly linear layers; leave it out with --recipes onnx",
        )
    # The exporter's inferred shapes of intermediate values can contradict the quantised graph's.
    del model.graph.value_info[:]
    names = Numbered(model)
    quantize_dynamic(
        model,
        str(file),
        op_types_to_quantize=list(OPERATORS),
        per_channel=per_channel,
        reduce_range=reduce_range,
        weight_type=QuantType.QInt8,
        # A fused operator's result has no type that shape inference knows.
        extra_options={"MatMulConstBOnly": True, "DefaultTensorType": onnx.TensorProto.FLOAT},
    )
    names.restore_file(file)


def _operators(file: Path) -> dict[str, int]:
    import onnx

    kinds = [node.op_type for node in onnx.load(str(file)).graph.node]
    return {
        "integer": sum(
            kind in {"MatMulInteger", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QAttention"} for kind in kinds
        ),
        "float": sum(kind in OPERATORS for kind in kinds),
        "quantize": kinds.count("DynamicQuantizeLinear"),
    }
