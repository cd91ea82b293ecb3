"""Slow layers: where a model's own time goes, by layer and by operator, and which lever addresses what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

Lever = Literal["quantisation", "fusion", ""]

_DOUBTFUL = 1.5
"""A profiled run that is so many times as long as a plain one is a doubtful witness."""

DISPATCH = "dispatch"
"""Name of what no operator took: the runtime's own work, in Python for a torch module."""

_PREFIXES = ("aten::", "com.microsoft.", "com.microsoft:", "ai.onnx.ml.")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WEIGHTS = _names(
    "linear addmm mm matmul gemm conv conv1d conv2d conv3d convolution _convolution mkldnn_convolution "
    "cudnn_convolution thnn_conv2d _slow_conv2d_forward convtranspose fusedmatmul fusedgemm fusedconv lstm gru "
    "rnn mkldnn_rnn_layer _thnn_fused_lstm_cell attention multiheadattention embedlayernormalization "
    "_transformer_encoder_layer_fwd _native_multi_head_attention _addmm_activation mkldnn_linear"
)
"""Operators that multiply by weights: what INT8 and BF16 make quicker."""

_CHAINS = _names(
    "add add_ sub rsub mul mul_ div pow sqrt rsqrt erf exp abs neg relu relu_ gelu silu sigmoid tanh clamp "
    "clamp_min where softmax _softmax layer_norm native_layer_norm batch_norm native_batch_norm "
    "_batch_norm_impl_index transpose permute reshape view t as_strided expand unsqueeze squeeze slice select "
    "narrow contiguous clone copy_ to _to_copy cat stack split chunk fill_ zeros_like ones_like empty empty_like "
    "empty_strided resolve_conj _unsafe_view unflatten flatten dropout clip cast concat hardswish leakyrelu elu "
    "identity alias detach lift_fresh reducemean mean"
)
"""Operators that only pass over what a neighbour has just written: they vanish where kernels are fused."""


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of operator over a whole run of the model.

    Args:
        name: as the runtime names it.
        calls: a run.
        ms: own time a run, called operators left out; on a GPU the time of its kernels.
        share: of all operators' and the dispatch's time.
        lever: what addresses it; empty where neither quantisation nor fusion does.
    """

    name: str
    calls: float
    ms: float
    share: float
    lever: Lever = ""


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One module of a torch model, or one node of an ONNX graph.

    Args:
        name: the module's path in the model, or the node's name.
        kind: class of the module, or type of the operator.
        calls: a run.
        ms: own time a run, layers inside it left out; on a GPU the time of its kernels.
        share: of all layers' time.
        lever: what addresses the operator that takes most of it.
    """

    name: str
    kind: str
    calls: float
    ms: float
    share: float
    lever: Lever = ""


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU did during a run of the model.

    Args:
        name: of the device.
        kernels: launched a run.
        kernel_ms: it computed or copied.
        gap_ms: it had nothing to do while a run without a profiler was under way: the CPU had not launched the next
            kernel yet.
        peak_bytes: most memory allocated at once, weights included.
    """

    name: str
    kernels: float
    kernel_ms: float
    gap_ms: float
    peak_bytes: int


class ModelLayers(msgspec.Struct, frozen=True, kw_only=True):
    """A model's own profile.

    Args:
        model: its name or class.
        runtime: with its version.
        inputs: names, datatypes and shapes of what it was run on.
        runs: that were profiled.
        run_ms: median of a run without a profiler.
        profiled_ms: mean of a run with one: far above ``run_ms``, small operators look larger than they are.
        layers: the slowest first.
        operators: the slowest first.
        device: of the GPU that it runs on; None where it runs on the CPU.
        device_note: why there is no ``device``.
        notes: what else is to be known of the figures.
    """

    model: str
    runtime: str
    inputs: str
    runs: int
    run_ms: float
    profiled_ms: float
    layers: tuple[Layer, ...]
    operators: tuple[Operator, ...]
    device: DeviceUse | None = None
    device_note: str = ""
    notes: tuple[str, ...] = ()

    def addressed(self, lever: Lever) -> float:
        """Share of the time of the operators that a lever addresses."""
        return sum(each.share for each in self.operators if each.lever == lever and each.name != DISPATCH)

    @property
    def doubt(self) -> str:
        """What the profiler's own work does to the figures; empty where it does little."""
        if self.profiled_ms <= _DOUBTFUL * self.run_ms:
            return ""
        times = self.profiled_ms / self.run_ms
        return (
            f"profiling made a run {times:.1f} times as long, which weighs on small operators:"
            " their order says more than their shares"
        )

    @property
    def dispatch(self) -> float:
        """Share of the time that no operator took."""
        return sum(each.share for each in self.operators if each.name == DISPATCH)


