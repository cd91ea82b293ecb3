"""RPCs about the server and its model: readiness, metadata, configuration."""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as shown
from typing import Any

import tailcut
from tailcut.engine.engine import Engine
from tailcut.engine.path import Path
from tailcut.errors import NotFound
from tailcut.manifest.schema import Tensor
from tailcut.server.grpc.calls import Method, answering
from tailcut.server.grpc.open_inference_pb2 import (
    DataType,
    ModelConfig,
    ModelConfigRequest,
    ModelConfigResponse,
    ModelDynamicBatching,
    ModelInput,
    ModelMetadataRequest,
    ModelMetadataResponse,
    ModelOutput,
    ModelReadyRequest,
    ModelReadyResponse,
    ServerLiveRequest,
    ServerLiveResponse,
    ServerMetadataRequest,
    ServerMetadataResponse,
    ServerReadyRequest,
    ServerReadyResponse,
)

_Headers = Mapping[str, str]


def check_name(engine: Engine, name: str) -> None:
    """Refuse a model that this server does not have.

    Raises:
        NotFound: it has another.
    """
    if name != engine.deployment.name:
        raise NotFound(f"model {shown(name)} is unknown", hint=f"this server has {engine.deployment.name!r}")


def path_of(engine: Engine, name: str, version: str) -> Path:
    """Return the path that answers a model; an empty version means the one that is served.

    Raises:
        NotFound: no such model or version here.
        NotReady: it is not loaded (yet).
    """
    check_name(engine, name)
    path = engine.path
    if version and version != path.served[1]:
        what = f"model {engine.deployment.name!r} has no version {shown(version)} here"
        raise NotFound(what, hint=f"it serves {path.served[1]!r}")
    return path


class Models:
    """Answers questions about one engine's server and model."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def methods(self) -> dict[str, Method]:
        """The RPCs by name."""
        engine = self._engine
        return {
            "ServerLive": answering(engine, ServerLiveRequest, self._live),
            "ServerReady": answering(engine, ServerReadyRequest, self._ready),
            "ModelReady": answering(engine, ModelReadyRequest, self._model_ready),
            "ServerMetadata": answering(engine, ServerMetadataRequest, self._server),
            "ModelMetadata": answering(engine, ModelMetadataRequest, self._model),
            "ModelConfig": answering(engine, ModelConfigRequest, self._config),
        }

    def _live(self, _: ServerLiveRequest, headers: _Headers) -> ServerLiveResponse:
        return ServerLiveResponse(live=True)

    def _ready(self, _: ServerReadyRequest, headers: _Headers) -> ServerReadyResponse:
        return ServerReadyResponse(ready=self._engine.is_ready)

    def _model_ready(self, request: ModelReadyRequest, headers: _Headers) -> ModelReadyResponse:
        check_name(self._engine, request.name)
        if request.version and self._engine.is_ready:
            path_of(self._engine, request.name, request.version)
        return ModelReadyResponse(ready=self._engine.is_ready)

    def _server(self, _: ServerMetadataRequest, headers: _Headers) -> ServerMetadataResponse:
        extensions = ("model_configuration", "model_repository", "parameters", "statistics")
        return ServerMetadataResponse(name="tailcut", version=tailcut.__version__, extensions=extensions)

    def _model(self, request: ModelMetadataRequest, headers: _Headers) -> ModelMetadataResponse:
        path_of(self._engine, request.name, request.version)
        model = self._engine.deployment.model
        variant = self._engine.opened.variant
        return ModelMetadataResponse(
            name=request.name,
            versions=[variant.version],
            platform=f"{variant.runtime}_{variant.name}",
            inputs=[_tensor(tensor) for tensor in model.inputs],
            outputs=[_tensor(tensor) for tensor in model.outputs],
        )

    def _config(self, request: ModelConfigRequest, headers: _Headers) -> ModelConfigResponse:
        path_of(self._engine, request.name, request.version)
        deployment = self._engine.deployment
        variant = self._engine.opened.variant
        config = ModelConfig(
            name=request.name,
            platform=f"{variant.runtime}_{variant.name}",
            backend=variant.runtime,
            max_batch_size=deployment.batching.max_rows,
            input=[
                ModelInput(name=tensor.name, data_type=_data_type(tensor), dims=tensor.shape[1:])
                for tensor in deployment.model.inputs
            ],
            output=[
                ModelOutput(name=tensor.name, data_type=_data_type(tensor), dims=tensor.shape[1:])
                for tensor in deployment.model.outputs
            ],
        )
        if deployment.batching.mode != "off":
            config.dynamic_batching.CopyFrom(ModelDynamicBatching())
        return ModelConfigResponse(config=config)


def _tensor(tensor: Tensor) -> ModelMetadataResponse.TensorMetadata:
    return ModelMetadataResponse.TensorMetadata(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)


def _data_type(tensor: Tensor) -> Any:
    """Triton's name for BYTES is STRING."""
    return DataType.Value("TYPE_STRING" if tensor.datatype == "BYTES" else f"TYPE_{tensor.datatype}")
