"""The model: BERT's encoder, mean over the tokens that the mask keeps, unit length. All of it is in the graph.

Reimers and Gurevych 2019 (https://arxiv.org/abs/1908.10084); weights all-MiniLM-L6-v2, Apache-2.0.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from minilm.settings import weights_folder

MASKED = -1e4
"""Added to the attention of padding: its exponential is 0 in float32. The smallest float would do the same, but a scale
that spans it leaves an INT8 recipe one step for everything else."""


class Embedder(nn.Module):
    """``input_ids`` and ``attention_mask`` int64 [rows, tokens] -> ``embedding`` float32 [rows, 384], length 1."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        rows, tokens = input_ids.shape
        padding = 1.0 - attention_mask[:, None, None, :].expand(rows, 1, tokens, tokens).to(torch.float32)
        # Written so that onnxruntime's attention fusion knows it.
        mask = padding.masked_fill(padding.to(torch.bool), MASKED)
        hidden: Tensor = self.encoder(
            input_ids=input_ids, attention_mask=mask, token_type_ids=torch.zeros_like(input_ids)
        ).last_hidden_state
        kept = attention_mask.to(torch.float32)
        mean = (hidden * kept.unsqueeze(-1)).sum(dim=1) / kept.sum(dim=1, keepdim=True).clamp_min(1.0)
        return normalize(mean, dim=1)


def load(attention: str = "eager") -> nn.Module:
    """Build the module with the packaged weights, ready for inference.

    Args:
        attention: of transformers: "eager" is written out in matrix products, which exporters, fusions and quantizers
            know; "sdpa" is torch's own function, and is exported with guards against rows that mask everything.

    Raises:
        FileNotFoundError: the weights are not installed.
    """
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel

    folder = weights_folder()
    config = BertConfig.from_pretrained(folder, attn_implementation=attention)
    encoder = BertModel(config, add_pooling_layer=False)
    weights = load_file(folder / "model.safetensors")
    wanted = encoder.state_dict().keys()
    # The package carries BERT's pooler too, which this model does not use, and position_ids, which are made anew.
    encoder.load_state_dict({name: value for name, value in weights.items() if name in wanted}, strict=True)
    return Embedder(encoder).eval()
