"""Recipe "openvino-int8": NNCF's post-training quantisation of the OpenVINO model.

Where the first result loses more than the budget on the selection split, layers are given back their float precision,
the most harmful first (NNCF's accuracy control), on that split alone: the verdict comes from rows it never saw.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.recipes import openvino
from tailcut.builder.recipes.base import TREES, Result, Subject, Work, missing
from tailcut.builder.recipes.int8_dynamic import mean_abs_error
from tailcut.common.tensors import Array
from tailcut.errors import BuildError
from tailcut.gate.metrics import METRICS, drop
from tailcut.models.runtimes.floats import subnormals_kept

SUBSET_ROWS = 300
JUDGED_ROWS = 2000
"""Rows of the selection split that decide whether layers are reverted."""

_BATCH_ROWS = 8
_RANKED_BATCHES = 32
_MOST_REVERTED = 12
"""Groups of layers; a model that needs more of them in float wins nothing."""

_SMOOTH = 0.95
"""Of the outliers' scale that SmoothQuant moves from activations to weights; NNCF's default for MatMul."""

_SHARE_OF_STEP = 0.5
"""Of the step's time that reverting may take: killed with the step, the first result would be lost too."""

_HOPS = frozenset({"Reshape", "Transpose", "Unsqueeze", "Squeeze", "Convert", "Multiply"})


class OpenVinoInt8:
    """The model in OpenVINO, weights and activations in 8 bits."""

    name = "openvino-int8"
    base = ("onnx",)
    runtime = "openvino"
    suffix = ".ovir"
    summary = "INT8 by NNCF in OpenVINO; layers that lose too much quality stay in float"

    def why_not(self, subject: Subject, here: HostCapabilities) -> str:
        """Trees have no products to quantise; 8-bit kernels are those of x86."""
        if subject.trees:
            return TREES
        if here.machine not in {"x86_64", "AMD64"}:
            return f"not here: OpenVINO's INT8 kernels are for x86-64, this machine is {here.machine}"
        return missing(here, "openvino", "nncf", extra="openvino-build")

    def make(self, work: Work) -> Result:
        """Quantise; revert layers where the budget is missed.

        Raises:
            BuildError: OpenVINO cannot read the model, or NNCF cannot quantise it.
        """
        with _quiet(), subnormals_kept():
            return Result(_make(work))


@dataclass(frozen=True)
class _Judge:
    """How much worse a model is than the source on the selection split, as a share of the budget."""

    rows: Holdout
    source: Array
    budget: Mapping[str, float]

    def drops(self, found: Array) -> dict[str, float]:
        """Drop by metric; a metric that these rows do not allow is left out."""
        drops = {}
        for name in self.budget:
            truth = self.source if name == "cosine" else self.rows.labels
            if truth is None:
                continue
            try:
                drops[name] = drop(name, METRICS[name](truth, self.source), METRICS[name](truth, found))
            except ValueError:
                continue
        return drops

    def excess(self, found: Array) -> float:
        """The worst drop as a share of its budget: above 1 the budget is missed."""
        return max((value / self.budget[name] for name, value in self.drops(found).items()), default=0.0)


def _make(work: Work) -> dict[str, Any]:
    output = work.manifest.deployment.judged
    judge = _judge(work, output)
    begun = time.perf_counter()
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
    first = _measured(work, judge, work.path, output)
    found: dict[str, Any] = {
        "transformer": transformer,
        "overflow_fix": work.here.saturates,
        "subset_rows": min(SUBSET_ROWS, work.selection.rows),
        "quantised": quantised_operators(quantised),
        "operators": openvino.count(quantised),
        "seconds": time.perf_counter() - begun,
        "budget": dict(judge.budget),
        "first": first,
    }
    if first["excess"] > 1.0:
        found["reverted"] = _revert(work, judge, output, transformer, found["quantised"], first)
    return found


def _judge(work: Work, output: str) -> _Judge:
    from tailcut.builder.quality import judging, scoring

    rows = work.selection.take(min(JUDGED_ROWS, work.selection.rows))
    places = slice(0, JUDGED_ROWS)
    labels = None if work.selection.labels is None else work.selection.labels[places]
    kept = Holdout(inputs=rows, labels=labels, padding=work.selection.padding)
    source = scoring.scores(work.open(work.base, threads=work.here.cores), kept, output, alone=work.base.rows_alone)
    budget = judging.standard(judging.budget_of(work.manifest, work.selection, source), work.manifest)
    return _Judge(kept, source, budget)


