"""Activation functions that a folder names: classes of torch.nn, found by name; no other code is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailcut.errors import ArtifactError

_NN = "torch.nn."
IDENTITY, SIGMOID = "Identity", "Sigmoid"


def named(path: Path, key: str, value: Any) -> str:
    """Return the class of torch.nn that a setting names, without importing torch.

    Raises:
        ArtifactError: it names something else. The library itself then warns and takes its default instead.
    """
    if isinstance(value, str) and value.startswith(_NN):
        return value.rpartition(".")[2]
    raise ArtifactError(
        f"{path} sets {key!r} to {value!r}, which is not a class of torch.nn: without trust_remote_code "
        "sentence-transformers replaces it by its default, with other answers than in training",
        hint="set the equivalent torch.nn class, such as torch.nn.modules.activation.Tanh",
    )


def make(name: str) -> Any:
    """Return the torch module of a name that ``named`` returned.

    Raises:
        ArtifactError: torch.nn has no such module, or it needs arguments.
    """
    import torch

    if name == "Softmax":
        return torch.nn.Softmax(dim=-1)  # without a dimension torch takes this one, with a warning
    kind = getattr(torch.nn, name, None)
    try:
        if isinstance(kind, type) and issubclass(kind, torch.nn.Module):
            return kind()
    except TypeError:  # it has required arguments, which no folder holds
        pass
    raise ArtifactError(
        f"the activation function {name!r} is not a torch.nn module without arguments",
        hint="set one, such as torch.nn.modules.activation.Tanh",
    )
