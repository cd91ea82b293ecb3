"""Encoders with weights of chance for benchmarks.gpu: what a run takes does not depend on what weights say."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from tailcut.builder import Holdout

if TYPE_CHECKING:
    from torch import nn

WORDS = 1000
SHAPES = {"small": (2, 64, 4, 32), "minilm": (6, 384, 12, 128), "base": (12, 768, 12, 128)}
"""Layers, width, heads, tokens: about flight_risk's, MiniLM's and BERT base's."""
VARIABLE = "BENCHMARK_GPU_MODEL"
_ROWS = 200


def shape() -> tuple[int, int, int, int]:
    """Of the model that is asked for."""
    return SHAPES[os.environ[VARIABLE]]


def model() -> nn.Module:
    """A transformer encoder over tokens with one score per row, the same each time."""
    import torch

    layers, width, heads, tokens = shape()

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(WORDS, width)
            self.places = torch.nn.Parameter(torch.randn(tokens, width) * 0.1)
            layer = torch.nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True
            )
            self.layers = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
            self.head = torch.nn.Linear(width, 1)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.head(self.layers(self.words(ids) + self.places).mean(dim=1)).squeeze(-1)
            return torch.sigmoid(found)

    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Encoder().eval()


def ids(rows: int, seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Rows of tokens."""
    return np.random.default_rng(seed).integers(0, WORDS, size=(rows, shape()[3]), dtype=np.int64)


def holdout() -> Holdout:
    """Rows to compare variants on; nothing is judged here, and the labels say nothing."""
    return Holdout(inputs={"ids": ids(_ROWS, seed=3)}, labels=np.arange(_ROWS) % 2)
