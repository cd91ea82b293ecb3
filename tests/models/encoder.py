"""A BERT of two layers with random weights, pooled as sentence embeddings are."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tailcut.build import Holdout

LAYERS, HEADS, HIDDEN, WORDS = 2, 4, 64, 200


class Encoder(nn.Module):
    """input_ids and attention_mask (batch, tokens) -> (batch, 64) of length 1."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(
            vocab_size=WORDS,
            hidden_size=HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=128,
            max_position_embeddings=64,
            attn_implementation="eager",
        )
        self.bert = BertModel(config, add_pooling_layer=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None].to(hidden.dtype)
        pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(pooled, dim=1)


def encoder() -> nn.Module:
    torch.manual_seed(11)
    return Encoder().eval()


def holdout(rows: int = 96) -> Holdout:
    random = np.random.default_rng(12)
    lengths = random.integers(3, 33, size=rows)
    mask = (np.arange(32) < lengths[:, None]).astype(np.int64)
    words = random.integers(1, WORDS, size=(rows, 32)) * mask
    return Holdout(inputs={"input_ids": words, "attention_mask": mask}, padding="attention_mask")
