"""What another runtime would win over torch on a GPU, from what the GPU did during a run of the model."""

from __future__ import annotations

from collections.abc import Sequence

from tailcut.core.profiling.layers import ModelLayers
from tailcut.core.profiling.priors import Prior

REPLAY_MS = (0.03, 0.06, 0.15)
"""What a replayed CUDA graph takes beside its kernels, at best, usually, at worst: copies in and out, a launch, a wait
for the end; 0.05 and 0.06 ms in torch, 0.12 to 0.14 in onnxruntime (benchmarks/results/gpu.md)."""


def runtime_on_gpu(layers: Sequence[ModelLayers]) -> Prior | None:
    """Say how many times quicker a CUDA graph of the same kernels answers, which leaves out the gaps between them.

    Kernels of lower precision may be quicker than these, which only a build can tell.

    Args:
        layers: of the application's models, the one that took most time first.

    Returns:
        None where no model's kernels are known.
    """
    for one in layers:
        if one.device is None or not one.device.kernel_ms or not one.run_ms:
            continue
        kernel_ms = one.device.kernel_ms
        high, mid, low = (max(one.run_ms / (kernel_ms + replay_ms), 1.0) for replay_ms in REPLAY_MS)
        why = f"kernels are {kernel_ms:.2g} of a run's {one.run_ms:.2g} ms, and a CUDA graph leaves out the gaps"
        return Prior(low=low, mid=mid, high=high, source=f"{why}; half precision comes on top")
    return None