def _measured(work: Work, judge: _Judge, path: Path, output: str) -> dict[str, Any]:
    from tailcut.builder.quality import scoring

    runtime = work.open_file(path, "openvino", threads=work.here.cores)
    found = scoring.scores(runtime, judge.rows, output, alone=work.base.rows_alone)
    runtime.close()
    return {
        "mean_abs_error": mean_abs_error(judge.source, found),
        "drops": judge.drops(found),
        "excess": judge.excess(found),
    }


def _options(work: Work, transformer: bool) -> dict[str, Any]:
    """Options of both of NNCF's doors, but for the name of the last one."""
    import nncf

    return {
        "preset": nncf.QuantizationPreset.MIXED,
        "target_device": nncf.TargetDevice.CPU,
        "subset_size": min(SUBSET_ROWS, work.selection.rows),
        "model_type": nncf.ModelType.TRANSFORMER if transformer else None,
    }


def _advanced(work: Work, *, smooth: bool) -> Any:
    from nncf.quantization.advanced_parameters import (
        AdvancedQuantizationParameters,
        AdvancedSmoothQuantParameters,
        OverflowFix,
    )

    return AdvancedQuantizationParameters(
        overflow_fix=OverflowFix.ENABLE if work.here.saturates else OverflowFix.DISABLE,
        smooth_quant_alphas=AdvancedSmoothQuantParameters(matmul=_SMOOTH if smooth else -1),
    )


def _quantize(model: Any, work: Work, transformer: bool) -> Any:
    import nncf

    return nncf.quantize(
        model,
        nncf.Dataset(range(min(SUBSET_ROWS, work.selection.rows)), lambda row: work.selection.take(1, row)),
        **_options(work, transformer),
        advanced_parameters=_advanced(work, smooth=transformer),
    )


def _revert(
    work: Work, judge: _Judge, output: str, transformer: bool, quantised: list[str], first: Mapping[str, Any]
) -> dict[str, Any]:
    """Let NNCF give layers back their float precision; keep its result where that is better than the first."""
    begun = time.perf_counter()
    path = work.path.with_suffix(".reverted.ovir")
    try:
        model = _controlled(work, judge, output, transformer)
    except Exception as error:  # the first result stands
        return {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", "kept": False}
    openvino.save(model, path, work.folder)
    second = _measured(work, judge, path, output)
    kept = second["excess"] < first["excess"]
    if kept:
        path.replace(work.path)
    left = set(quantised_operators(model))
    return {
        **second,
        "kept": kept,
        "layers": sorted(name for name in quantised if name not in left),
        "seconds": time.perf_counter() - begun,
    }


def _controlled(work: Work, judge: _Judge, output: str, transformer: bool) -> Any:
    import nncf

    rows = judge.rows
    starts = list(range(0, rows.rows, _BATCH_ROWS))
    allowed_s = _SHARE_OF_STEP * work.manifest.deployment.build.step_timeout_s
    end = time.perf_counter() + allowed_s

    def inputs(start: int) -> dict[str, Array]:
        return rows.take(min(_BATCH_ROWS, rows.rows - start), start)

    def validate(compiled: Any, items: Iterable[int]) -> tuple[float, list[float]]:
        if time.perf_counter() > end:
            raise TimeoutError(f"not done after {allowed_s:.0f} s, half of build.step_timeout")
        # Floats per batch, because NNCF 3.4 ranks by outputs the wrong way round: the least harmful layers first.
        given = {start: _flat(np.array(compiled(inputs(start))[output])) for start in items}
        close = [-mean_abs_error(judge.source[start : start + len(each)], each) for start, each in given.items()]
        if len(close) < len(starts):
            return float(np.mean(close)), close
        # NNCF divides by the first model's metric, which must not be 0.
        return 1.0 - judge.excess(np.concatenate(list(given.values()))), close

    # The share of the budget is what may not rise above 1, whichever metrics and units it has.
    return nncf.quantize_with_accuracy_control(
        openvino.read(Path(work.base.path)),
        nncf.Dataset(range(min(SUBSET_ROWS, work.selection.rows)), lambda row: work.selection.take(1, row)),
        nncf.Dataset(starts, inputs),
        validate,
        max_drop=1.0,
        drop_type=nncf.DropType.ABSOLUTE,
        **_options(work, transformer),
        # With SmoothQuant a reverted layer gets its first weights back and keeps its scaled activations (NNCF 3.4).
        advanced_quantization_parameters=_advanced(work, smooth=False),
        advanced_accuracy_restorer_parameters=nncf.AdvancedAccuracyRestorerParameters(
            max_num_iterations=_MOST_REVERTED,
            ranking_subset_size=min(_RANKED_BATCHES, len(starts)),
            num_ranking_workers=1,
        ),
    )


def _flat(found: Array) -> Array:
    """As ``scoring.scores`` gives them: (rows, 1) becomes (rows,)."""
    return found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found


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
