"""The model: a small tabular transformer, features in, probability of a late arrival out.

Feature tokens, a CLS token and pre-norm attention blocks as in FT-Transformer (Gorishniy et al. 2021,
https://arxiv.org/abs/2106.11959); numbers become tokens through piecewise-linear bins (Gorishniy et al. 2022,
https://arxiv.org/abs/2203.05556). Bins, missing values and the sigmoid are inside the module, so what is served
takes features in their natural units, NaN included.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, scaled_dot_product_attention

from flight_risk.settings import home


@dataclass(frozen=True)
class Size:
    """How large the model is: token width, blocks, heads, bins a number is encoded with."""

    width: int = 32
    blocks: int = 2
    heads: int = 2
    bins: int = 12
    feedforward: int = 64


class Tokens(nn.Module):
    """Numbers [rows, n] and category codes [rows, m] -> tokens [rows, 1 + n + m, width], CLS first."""

    low: Tensor
    span: Tensor
    offsets: Tensor

    def __init__(self, edges: Tensor, cardinalities: list[int], size: Size) -> None:
        super().__init__()
        numbers, bins = edges.shape[0], edges.shape[1] - 1
        self.register_buffer("low", edges[:, :-1].clone())
        self.register_buffer("span", (edges[:, 1:] - edges[:, :-1]).clamp_min(1e-6))
        starts = torch.tensor([0, *cardinalities[:-1]]).cumsum(0)
        self.register_buffer("offsets", starts)
        self.weight = nn.Parameter(torch.randn(numbers, bins, size.width) * bins**-0.5)
        self.bias = nn.Parameter(torch.randn(numbers, size.width) * 0.1)
        self.missing = nn.Parameter(torch.randn(numbers, size.width) * 0.1)
        self.category = nn.Embedding(sum(cardinalities), size.width)
        self.cls = nn.Parameter(torch.randn(1, 1, size.width) * 0.1)

    def forward(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        unknown = torch.isnan(numeric)
        filled = torch.where(unknown, torch.zeros_like(numeric), numeric)
        share = ((filled.unsqueeze(-1) - self.low) / self.span).clamp(0.0, 1.0)
        # One small matrix product per feature: [n, rows, bins] @ [n, bins, width].
        known = torch.matmul(share.transpose(0, 1), self.weight).transpose(0, 1) + self.bias
        numbers = torch.where(unknown.unsqueeze(-1), self.missing, known)
        categories = self.category(categorical + self.offsets)
        return torch.cat([self.cls.expand(numeric.shape[0], -1, -1), numbers, categories], dim=1)


class Block(nn.Module):
    """Pre-norm attention and feed-forward. The last block answers for the CLS token only."""

    def __init__(self, size: Size, *, last: bool) -> None:
        super().__init__()
        self.heads = size.heads
        self.last = last
        self.norm = nn.LayerNorm(size.width)
        self.query = nn.Linear(size.width, size.width)
        self.key_value = nn.Linear(size.width, 2 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.feed_norm = nn.LayerNorm(size.width)
        self.feed_in = nn.Linear(size.width, size.feedforward)
        self.feed_out = nn.Linear(size.feedforward, size.width)

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.norm(tokens)
        asking = normed[:, :1] if self.last else normed
        query = self._split(self.query(asking))
        key, value = (self._split(part) for part in self.key_value(normed).chunk(2, dim=-1))
        mixed = scaled_dot_product_attention(query, key, value)
        kept = tokens[:, :1] if self.last else tokens
        kept = kept + self.out(mixed.transpose(1, 2).flatten(2))
        fed = self.feed_out(gelu(self.feed_in(self.feed_norm(kept))))
        mixed_and_fed: Tensor = kept + fed
        return mixed_and_fed

    def _split(self, x: Tensor) -> Tensor:
        rows, tokens, width = x.shape
        return x.reshape(rows, tokens, self.heads, width // self.heads).transpose(1, 2)


class FlightRisk(nn.Module):
    """``numeric`` float32 [rows, n] and ``categorical`` int64 [rows, m] -> ``risk`` float32 [rows], in (0, 1)."""

    def __init__(self, edges: Tensor, cardinalities: list[int], size: Size) -> None:
        super().__init__()
        self.tokens = Tokens(edges, cardinalities, size)
        self.blocks = nn.Sequential(*(Block(size, last=i == size.blocks - 1) for i in range(size.blocks)))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, 1)

    def logit(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        """Log-odds of a late arrival [rows]; what training works on."""
        tokens: Tensor = self.blocks(self.tokens(numeric, categorical))
        logits: Tensor = self.head(relu(self.norm(tokens[:, 0])))
        return logits.squeeze(-1)

    def forward(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        return torch.sigmoid(self.logit(numeric, categorical))


def save(model: FlightRisk, edges: Tensor, cardinalities: list[int], size: Size) -> None:
    """Write the weights and what it takes to build the module that they fit."""
    weights = {"state": model.state_dict(), "edges": edges, "cardinalities": cardinalities}
    path = home() / "model.pt"
    partial = path.with_suffix(".partial")
    torch.save({**weights, "size": json.dumps(asdict(size))}, partial)
    partial.replace(path)


def load() -> nn.Module:
    """Build the trained module, ready for inference.

    Raises:
        FileNotFoundError: the model has not been trained.
    """
    path = home() / "model.pt"
    if not path.is_file():
        raise FileNotFoundError(f"no trained model at {path}\n\nhint: python -m flight_risk.train (in examples/)")
    saved = torch.load(path, map_location="cpu", weights_only=True)
    model = FlightRisk(saved["edges"], saved["cardinalities"], Size(**json.loads(saved["size"])))
    model.load_state_dict(saved["state"])
    return model.eval()
