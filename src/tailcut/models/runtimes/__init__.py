"""Open an artifact and run it. Importing this loads neither onnxruntime nor torch; opening loads the one it needs."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from tailcut.common.runtime_spec import spec_of
from tailcut.errors import ArtifactError
from tailcut.models.runtimes.base import Openable, OpenOptions, Runtime
from tailcut.models.runtimes.sliced import sliced

__all__ = ["OpenOptions", "Openable", "Runtime", "open_runtime"]


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
        raise ValueError(f"threads is {threads}, the minimum is 1")
    spec = spec_of(variant.runtime)
    if spec.error:
        raise ArtifactError(
            f"variant {variant.name!r} wants runtime {variant.runtime!r}, {spec.error}",
            hint="fix or uninstall the package that registers it",
        )
    module, _, function = spec.opens.partition(":")
    if not module:
        raise ArtifactError(
            f"variant {variant.name!r} wants runtime {variant.runtime!r}, which this version of tailcut lacks",
            hint="upgrade tailcut, install the package that registers it, or build the model again with this tailcut",
        )
    runtime: Runtime = getattr(import_module(module), function)(variant, OpenOptions(threads, source))
    return sliced(runtime, variant.settings)
