"""A small classifier of scikit-learn-free images that rounding after training spoils, and its training function."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tailcut.build import Holdout

CLASSES, SIDE = 4, 6


class Cnn(nn.Module):
    """One image, (rows, 1, SIDE, SIDE), to CLASSES logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.deep = nn.Conv2d(8, 8, 3)
        self.head = nn.Linear(8 * 16, CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        found = torch.relu(self.norm(self.conv(image)))
        return self.head(torch.relu(self.deep(found)).flatten(1))


def images(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Stripes of four kinds under noise."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, rows)
    patterns = np.random.default_rng(99).normal(size=(CLASSES, SIDE, SIDE))
    return (patterns[labels] * 0.45 + random.normal(size=(rows, SIDE, SIDE)))[:, None].astype(np.float32), labels


def fit(module: nn.Module, steps: int, rate: float) -> None:
    """Train on rows that no test sees."""
    values, labels = (torch.from_numpy(each) for each in images(2048, seed=1))
    optimizer = torch.optim.Adam(module.parameters(), rate)
    module.train()
    for step in range(steps):
        at = torch.arange(step * 64, step * 64 + 64) % len(labels)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(values[at]), labels[at]).backward()
        optimizer.step()
    module.eval()


def cnn() -> Cnn:
    torch.manual_seed(0)
    module = Cnn()
    fit(module, 150, 5e-3)
    return module


def fine_tune(module: nn.Module) -> None:
    fit(module, 200, 2e-3)


def explode(module: nn.Module) -> None:
    raise RuntimeError("no data in the bucket s3://secret")


def give_back(module: nn.Module) -> nn.Module:
    return module


def spoil(module: nn.Module) -> None:
    with torch.no_grad():
        next(iter(module.parameters())).fill_(float("nan"))


def holdout(rows: int = 1000, seed: int = 2) -> Holdout:
    values, labels = images(rows, seed)
    return Holdout(inputs={"image": values}, labels=labels)
