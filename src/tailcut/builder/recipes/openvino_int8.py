"""Recipe "openvino-int8": NNCF's post-training quantisation of the OpenVINO model."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.recipes import openvino
from tailcut.builder.recipes.base import TREES, Precision, Recipe, Result, Subject, Work, missing
from tailcut.errors import BuildError
from tailcut.models.runtimes.floats import subnormals_kept

SUBSET_ROWS = 300
_SMOOTH = 0.95
"""Of the outliers' scale that SmoothQuant moves from activations to weights; NNCF's default for MatMul."""

_HOPS = frozenset({"Reshape", "Transpose", "Unsqueeze", "Squeeze", "Convert", "Multiply"})


class OpenVinoInt8(Recipe):
    """The model in OpenVINO, weights and activations in 8 bits."""

    name = "openvino-int8"
    base = ("onnx",)
    runtime = "openvino"
    suffix = ".ovir"
    precision: Precision = "int8"
    summary = "INT8 by NNCF in OpenVINO"

    def why_not(self, subject: Subject, here: HostCapabilities) -> str:
        """Trees have no products to quantise; 8-bit kernels are those of x86."""
        if subject.trees:
            return TREES
        if here.machine not in {"x86_64", "AMD64"}:
            return f"not here: OpenVINO's INT8 kernels are for x86-64, this machine is {here.machine}"
        return missing(here, "openvino", "nncf", extra="openvino-build")

    def make(self, work: Work) -> Result:
        """Quantise.

        Raises:
            BuildError: OpenVINO cannot read the model, or NNCF cannot quantise it.
        """
        with _quiet(), subnormals_kept():
            return Result(_make(work))


def _make(work: Work) -> dict[str, object]:
    model = openvino.read(Path(work.base.path))
    transformer = is_transformer(model)
    try:
        quantised = _quantize(model, work, transformer)
    except Exception as error:  # NNCF and OpenVINO raise many kinds
        raise BuildError(
            f"NNCF cannot quantise the model: {type(error).__name__}: {' '.join(str(error).split())[:300]}",
            hint="leave openvino-int8 out with --recipes onnx,openvino, and report the model's operators",
        ) from error
    openvino.save(quantised, work.path, work.folder)
    return {
        "transformer": transformer,
        "overflow_fix": work.here.saturates,
        "subset_rows": min(SUBSET_ROWS, work.selection.rows),
        "quantised": quantised_operators(quantised),
        "operators": openvino.count(quantised),
    }


def _quantize(model: Any, work: Work, transformer: bool) -> Any:
    import nncf
    from nncf.quantization.advanced_parameters import (
        AdvancedQuantizationParameters,
        AdvancedSmoothQuantParameters,
        OverflowFix,
    )

    rows = min(SUBSET_ROWS, work.selection.rows)
    return nncf.quantize(
        model,
        nncf.Dataset(range(rows), lambda row: work.selection.take(1, row)),
        preset=nncf.QuantizationPreset.MIXED,
        target_device=nncf.TargetDevice.CPU,
        subset_size=rows,
        model_type=nncf.ModelType.TRANSFORMER if transformer else None,
        advanced_parameters=AdvancedQuantizationParameters(
            overflow_fix=OverflowFix.ENABLE if work.here.saturates else OverflowFix.DISABLE,
            smooth_quant_alphas=AdvancedSmoothQuantParameters(matmul=_SMOOTH if transformer else -1),
        ),
    )


def is_transformer(model: Any) -> bool:
    """Tell whether an openvino.Model has attention: a softmax that feeds a product of two activations."""
    return any(
        target.get_node().get_type_name() == "MatMul"
        for operator in model.get_ops()
        if operator.get_type_name() == "Softmax"
        for target in operator.output(0).get_target_inputs()
    )


def quantised_operators(model: Any) -> list[str]:
    """Names of the products and convolutions of an openvino.Model whose first factor is quantised."""
    kinds = {"MatMul", "Convolution", "GroupConvolution"}
    found = []
    for operator in model.get_ordered_ops():
        if operator.get_type_name() not in kinds:
            continue
        source = operator.input_value(0).get_node()
        while source.get_type_name() in _HOPS:
            source = source.input_value(0).get_node()
        if source.get_type_name() == "FakeQuantize":
            found.append(operator.get_friendly_name())
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep NNCF's advice and its dependencies' warnings out of the step's log, and its telemetry off the network."""
    from tailcut.models.runtimes.openvino import load_openvino

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_openvino()  # before nncf, which would load openvino's telemetry
        import nncf

        nncf.set_log_level(logging.ERROR)
        yield
