"""RPCs about the server and its models: readiness, metadata, configuration, statistics, repository."""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as shown
from typing import Any, TypeVar

import msgspec
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from tailcut.errors import NotFound
from tailcut.protocol.auth import Guard
from tailcut.protocol.model_routes import config_of, metadata_of
from tailcut.protocol.repository_routes import load_parameters
from tailcut.protocol.routing import no_version, pipeline_of
from tailcut.serving.engine import Engine
from tailcut.serving.host import Host
from tailcut.transport.grpc import open_inference_pb2 as messages
from tailcut.transport.grpc.calls import Method, answering
from tailcut.transport.grpc.codec import parameters_of
from tailcut.version import version

EXTENSIONS = ("model_configuration", "model_repository", "parameters", "statistics")
"""Triton's names of the extensions that are spoken here."""

_Headers = Mapping[str, str]
M = TypeVar("M", bound=Message)


class GrpcModels:
    """Answers questions about a host and its models, and loads and unloads them.

    Args:
        guard: decides who may ask, and who may load.
    """

    def __init__(self, host: Host, guard: Guard) -> None:
        self._host = host
        self._guard = guard

    def methods(self) -> dict[str, Method]:
        """The RPCs by name."""
        log = self._host.failures
        return {
            "ServerLive": answering(log, messages.ServerLiveRequest, self._live),
            "ServerReady": answering(log, messages.ServerReadyRequest, self._ready),
            "ModelReady": answering(log, messages.ModelReadyRequest, self._model_ready),
            "ServerMetadata": answering(log, messages.ServerMetadataRequest, self._server),
            "ModelMetadata": answering(log, messages.ModelMetadataRequest, self._model),
            "ModelConfig": answering(log, messages.ModelConfigRequest, self._config),
            "ModelStatistics": answering(log, messages.ModelStatisticsRequest, self._statistics),
            "RepositoryIndex": answering(log, messages.RepositoryIndexRequest, self._index),
            "RepositoryModelLoad": answering(log, messages.RepositoryModelLoadRequest, self._load),
            "RepositoryModelUnload": answering(log, messages.RepositoryModelUnloadRequest, self._unload),
        }

    def _live(self, _: Any, headers: _Headers) -> messages.ServerLiveResponse:
        return messages.ServerLiveResponse(live=True)

    def _ready(self, _: Any, headers: _Headers) -> messages.ServerReadyResponse:
        return messages.ServerReadyResponse(ready=self._host.is_ready)

    def _model_ready(self, request: messages.ModelReadyRequest, headers: _Headers) -> messages.ModelReadyResponse:
        """Answer that a model or version that is not here is not ready, as Triton does: clients poll for it."""
        engine = self._host.engines.get(request.name)
        ready = engine is not None and engine.is_ready
        if engine is not None and ready and request.version:
            ready = request.version == engine.pipeline.serving.version
        return messages.ModelReadyResponse(ready=ready)

    def _server(self, _: Any, headers: _Headers) -> messages.ServerMetadataResponse:
        return messages.ServerMetadataResponse(name="tailcut", version=version(), extensions=EXTENSIONS)

    def _model(self, request: messages.ModelMetadataRequest, headers: _Headers) -> messages.ModelMetadataResponse:
        engine = self._loaded(request.name, request.version, headers)
        return _filled(messages.ModelMetadataResponse(), metadata_of(engine))

    def _config(self, request: messages.ModelConfigRequest, headers: _Headers) -> messages.ModelConfigResponse:
        engine = self._loaded(request.name, request.version, headers)
        return messages.ModelConfigResponse(config=_filled(messages.ModelConfig(), config_of(engine)))

    def _loaded(self, name: str, version: str, headers: _Headers) -> Engine:
        self._guard.inference(headers)
        engine = self._host.engine(name)
        pipeline_of(engine, version)
        return engine

    def _statistics(
        self, request: messages.ModelStatisticsRequest, headers: _Headers
    ) -> messages.ModelStatisticsResponse:
        self._guard.inference(headers)
        engines = [self._host.engine(request.name)] if request.name else self._host.engines.values()
        found = [each for engine in engines for each in engine.statistics.describe(request.version)]
        if request.version and request.name and not found:
            raise no_version(self._host.engine(request.name), request.version)
        return _filled(messages.ModelStatisticsResponse(), {"model_stats": found})

    async def _index(
        self, request: messages.RepositoryIndexRequest, headers: _Headers
    ) -> messages.RepositoryIndexResponse:
        self._guard.inference(headers)
        _check_repository(request.repository_name)
        entries = await self._host.index(ready_only=request.ready)
        return _filled(messages.RepositoryIndexResponse(), {"models": entries})

    async def _load(
        self, request: messages.RepositoryModelLoadRequest, headers: _Headers
    ) -> messages.RepositoryModelLoadResponse:
        self._guard.management(headers)
        _check_repository(request.repository_name)
        version, variant = load_parameters(parameters_of(request.parameters))
        await self._host.load(request.model_name, version=version, variant=variant)
        return messages.RepositoryModelLoadResponse()

    def _unload(
        self, request: messages.RepositoryModelUnloadRequest, headers: _Headers
    ) -> messages.RepositoryModelUnloadResponse:
        self._guard.management(headers)
        _check_repository(request.repository_name)
        # Its one parameter, unload_dependents, is about models that are made of others; there are none here.
        self._host.unload(request.model_name)
        return messages.RepositoryModelUnloadResponse()


def _check_repository(name: str) -> None:
    if name:
        raise NotFound(
            f"repository {shown(name)} is unknown",
            hint="leave the name out: each model has its own registry",
        )


def _filled(message: M, found: Mapping[str, Any]) -> M:
    """Fill a message with what HTTP answers as JSON; what the message has no field for is HTTP's only."""
    plain = msgspec.json.decode(msgspec.json.encode(found))  # lists where there are tuples
    ParseDict(plain, message, ignore_unknown_fields=True)
    return message
