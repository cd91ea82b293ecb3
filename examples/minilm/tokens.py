"""Texts -> token ids and mask, with the ``tokenizers`` package alone: neither torch nor transformers is imported."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from minilm.settings import MAX_TOKENS, PAD_TO, weights_folder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ints = npt.NDArray[np.int64]


@cache
def tokenizer() -> Tokenizer:
    """Read the tokenizer; it cuts at MAX_TOKENS, [CLS] and [SEP] included."""
    # Its thread pool would take the cores from the model, and pays for long lists only.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer

    found = Tokenizer.from_file(str(weights_folder() / "tokenizer.json"))
    found.enable_truncation(MAX_TOKENS)
    found.no_padding()
    return found


def encode(texts: Sequence[str], *, pad_to: int = PAD_TO) -> dict[str, Ints]:
    """Return ``input_ids`` and ``attention_mask`` [texts, tokens], padded to the longest text.

    Args:
        texts: at least one.
        pad_to: the number of tokens is rounded up to a multiple of it.
    """
    rows = [encoding.ids for encoding in tokenizer().encode_batch_fast(list(texts))]
    longest = max(len(ids) for ids in rows)
    width = -(-longest // pad_to) * pad_to
    # [PAD] is token 0.
    input_ids = np.zeros((len(rows), width), dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.int64)
    for row, ids in enumerate(rows):
        input_ids[row, : len(ids)] = ids
        mask[row, : len(ids)] = 1
    return {"input_ids": input_ids, "attention_mask": mask}
