"""The modules of sentence-transformers that follow the transformer, written so that exporters take them.

Each takes the features and returns them with what it gives. Weights have the names that sentence-transformers saves.
Rows are padded on the right, as ``tailcut.text`` pads them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tailcut.errors import ArtifactError
from tailcut.models.runtimes.huggingface.stages import EncoderStage

_TINY = 1e-9
_FAR = 1e9
"""Taken off what is padding before a maximum: more than any feature is, and a number that quantizers take."""

Features = dict[str, torch.Tensor]


def make(stage: EncoderStage, prompt: int) -> nn.Module:
    """Make the module of a stage; its weights are random.

    Args:
        prompt: tokens of the prompt, for a Pooling that leaves them out.
    """
    if stage.kind == "Pooling":
        return Pooling(stage, 0 if stage.include_prompt else prompt)
    if stage.kind == "Dense":
        return Dense(stage)
    return LayerNorm(stage) if stage.kind == "LayerNorm" else Normalize(stage)


class Pooling(nn.Module):
    """Token embeddings (rows, tokens, size) -> vectors (rows, modes * size), padding left out."""

    def __init__(self, stage: EncoderStage, prompt: int) -> None:
        super().__init__()
        self._stage = stage
        self._prompt = prompt

    def forward(self, features: Features) -> Features:
        tokens, mask = features[self._stage.takes], features["attention_mask"]
        if self._prompt:
            mask = mask * (torch.arange(mask.shape[1], device=mask.device) >= self._prompt)
        vectors = [self._pooled(mode, tokens, mask) for mode in self._stage.modes]
        return {**features, self._stage.gives: vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=-1)}

    def _pooled(self, mode: str, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if mode == "cls":
            return _at(tokens, mask.to(torch.int32).argmax(dim=1)) if self._prompt else tokens[:, 0]
        wide = mask.unsqueeze(-1).to(tokens.dtype)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        if mode == "lasttoken":
            return _at(tokens * wide, (places * mask).amax(dim=1))
        if mode == "max":
            return (tokens + (wide - 1.0) * _FAR).amax(dim=1)
        if mode == "weightedmean":
            wide = wide * (places + 1).to(tokens.dtype).view(1, -1, 1)
        counts = wide.sum(dim=1).clamp(min=_TINY)
        return (tokens * wide).sum(dim=1) / (counts.sqrt() if mode == "mean_sqrt_len_tokens" else counts)


def _at(tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the token of each row at its place: (rows, tokens, size), (rows,) -> (rows, size)."""
    wide = places.to(torch.int64).view(-1, 1, 1).expand(-1, 1, tokens.shape[-1])
    return tokens.gather(1, wide).squeeze(1)


class Dense(nn.Module):
    """A linear layer with an activation function, and what it read added where it is residual."""

    def __init__(self, stage: EncoderStage) -> None:
        super().__init__()
        size, wanted = stage.sizes
        self._stage = stage
        self.linear = nn.Linear(size, wanted, bias=stage.bias)
        self.activation_function: Any = activation(stage.activation)
        if stage.residual and size != wanted:
            self.residual = nn.Linear(size, wanted, bias=False)

    def forward(self, features: Features) -> Features:
        given = features[self._stage.takes]
        found = self.activation_function(self.linear(given))
        if self._stage.residual:
            found = found + (self.residual(given) if hasattr(self, "residual") else given)
        return {**features, self._stage.gives: found}


class LayerNorm(nn.Module):
    """A layer normalisation."""

    def __init__(self, stage: EncoderStage) -> None:
        super().__init__()
        self._stage = stage
        self.norm = nn.LayerNorm(stage.sizes[0])

    def forward(self, features: Features) -> Features:
        return {**features, self._stage.gives: self.norm(features[self._stage.takes])}


class Normalize(nn.Module):
    """Vectors of length 1."""

    def __init__(self, stage: EncoderStage) -> None:
        super().__init__()
        self._stage = stage

    def forward(self, features: Features) -> Features:
        found = nn.functional.normalize(features[self._stage.takes], p=2.0, dim=-1)
        return {**features, self._stage.gives: found}


def activation(name: str) -> Any:
    """Return the torch module of a name that ``files.activation_of`` returned.

    Raises:
        ArtifactError: torch.nn has no such module, or it needs arguments.
    """
    if name == "Softmax":
        return nn.Softmax(dim=-1)  # without a dimension torch takes this one, with a warning
    kind = getattr(nn, name, None)
    try:
        if isinstance(kind, type) and issubclass(kind, nn.Module):
            return kind()
    except TypeError:  # it has required arguments, which no folder holds
        pass
    raise ArtifactError(
        f"the activation function {name!r} is not a torch.nn module without arguments",
        hint="set one, such as torch.nn.modules.activation.Tanh",
    )
