"""The serving hooks: texts -> the model's inputs, embeddings -> answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minilm.tokens import encode


def preprocess(rows: Sequence[Mapping[str, Any]]) -> dict[str, npt.NDArray[Any]]:
    """Make ``input_ids`` and ``attention_mask`` int64 [rows, tokens] of rows like ``{"text": "..."}``.

    Raises:
        ValueError: a row has no text.
    """
    texts = [row.get("text") for row in rows]
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f'row {place} has no text; send {{"text": "..."}}')
    return dict(encode([text for text in texts if isinstance(text, str)]))


def postprocess(outputs: Mapping[str, npt.NDArray[Any]]) -> list[list[float]]:
    """Answer each text with its embedding, 384 numbers."""
    # Six digits are what float32 can tell apart on a unit vector, and half the bytes on the wire.
    embeddings: list[list[float]] = np.asarray(outputs["embedding"], dtype=np.float64).round(6).tolist()
    return embeddings
