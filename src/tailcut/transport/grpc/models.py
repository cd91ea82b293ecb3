"""RPCs about the server and its model: readiness, metadata, configuration, statistics, repository."""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as shown
from typing import Any, TypeVar

import msgspec
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from tailcut.errors import NotFound
from tailcut.pipeline.pipeline import Pipeline
from tailcut.protocol.auth import Guard
from tailcut.protocol.model_routes import config_of, metadata_of
from tailcut.protocol.repository_routes import load_parameters
from tailcut.protocol.routing import no_version
from tailcut.protocol.routing import pipeline_of as pipeline_of_version
from tailcut.serving.deployment import Engine
from tailcut.transport.grpc import open_inference_pb2 as messages
from tailcut.transport.grpc.calls import Method, answering
from tailcut.transport.grpc.codec import parameters_of
from tailcut.version import version

EXTENSIONS = ("model_configuration", "model_repository", "parameters", "statistics")
"""Triton's names of the extensions that are spoken here."""

_Headers = Mapping[str, str]
M = TypeVar("M", bound=Message)


def check_name(engine: Engine, name: str) -> None:
    """Refuse a model that this server does not have.

    Raises:
        NotFound: it has another.
    """
    if name != engine.deployment.name:
        raise NotFound(f"model {shown(name)} is unknown", hint=f"this server has {engine.deployment.name!r}")


def pipeline_of(engine: Engine, name: str, version: str) -> Pipeline:
    """Return the pipeline that answers a model; an empty version means the one that is served.

    Raises:
        NotFound: no such model or version here.
        NotReady: it is not loaded (yet).
    """
    check_name(engine, name)
    return pipeline_of_version(engine, version)


class Models:
    """Answers questions about one engine's server and model, and loads and unloads it.

    Args:
        guard: decides who may ask, and who may load.
    """

    def __init__(self, engine: Engine, guard: Guard) -> None:
        self._engine = engine
        self._guard = guard

    def methods(self) -> dict[str, Method]:
        """The RPCs by name."""
        engine = self._engine
        return {
            "ServerLive": answering(engine, messages.ServerLiveRequest, self._live),
            "ServerReady": answering(engine, messages.ServerReadyRequest, self._ready),
            "ModelReady": answering(engine, messages.ModelReadyRequest, self._model_ready),
            "ServerMetadata": answering(engine, messages.ServerMetadataRequest, self._server),
            "ModelMetadata": answering(engine, messages.ModelMetadataRequest, self._model),
            "ModelConfig": answering(engine, messages.ModelConfigRequest, self._config),
            "ModelStatistics": answering(engine, messages.ModelStatisticsRequest, self._statistics),
            "RepositoryIndex": answering(engine, messages.RepositoryIndexRequest, self._index),
            "RepositoryModelLoad": answering(engine, messages.RepositoryModelLoadRequest, self._load),
            "RepositoryModelUnload": answering(engine, messages.RepositoryModelUnloadRequest, self._unload),
        }

    def _live(self, _: Any, headers: _Headers) -> messages.ServerLiveResponse:
        return messages.ServerLiveResponse(live=True)

    def _ready(self, _: Any, headers: _Headers) -> messages.ServerReadyResponse:
        return messages.ServerReadyResponse(ready=self._engine.is_ready)

    def _model_ready(self, request: messages.ModelReadyRequest, headers: _Headers) -> messages.ModelReadyResponse:
        check_name(self._engine, request.name)
        if request.version and self._engine.is_ready:
            pipeline_of(self._engine, request.name, request.version)
        return messages.ModelReadyResponse(ready=self._engine.is_ready)

    def _server(self, _: Any, headers: _Headers) -> messages.ServerMetadataResponse:
        return messages.ServerMetadataResponse(name="tailcut", version=version(), extensions=EXTENSIONS)

    def _model(self, request: messages.ModelMetadataRequest, headers: _Headers) -> messages.ModelMetadataResponse:
        self._guard.inference(headers)
        pipeline_of(self._engine, request.name, request.version)
        return _filled(messages.ModelMetadataResponse(), metadata_of(self._engine))

    def _config(self, request: messages.ModelConfigRequest, headers: _Headers) -> messages.ModelConfigResponse:
        self._guard.inference(headers)
        pipeline_of(self._engine, request.name, request.version)
        return messages.ModelConfigResponse(config=_filled(messages.ModelConfig(), config_of(self._engine)))

    def _statistics(
        self, request: messages.ModelStatisticsRequest, headers: _Headers
    ) -> messages.ModelStatisticsResponse:
        self._guard.inference(headers)
        if request.name:
            check_name(self._engine, request.name)
        found = self._engine.statistics.describe(request.version)
        if request.version and not found:
            raise no_version(self._engine, request.version)
        return _filled(messages.ModelStatisticsResponse(), {"model_stats": found})

    async def _index(
        self, request: messages.RepositoryIndexRequest, headers: _Headers
    ) -> messages.RepositoryIndexResponse:
        self._guard.inference(headers)
        _check_repository(request.repository_name)
        entries = await self._engine.repository.index(ready_only=request.ready)
        return _filled(messages.RepositoryIndexResponse(), {"models": entries})

    async def _load(
        self, request: messages.RepositoryModelLoadRequest, headers: _Headers
    ) -> messages.RepositoryModelLoadResponse:
        self._guard.management(headers)
        _check_repository(request.repository_name)
        check_name(self._engine, request.model_name)
        version, variant = load_parameters(parameters_of(request.parameters))
        await self._engine.repository.load(version=version, variant=variant)
        return messages.RepositoryModelLoadResponse()

    def _unload(
        self, request: messages.RepositoryModelUnloadRequest, headers: _Headers
    ) -> messages.RepositoryModelUnloadResponse:
        self._guard.management(headers)
        _check_repository(request.repository_name)
        check_name(self._engine, request.model_name)
        # Its one parameter, unload_dependents, is about models that are made of others; there are none here.
        self._engine.repository.unload()
        return messages.RepositoryModelUnloadResponse()


def _check_repository(name: str) -> None:
    if name:
        raise NotFound(f"repository {shown(name)} is unknown", hint="leave the name out: a deployment has one registry")


def _filled(message: M, found: Mapping[str, Any]) -> M:
    """Fill a message with what HTTP answers as JSON; what the message has no field for is HTTP's only."""
    plain = msgspec.json.decode(msgspec.json.encode(found))  # lists where there are tuples
    ParseDict(plain, message, ignore_unknown_fields=True)
    return message
