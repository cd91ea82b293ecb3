"""Source "torch": the module's weights as plain tensors, so that no pickled code is ever kept or loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailcut.builder.objects import is_module
from tailcut.builder.recipes.base import Result
from tailcut.builder.sources.base import SourceKind, SourceWork
from tailcut.errors import BuildError


class TorchSource(SourceKind):
    """A callable that gives a torch.nn.Module."""

    kind = "torch"
    variant = "torch"
    runtime = "torch"
    suffix = ".pt"

    def matches(self, model: Any, path: Path | None) -> bool:
        """A torch.nn.Module; whoever has one has imported torch."""
        return is_module(model)

    def make(self, work: SourceWork, artifact: Path) -> Result:
        """Write the state dict.

        Raises:
            BuildError: a state dict holds more than tensors.
        """
        import torch

        state = work.model.eval().state_dict()
        odd = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
        if odd:
            raise BuildError(
                f"the state dict of {work.manifest.deployment.model.source} holds {odd[0]!r}, which is not a tensor",
                hint="leave get_extra_state out, and give such values to the module's __init__ in the function that "
                "model.source names",
            )
        torch.save({name: value.detach().cpu().contiguous() for name, value in state.items()}, artifact)
        return Result({"parameters": sum(value.numel() for value in state.values())})
