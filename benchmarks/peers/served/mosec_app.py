"""Mosec with dynamic batching; JSON in, JSON out, one worker.

https://mosecorg.github.io/mosec/reference/interface.html: ``append_worker(max_batch_size, max_wait_time)``, the wait in
milliseconds (its default with batching is 10); ``forward`` takes and returns a list.
https://mosecorg.github.io/mosec/reference/concept.html: the ingress worker decodes and the egress worker encodes, JSON
by default; one stage is both, which saves a hop between processes on one core.
"""

from __future__ import annotations

import os
from typing import Any

from model import ROWS, Model  # type: ignore[import-not-found]  # beside this file, on the peer's own path
from mosec import Server, Worker  # type: ignore[import-not-found]  # installed in its own environment only


class Predict(Worker):  # type: ignore[misc]
    def __init__(self) -> None:
        self._model = Model()

    def forward(self, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
        outputs = self._model.run([each["x"] for each in data])
        return [{"y": row} for row in outputs.tolist()]


if __name__ == "__main__":
    server = Server()
    server.append_worker(Predict, num=1, max_batch_size=ROWS, max_wait_time=int(os.environ["PEER_WAIT_MS"]))
    server.run()