class Conversion(msgspec.Struct, frozen=True, kw_only=True):
    """An estimator that was converted to ONNX, and both timed on a request's own input; milliseconds are medians.

    Args:
        model: label of its span.
        last: label of the span of its last step; empty where it has none.
        steps: labels of all that it calls, the last step's too.
        run_ms, last_ms: a call of all of it, and of the last step alone.
        graph_ms, last_graph_ms: the same as ONNX; None where it has no exact form.
        refused: why not, step by step.
    """

    model: str
    last: str = ""
    steps: tuple[str, ...] = ()
    run_ms: float = 0.0
    last_ms: float = 0.0
    graph_ms: float | None = None
    last_graph_ms: float | None = None
    refused: tuple[str, ...] = ()


def lever_of(operator: str) -> Lever:
    """Say what addresses an operator: INT8 those that multiply by weights, fusion those that only pass over values.

    Quantised operators (MatMulInteger, QLinearConv) and fused ones (SkipLayerNormalization, BiasGelu) are done with.

    Args:
        operator: as torch ("aten::addmm") or onnxruntime ("MatMul") names it.
    """
    name = operator.lower()
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return "quantisation" if name in _WEIGHTS else "fusion" if name in _CHAINS else ""


def operators_of(times: Iterable[tuple[str, float, float]]) -> tuple[Operator, ...]:
    """Rank operators.

    Args:
        times: (name, calls a run, own milliseconds a run); ``DISPATCH`` for what no operator took.
    """
    ranked = sorted(times, key=lambda one: -one[2])
    total = sum(ms for _, _, ms in ranked) or 1.0
    return tuple(
        Operator(name=name, calls=calls, ms=ms, share=ms / total, lever="" if name == DISPATCH else lever_of(name))
        for name, calls, ms in ranked
    )


def layers_of(times: Iterable[tuple[str, str, float, float, str]]) -> tuple[Layer, ...]:
    """Rank layers.

    Args:
        times: (name, kind, calls a run, own milliseconds a run, operator that takes most of it).
    """
    ranked = sorted(times, key=lambda one: -one[3])
    total = sum(ms for _, _, _, ms, _ in ranked) or 1.0
    return tuple(
        Layer(name=name, kind=kind, calls=calls, ms=ms, share=ms / total, lever=lever_of(operator))
        for name, kind, calls, ms, operator in ranked
    )


def quiet(runs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep the quicker half of the runs: the others hold what else the machine did meanwhile.

    Args:
        runs: (start, end) of each, in any unit.
    """
    if not runs:
        return []
    limit = sorted(end - start for start, end in runs)[(len(runs) - 1) // 2]
    return [(start, end) for start, end in runs if end - start <= limit]


def device_use(
    name: str,
    kernels: Sequence[tuple[float, float]],
    runs: Sequence[tuple[float, float]],
    peak_bytes: int,
    *,
    run_ms: float,
) -> DeviceUse:
    """Add up what a GPU did during runs that each waited for it to finish.

    Kernels that run side by side count once; what lies outside every run counts nowhere. A profiler makes launching
    slower, by half and more, but no kernel: gaps are what kernels leave of a run without one.

    Args:
        kernels: (start, end) of each kernel and copy, milliseconds, in any order.
        runs: (start, end) of each run, one after the other, same clock.
        peak_bytes: most memory allocated at once.
        run_ms: of a run without a profiler.
    """
    ordered = sorted(kernels)
    busy = 0.0
    launched = 0
    for first, last in runs:
        reached, taken = first, 0.0
        for start, end in ordered:
            if start >= last or end <= first:
                continue
            launched += 1
            taken += max(min(end, last) - max(start, reached), 0.0)
            reached = max(reached, min(end, last))
        busy += taken
    count = len(runs) or 1
    kernel_ms = busy / count
    return DeviceUse(
        name=name,
        kernels=launched / count,
        kernel_ms=kernel_ms,
        gap_ms=max(run_ms - kernel_ms, 0.0),
        peak_bytes=peak_bytes,
    )
