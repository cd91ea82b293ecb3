"""The model as every peer's server opens it: one onnxruntime session with one thread, rows in, rows out.

Runs in the peers' own environments: numpy and onnxruntime are all there is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnxruntime

ROWS = int(os.environ.get("PEER_MAX_ROWS", "32"))
"""Largest batch; each server is told it in its own way."""


class Model:
    """The model at $PEER_MODEL. Its first input is what requests carry; others (an attention mask) are all ones."""

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            os.environ["PEER_MODEL"], options, providers=["CPUExecutionProvider"]
        )
        first, *others = self._session.get_inputs()
        self._first, self._others = first.name, [other.name for other in others]
        self.dtype = np.dtype(np.int64 if first.type == "tensor(int64)" else np.float32)
        self._output = self._session.get_outputs()[0].name

    def run(self, rows: Sequence[Sequence[float]] | npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
        """Run rows of numbers, [rows, width], and return the output, [rows, width of the output]."""
        array = np.asarray(rows, dtype=self.dtype)
        feeds = {self._first: array, **{name: np.ones_like(array) for name in self._others}}
        found: npt.NDArray[np.float32] = self._session.run([self._output], feeds)[0]
        return found
