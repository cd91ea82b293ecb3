"""Recipe "torch": the source module's weights as plain tensors, so that no pickled code is ever kept or loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailcut.errors import BuildError


def save(source: Callable[[], Any], reference: str, path: Path) -> dict[str, Any]:
    """Make the module and write its state dict.

    Args:
        source: makes the torch.nn.Module.
        reference: how the manifest names it, for errors.
        path: the file to write.

    Returns:
        parameters: number of values in parameters and buffers.

    Raises:
        BuildError: the callable gives something else, or a state dict holds more than tensors.
    """
    import torch

    module = source()
    if not isinstance(module, torch.nn.Module):
        raise BuildError(
            f"model.source {reference} gave a {type(module).__name__}, expected a torch.nn.Module",
            hint="return the trained module itself",
        )
    state = module.eval().state_dict()
    odd = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if odd:
        raise BuildError(
            f"the state dict of {reference} holds {odd[0]!r}, which is no tensor",
            hint="keep such state in the constructor's arguments (get_extra_state is not supported)",
        )
    torch.save({name: value.detach().cpu().contiguous() for name, value in state.items()}, path)
    return {"parameters": sum(value.numel() for value in state.values())}
