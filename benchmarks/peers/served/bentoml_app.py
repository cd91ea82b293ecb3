"""BentoML with adaptive batching, one worker.

https://docs.bentoml.com/en/latest/guides/adaptive-batching.html: ``batchable=True`` with ``max_batch_size`` and
``max_latency_ms``; the input is a list or an array whose first dimension is the batch's.
https://docs.bentoml.com/en/latest/build-with-bentoml/parallelize-requests.html: one worker per core.
https://docs.bentoml.com/en/latest/reference/bentoml/configurations.html: ``logging.access``; nobody else writes one.
"""

from __future__ import annotations

import os

import bentoml  # type: ignore[import-not-found]  # installed in its own environment only
import numpy as np
from model import ROWS, Model  # type: ignore[import-not-found]  # beside this file, on the peer's own path


@bentoml.service(workers=1, traffic={"timeout": 10}, logging={"access": {"enabled": False}})
class Predict:
    def __init__(self) -> None:
        self._model = Model()

    @bentoml.api(  # type: ignore[untyped-decorator]
        batchable=True, max_batch_size=ROWS, max_latency_ms=int(os.environ["PEER_LATENCY_MS"])
    )
    def predict(self, x: np.ndarray) -> np.ndarray:
        found: np.ndarray = self._model.run(x)
        return found
