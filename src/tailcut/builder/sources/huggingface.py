"""Source "huggingface": a folder with config.json and safetensors; from here on a torch module like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.recipes.base import Result
from tailcut.builder.sources.base import SourceKind, SourceWork
from tailcut.common.scalars import Scalar
from tailcut.errors import BuildError, TailcutError
from tailcut.registry.evidence import RecipeEvidence


class HuggingFaceSource(SourceKind):
    """A folder of an encoder model."""

    kind = "huggingface"
    variant = "torch"
    runtime = "torch"
    suffix = ".pt"

    def matches(self, model: Any, path: Path | None) -> bool:
        """A folder with config.json, its own or the first module's."""
        return path is not None and any((path / name).is_file() for name in ("config.json", "modules.json"))

    def make(self, work: SourceWork, artifact: Path) -> Result:
        """Load the folder's weights and write them as a state dict.

        Raises:
            BuildError: no encoder, no safetensors, a setting that is not supported, or other tensors than the
                manifest's.
        """
        import torch

        from tailcut.models.runtimes import huggingface

        assert work.path is not None
        section = work.manifest.deployment.model
        names = tuple(tensor.name for tensor in section.inputs)
        try:
            folder = huggingface.read(work.path)
            module = huggingface.module(work.path, names, rank=len(section.outputs[0].shape), weights=True)
        except TailcutError as error:
            raise BuildError(error.message, hint=error.hint) from error
        state = {name: value.detach().cpu().contiguous() for name, value in module.state_dict().items()}
        torch.save(state, artifact)
        return Result(
            {
                "parameters": sum(value.numel() for value in module.parameters()),
                "answers_as": folder.library,
                "modules": [stage.kind for stage in folder.stages],
                **({"activation": folder.head.activation} if folder.head else {}),
                **({"prompt": folder.texts.prompt} if folder.texts.prompt else {}),
            },
            evidence=RecipeEvidence(
                classes=_classes(folder.head.labels if folder.head else (), work.selection),
                warnings=list(folder.warnings),
            ),
        )


def _classes(names: tuple[str, ...], selection: Holdout) -> list[Scalar] | None:
    """Return the folder's names of the classes where the holdout's labels are text, which must then be these."""
    texts = selection.labels is not None and selection.labels.dtype.kind in "UO"
    return list(names) if names and texts else None
