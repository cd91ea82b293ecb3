"""The encoder: examples/minilm's model as one ONNX file, and embeddings by it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from minilm.tokens import encode

OPSET = 17
BATCH_ROWS = 32


def export(path: Path) -> None:
    """Write minilm's module as ONNX, with any number of rows and tokens."""
    import torch

    from minilm.model import load

    example = tuple(torch.from_numpy(value) for value in encode(["one", "and another text"]).values())
    free = {name: {0: "rows", 1: "tokens"} for name in ("input_ids", "attention_mask")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter is deprecated, and takes a tenth of the other's time
        torch.onnx.export(
            load(),
            example,
            str(path),
            dynamo=False,
            input_names=list(free),
            output_names=["embedding"],
            dynamic_axes={**free, "embedding": {0: "rows"}},
            opset_version=OPSET,
        )


def embed(path: Path, texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Embed texts with the exported model: each text once, alike lengths together."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    distinct, where = np.unique(np.array(texts), return_inverse=True)
    order = sorted(range(len(distinct)), key=lambda at: len(distinct[at]))
    parts = [
        session.run(None, dict(encode([str(distinct[at]) for at in order[start : start + BATCH_ROWS]])))[0]
        for start in range(0, len(order), BATCH_ROWS)
    ]
    found = np.empty((len(distinct), parts[0].shape[1]), dtype=np.float32)
    found[order] = np.concatenate(parts)
    embeddings: npt.NDArray[np.float32] = found[where]
    return embeddings
