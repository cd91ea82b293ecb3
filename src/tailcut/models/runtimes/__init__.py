"""Open an artifact and run it. Importing this loads neither onnxruntime nor torch; opening loads the one it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailcut.errors import ArtifactError
from tailcut.models.runtimes.base import Openable, Runtime

__all__ = ["Openable", "Runtime", "open_runtime"]


def open_runtime(variant: Openable, *, threads: int, source: Callable[[], Any] | None = None) -> Runtime:
    """Open a variant.

    Args:
        variant: from the registry; "onnxruntime" opens an .onnx file, "openvino" one or an .ovir file, "torch" a
            state dict.
        threads: threads of the runtime for one batch.
        source: makes the live object that the artifact belongs to: the torch.nn.Module of a state dict ("torch"), the
            estimator ("sklearn"); of a stored estimator ("skops") the types that the manifest trusts; see
            ``runtimes.live.source_of``.

    Raises:
        ArtifactError: the artifact cannot be opened, or does not take and give the variant's tensors.
        MissingExtra: the runtime's package is not installed.
    """
    if threads < 1:
        raise ValueError(f"threads is {threads}, the least is 1")
    if variant.runtime in {"onnxruntime", "tensorrt"}:
        return _open_onnx(variant, threads)
    if variant.runtime == "openvino":
        from tailcut.models.runtimes.openvino import OpenVinoRuntime

        return OpenVinoRuntime(variant, threads=threads)
    if variant.runtime in {"torch", "sklearn", "skops"}:
        return _open_live(variant, threads, source)
    if variant.runtime == "lightgbm":
        from tailcut.models.runtimes.lightgbm import LightGBMRuntime

        return LightGBMRuntime(variant, threads=threads)
    if variant.runtime == "xgboost":
        from tailcut.models.runtimes.xgboost import XGBoostRuntime

        return XGBoostRuntime(variant, threads=threads)
    if variant.runtime == "pair":
        from tailcut.models.runtimes.pair import PairRuntime

        return PairRuntime(variant, threads=threads)
    raise ArtifactError(
        f"variant {variant.name!r} wants runtime {variant.runtime!r}, which this tailcut does not have",
        hint="upgrade tailcut, or build the model again with this one",
    )


def _open_onnx(variant: Openable, threads: int) -> Runtime:
    """Open an .onnx file on the CPU or, by its settings, on the GPU; or a TensorRT engine."""
    if variant.runtime == "tensorrt":
        from tailcut.models.runtimes.tensorrt import TensorRTRuntime

        return TensorRTRuntime(variant)
    if variant.settings.get("provider", "cpu") == "cpu":
        from tailcut.models.runtimes.onnxruntime import OnnxRuntime

        return OnnxRuntime(variant, threads=threads)
    from tailcut.models.runtimes.cuda import OnnxCudaRuntime

    return OnnxCudaRuntime(variant, threads=threads)


def _open_live(variant: Openable, threads: int, source: Callable[[], Any] | None) -> Runtime:
    """Open what needs, or may need, code of the user's beside the artifact."""
    if variant.runtime == "skops":
        from tailcut.models.runtimes.skops import SkopsRuntime

        return SkopsRuntime(variant, source=source)
    if source is None:
        parts = "a torch state dict and needs the module" if variant.runtime == "torch" else "a test of the estimator"
        raise ArtifactError(
            f"variant {variant.name!r} is {parts} that it belongs to",
            hint="set model.source to 'package.module:callable', or serve variant 'onnx'",
        )
    if variant.runtime == "torch":
        from tailcut.models.runtimes.compiled import PlacedTorch, placed
        from tailcut.models.runtimes.torch import TorchRuntime

        if placed(variant.settings):
            return PlacedTorch(variant, threads=threads, source=source)
        return TorchRuntime(variant, threads=threads, source=source)
    from tailcut.models.runtimes.sklearn import SklearnRuntime

    return SklearnRuntime(variant, source=source)
