"""LitServe with batching, one worker on the CPU.

https://lightning.ai/docs/litserve/features/batching: ``max_batch_size`` and ``batch_timeout`` (seconds) switch it on;
``batch`` and ``unbatch`` are done by LitServe for arrays; decoding and encoding stay per request.
https://lightning.ai/docs/litserve/api-reference/litserver: one worker per device is the default; the device is the CPU.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import litserve  # type: ignore[import-not-found]  # installed in its own environment only
import numpy as np
import numpy.typing as npt
from model import ROWS, Model  # type: ignore[import-not-found]  # beside this file, on the peer's own path

TIMEOUT_S = float(os.environ.get("PEER_TIMEOUT_S", "30"))


class Predict(litserve.LitAPI):  # type: ignore[misc]
    def setup(self, device: str) -> None:
        self.model = Model()

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # LitServe makes a query of what is annotated
        return np.asarray(request["x"], dtype=self.model.dtype)

    def batch(self, inputs: list[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
        return np.stack(inputs)

    def predict(self, x: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = self.model.run(x)
        return found

    def unbatch(self, output: npt.NDArray[np.float32]) -> list[npt.NDArray[np.float32]]:
        return list(output)

    def encode_response(self, output: npt.NDArray[np.float32]) -> dict[str, Any]:
        return {"y": output.tolist()}


if __name__ == "__main__":
    api = Predict(max_batch_size=ROWS, batch_timeout=0.002)
    server = litserve.LitServer(api, accelerator="cpu", devices=1, workers_per_device=1, timeout=TIMEOUT_S)
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), num_api_servers=1, log_level="warning", generate_client_file=False
    )
