"""Small torch models over two inputs, as a manifest's ``model.source`` would name them, and their holdout."""

from __future__ import annotations

import os
import sys

import numpy as np
import torch
from torch import nn

NUMBERS, CATEGORIES, KINDS = 6, 2, 10


class Tabular(nn.Module):
    """A one-layer transformer over feature tokens; returns the probability of class 1."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(NUMBERS, width) * 0.5)
        self.bias = nn.Parameter(torch.zeros(NUMBERS, width))
        self.embed = nn.Embedding(KINDS, width)
        self.summary = nn.Parameter(torch.randn(1, 1, width) * 0.5)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, numeric: torch.Tensor, categorical: torch.Tensor) -> torch.Tensor:
        tokens = numeric.unsqueeze(-1) * self.weight + self.bias
        summary = self.summary.expand(numeric.shape[0], -1, -1)
        tokens = torch.cat([summary, tokens, self.embed(categorical)], dim=1)
        return torch.sigmoid(self.head(self.layers(tokens)[:, 0]).squeeze(-1))


class Logit(Tabular):
    """Forgets the sigmoid."""

    def forward(self, numeric: torch.Tensor, categorical: torch.Tensor) -> torch.Tensor:
        return 40.0 * torch.logit(super().forward(numeric, categorical))


class Branching(Tabular):
    """Decides on a value in Python, which no exporter can follow."""

    def forward(self, numeric: torch.Tensor, categorical: torch.Tensor) -> torch.Tensor:
        if numeric.sum() > 0:
            return super().forward(numeric, categorical)
        return super().forward(-numeric, categorical)


class Unsupported(Tabular):
    """Uses an operator that ONNX has no counterpart of."""

    def forward(self, numeric: torch.Tensor, categorical: torch.Tensor) -> torch.Tensor:
        shift = torch.special.bessel_j0(numeric)
        return super().forward(numeric + shift, categorical)


class Mlp(nn.Module):
    """64-256-256-1 like the peers' table, with a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.net(x)).squeeze(-1)


def _seeded(kind: type[nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return kind().eval()


def tabular() -> nn.Module:
    return _seeded(Tabular)


def logit() -> nn.Module:
    return _seeded(Logit)


def branching() -> nn.Module:
    return _seeded(Branching)


def unsupported() -> nn.Module:
    return _seeded(Unsupported)


def mlp() -> nn.Module:
    return _seeded(Mlp)


def not_a_module() -> str:
    return "model.pt"


def raises() -> nn.Module:
    raise FileNotFoundError("weights.pt is not there")


def rows(n: int = 400, seed: int = 3) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        "numeric": random.normal(size=(n, NUMBERS)).astype(np.float32),
        "categorical": random.integers(0, KINDS, size=(n, CATEGORIES)),
    }


def labels(inputs: dict[str, np.ndarray], seed: int = 4) -> np.ndarray:
    """Labels that the seeded model can partly foresee."""
    with torch.inference_mode():
        scores = tabular()(*(torch.from_numpy(array) for array in inputs.values())).numpy()
    noise = np.random.default_rng(seed).normal(size=scores.size) * scores.std()
    return (scores + noise > np.median(scores)).astype(np.int64)


class BakesBatch(Tabular):
    """Turns the batch size into a Python number, so that an export holds for one batch size only."""

    def forward(self, numeric: torch.Tensor, categorical: torch.Tensor) -> torch.Tensor:
        rows = int(numeric.shape[0])
        return super().forward(numeric.reshape(rows, NUMBERS), categorical) * torch.ones(len(numeric.tolist()))


def crashes_in_training(module: nn.Module) -> None:
    sys.stderr.write("the training met its end here\n")
    sys.stderr.flush()
    os.abort()


def bakes_batch() -> nn.Module:
    return _seeded(BakesBatch)
