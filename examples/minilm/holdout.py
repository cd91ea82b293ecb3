"""The judge of every variant: labelled passages from files that the downstream head was not trained on."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from minilm.settings import home
from minilm.topics import NAMES

if TYPE_CHECKING:
    from tailcut.build import Holdout

BUCKETS = (("up to 16", 16), ("17 to 32", 32), ("33 to 64", 64), ("65 to 128", 128))
"""Slices by length: name and most tokens."""

_HINT = "python -m minilm.prepare (in examples/)"


def holdout() -> Holdout:
    """Return token ids and mask padded to 128, the topic of each passage, and slices by topic and length.

    Raises:
        FileNotFoundError: nothing is prepared.
    """
    from tailcut.build import Holdout

    with np.load(_prepared("holdout.npz")) as file:
        mask, labels = file["attention_mask"], file["labels"]
        return Holdout(
            inputs={"input_ids": file["input_ids"], "attention_mask": mask},
            labels=labels,
            slices={"topic": np.array(NAMES)[labels], "length": bucket_of(mask.sum(axis=1))},
            padding="attention_mask",
        )


def bucket_of(tokens: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.str_]:
    """Name the bucket of each number of tokens."""
    place = np.searchsorted([most for _, most in BUCKETS], tokens)
    return np.array([name for name, _ in BUCKETS])[place]


def topic_accuracy(labels: npt.NDArray[Any], scores: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Tell per row whether the head finds the right topic from this embedding: 1 or 0. A metric of the manifest.

    Args:
        labels: (rows,) numbers of topics.
        scores: (rows, 384) embeddings.
    """
    right: npt.NDArray[np.float64] = (decide(scores) == labels).astype(np.float64)
    return right


def decide(embeddings: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the topic that the head finds for each embedding."""
    weights, bias = _head(_prepared("head.npz"))
    topics: npt.NDArray[np.int64] = np.argmax(embeddings.astype(np.float64) @ weights.T + bias, axis=1)
    return topics


def write_head(weights: npt.NDArray[Any], bias: npt.NDArray[Any]) -> None:
    """Keep the head: weights (topics, 384) and bias (topics,)."""
    np.savez(home() / "head.npz", weights=weights.astype(np.float64), bias=bias.astype(np.float64))
    _head.cache_clear()


@cache
def _head(path: Path) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    with np.load(path) as file:
        return file["weights"], file["bias"]


def _prepared(name: str) -> Path:
    path = home() / name
    if not path.is_file():
        raise FileNotFoundError(f"no {name} at {path}\n\nhint: {_HINT}")
    return path
