"""What other runtimes and batches would win over torch on a GPU, from what the GPU did during a run of the model.

A profile knows of a run which part of it the GPU computes; how quick kernels of lower precision would be, and what rows
of a batch share beyond the gaps, only a build can tell.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailcut.profiler.attribution.layers import ModelLayers
from tailcut.profiler.levers.priors import Prior

REPLAY_MS = (0.03, 0.06, 0.15)
"""What a replayed CUDA graph takes beside its kernels, at best, usually, at worst: copies in and out, one launch,
waiting for the end. Torch's took 0.05 and 0.06 ms, onnxruntime's 0.12 to 0.14 (benchmarks/results/gpu.md), less what
the eager module's kernels take: a little more where their own are quicker."""


def runtime_on_gpu(layers: Sequence[ModelLayers], model: str) -> Prior | None:
    """Say how many times quicker a CUDA graph of the same kernels answers, which leaves out the gaps between them.

    Args:
        layers: of the application's models.
        model: whose time is meant.

    Returns:
        None where its kernels are not known.
    """
    found = _of(layers, model)
    if found is None:
        return None
    run_ms, kernel_ms = found
    high, mid, low = (max(run_ms / (kernel_ms + replay_ms), 1.0) for replay_ms in REPLAY_MS)
    why = f"kernels are {kernel_ms:.3g} of a run's {run_ms:.3g} ms, and a CUDA graph leaves out the gaps"
    return Prior(low=low, mid=mid, high=high, source=f"{why}; half precision comes on top")


def batch_on_gpu(layers: Sequence[ModelLayers], model: str) -> Prior | None:
    """Say which share of a row's time a batch takes once: its gaps, and what kernels have in common is not guessed.

    Args:
        layers, model: as for ``runtime_on_gpu``.
    """
    found = _of(layers, model)
    if found is None:
        return None
    run_ms, kernel_ms = found
    share = max(1.0 - kernel_ms / run_ms, 0.0)
    return Prior(low=share, mid=share, high=1.0, source=f"the GPU waits {share:.0%} of a run, whatever its rows")


def _of(layers: Sequence[ModelLayers], model: str) -> tuple[float, float] | None:
    """Milliseconds of a model's run, and of its kernels."""
    for one in layers:
        if one.model == model and one.device is not None and one.device.kernel_ms > 0 and one.run_ms > 0:
            return one.run_ms, one.device.kernel_ms
    return None
