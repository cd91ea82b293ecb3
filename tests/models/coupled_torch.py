"""torch modules whose rows influence each other, and two whose rows do not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Plain(nn.Module):
    """x (n, 8) -> y (n,): batch normalisation as it is after training, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.BatchNorm1d(8)
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def seen(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def forward(self, x: Tensor) -> Any:
        return self.layers(self.seen(x)).flatten()


class LessMean(Plain):
    def seen(self, x: Tensor) -> Tensor:
        return 2 * x - x.mean(0)


class SoftmaxOverRows(Plain):
    def seen(self, x: Tensor) -> Tensor:
        return x + torch.softmax(x, dim=0)


class StillTraining(Plain):
    """Takes the batch's own mean and variance whatever mode it is in."""

    def seen(self, x: Tensor) -> Tensor:
        norm = self.norm
        wide = torch.cat([x, -x])  # a single row has no variance
        return nn.functional.batch_norm(wide, None, None, norm.weight, norm.bias, training=True)[: len(x)]


class TimeForBatch(nn.Module):
    """x (n, 8) -> y (n,): an LSTM that takes rows for steps, because its input has two dimensions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0].flatten()


class SecondHead(Plain):
    """Two outputs, of which the second one alone is coupled."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = super().forward(x)
        return y, y - y.mean()


class Encoder(nn.Module):
    """ids, mask (n, tokens) -> y (n,): one layer of attention, with or without the mask."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.masked = masked
        self.table = nn.Embedding(50, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        values = self.table(ids)
        hidden = ~mask.bool() if self.masked else None
        found, _ = self.attention(values, values, values, key_padding_mask=hidden, need_weights=False)
        return found[:, 0].sum(dim=1)
