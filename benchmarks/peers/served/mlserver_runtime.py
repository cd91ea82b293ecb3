"""MLServer with a custom runtime on onnxruntime and adaptive batching, through the V2 inference protocol.

https://docs.seldon.ai/mlserver/user-guide/custom: a runtime is a subclass of ``MLModel`` with ``load`` and ``predict``.
https://docs.seldon.ai/mlserver/user-guide/adaptive-batching: ``max_batch_size`` and ``max_batch_time`` (seconds) of the
model's settings switch it on.
https://docs.seldon.ai/mlserver/user-guide/parallel-inference: a pool of processes pays with several models or cores;
``parallel_workers`` 0 runs the model in the server's process, which a model of microseconds wants; 1 is the default.
Its workers do not start with uvloop 0.22 or later (no event loop in the main thread), so that is pinned below.
"""

from __future__ import annotations

from mlserver import MLModel  # type: ignore[import-not-found]  # installed in its own environment only
from mlserver.codecs import NumpyCodec  # type: ignore[import-not-found]
from mlserver.types import InferenceRequest, InferenceResponse  # type: ignore[import-not-found]
from model import Model  # type: ignore[import-not-found]  # beside this file, on the peer's own path


class OnnxModel(MLModel):  # type: ignore[misc]
    async def load(self) -> bool:
        self._model = Model()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        outputs = self._model.run(NumpyCodec.decode_input(payload.inputs[0]))
        return InferenceResponse(
            model_name=self.name, model_version=self.version, outputs=[NumpyCodec.encode_output("y", outputs)]
        )
