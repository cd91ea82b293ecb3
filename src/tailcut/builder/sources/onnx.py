"""Source "onnx": an .onnx file, taken as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailcut.builder.recipes.base import Result
from tailcut.builder.sources.base import SourceKind, SourceWork


class OnnxSource(SourceKind):
    """A path that ends in .onnx. One with tree operators is served as it is: they are not looked for."""

    kind = "onnx"
    variant = "onnx"
    runtime = "onnxruntime"
    suffix = ".onnx"

    def matches(self, model: Any, path: Path | None) -> bool:
        """By the file's name."""
        return path is not None and path.suffix == ".onnx"

    def make(self, work: SourceWork, artifact: Path) -> Result:
        """Check the file and copy it.

        Raises:
            BuildError: unreadable, with weights in other files, or with a fixed batch.
        """
        from tailcut.builder.recipes import onnx_export

        assert work.path is not None
        model = work.manifest.deployment.model
        return Result(onnx_export.copy(work.path, model.inputs, model.outputs, artifact))
