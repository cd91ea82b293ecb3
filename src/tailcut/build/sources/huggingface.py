"""Source "huggingface": a folder with config.json and safetensors; from here on a torch module like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailcut.build.recipes.base import Result
from tailcut.build.sources import _tables
from tailcut.build.sources.base import SourceWork
from tailcut.errors import BuildError, TailcutError


class HuggingFaceSource:
    """A folder of an encoder model."""

    kind = "huggingface"
    variant = "torch"
    runtime = "torch"
    suffix = ".pt"

    def matches(self, model: Any, path: Path | None) -> bool:
        """A folder with config.json, its own or the first module's."""
        return path is not None and any((path / name).is_file() for name in ("config.json", "modules.json"))

    def trees(self, model: Any) -> bool:
        """Never."""
        return False

    def make(self, work: SourceWork, artifact: Path) -> Result:
        """Load the folder's weights and write them as a state dict.

        Raises:
            BuildError: no encoder, no safetensors, or other tensors than the manifest's.
        """
        import torch

        from tailcut.runtimes import huggingface

        assert work.path is not None
        inputs = tuple(tensor.name for tensor in work.manifest.deployment.model.inputs)
        try:
            module = huggingface.module(work.path, inputs, weights=True)
            description = huggingface.describe(work.path)
        except TailcutError as error:
            raise BuildError(error.message, hint=error.hint) from error
        state = {name: value.detach().cpu().contiguous() for name, value in module.state_dict().items()}
        torch.save(state, artifact)
        return Result(
            {
                "parameters": sum(value.numel() for value in module.parameters()),
                "ends_in": "classifier" if description.classifies else f"{description.pooling} pooling",
                "normalised": description.normalise and not description.classifies,
                **_tables.check(work, self.runtime, artifact),
            }
        )
