"""The serving hooks: rows of 64 pixels -> images, probabilities -> answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from digits.data import SIDE


def preprocess(rows: Sequence[Mapping[str, Any]]) -> dict[str, npt.NDArray[np.float32]]:
    """Make ``image`` float32 [rows, 1, 8, 8] of rows like ``{"pixels": [0, ..., 16]}``, 64 numbers line by line."""
    pixels = np.array([row["pixels"] for row in rows], dtype=np.float32)
    return {"image": pixels.reshape(len(rows), 1, SIDE, SIDE)}


def postprocess(outputs: Mapping[str, npt.NDArray[Any]]) -> list[dict[str, Any]]:
    """Answer each image: the most likely digit and its probability."""
    found = outputs["probabilities"]
    best = found.argmax(axis=1)
    sure = found[np.arange(len(found)), best].tolist()
    return [{"digit": digit, "probability": share} for digit, share in zip(best.tolist(), sure, strict=True)]
