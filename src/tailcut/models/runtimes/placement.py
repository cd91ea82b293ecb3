"""Open a variant on the device that its settings name: the processor or a GPU."""

from __future__ import annotations

from tailcut.models.runtimes.base import Openable, OpenOptions, Runtime
from tailcut.models.runtimes.checks import source_for


def open_onnx(variant: Openable, options: OpenOptions) -> Runtime:
    """Open an .onnx file."""
    if variant.settings.get("provider", "cpu") == "cpu":
        from tailcut.models.runtimes.onnxruntime import OnnxRuntime

        return OnnxRuntime(variant, threads=options.threads)
    from tailcut.models.runtimes.cuda import OnnxCudaRuntime

    return OnnxCudaRuntime(variant, threads=options.threads)


def open_torch(variant: Openable, options: OpenOptions) -> Runtime:
    """Open a state dict with the module that ``options.source`` makes."""
    from tailcut.models.runtimes.compiled import PlacedTorch, placed
    from tailcut.models.runtimes.torch import TorchRuntime

    source = source_for(variant, options, "a torch state dict and needs the module")
    if placed(variant.settings):
        return PlacedTorch(variant, threads=options.threads, source=source)
    return TorchRuntime(variant, threads=options.threads, source=source)
