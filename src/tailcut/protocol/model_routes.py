"""Routes about the server and its models: health, metadata, configuration, statistics.

GET /v2, /v2/health/live, /v2/health/ready
GET /v2/models/{model}[/versions/{version}][/ready|/config|/stats], /v2/models/stats
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tailcut.protocol.auth import Guard
from tailcut.protocol.http import Body, HeaderMap, Reply, json_reply
from tailcut.protocol.routing import Handler, Route, no_version, pipeline_of
from tailcut.serving.engine import Engine
from tailcut.serving.host import Host
from tailcut.version import version

EXTENSIONS = (
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
    "generate",
)
"""Triton's names of the extensions of the Open Inference Protocol that are spoken here."""


class ServerRoutes:
    """Answers questions about the server."""

    def __init__(self, host: Host, guard: Guard) -> None:
        self._host = host
        self._guard = guard

    def routes(self) -> dict[str, Route]:
        """Routes by path."""
        return {
            "/v2": ("GET", self._server),
            "/v2/health/live": ("GET", self._live),
            "/v2/health/ready": ("GET", self._ready),
            "/v2/models/stats": ("GET", self._statistics),
        }

    async def _server(self, headers: HeaderMap, body: Body) -> Reply:
        return json_reply({"name": "tailcut", "version": version(), "extensions": EXTENSIONS})

    async def _live(self, headers: HeaderMap, body: Body) -> Reply:
        return json_reply({"live": True})

    async def _ready(self, headers: HeaderMap, body: Body) -> Reply:
        found = self._host.readiness()
        return json_reply(found, 200 if found["ready"] else 503)

    async def _statistics(self, headers: HeaderMap, body: Body) -> Reply:
        self._guard.inference(headers)
        engines = self._host.engines.values()
        return json_reply({"model_stats": [each for engine in engines for each in engine.statistics.describe()]})


class Models:
    """Answers questions about one model."""

    def __init__(self, engine: Engine, guard: Guard) -> None:
        self._engine = engine
        self._guard = guard

    def routes(self) -> dict[str, Route]:
        """Routes by path."""
        name = self._engine.deployment.name
        return {
            f"/v2/models/{name}": ("GET", self._guarded(self._metadata)),
            f"/v2/models/{name}/ready": ("GET", self._model_ready),
            f"/v2/models/{name}/config": ("GET", self._guarded(self._config)),
            f"/v2/models/{name}/stats": ("GET", self._guarded(self._all_statistics)),
        }

    def versioned(self, version: str, rest: str) -> Route | None:
        """Return the route of a version; ``rest`` is the path behind it. A readiness is only that of what is served.

        The route raises NotFound where another version is served; who may not ask does not hear which.
        """
        if rest == "stats":
            return "GET", self._guarded(partial(self._statistics, version))
        name = self._engine.deployment.name
        found = self.routes().get(f"/v2/models/{name}/{rest}" if rest else f"/v2/models/{name}")
        if found is None:
            return None
        method, handler = found

        async def answer(headers: HeaderMap, body: Body) -> Reply:
            if rest != "ready":
                self._guard.inference(headers)
            pipeline_of(self._engine, version)
            return await handler(headers, body)

        return method, answer

    def _guarded(self, describe: Callable[[], dict[str, Any]]) -> Handler:
        async def answer(headers: HeaderMap, body: Body) -> Reply:
            self._guard.inference(headers)
            return json_reply(describe())

        return answer

    async def _model_ready(self, headers: HeaderMap, body: Body) -> Reply:
        ready = self._engine.is_ready
        name = self._engine.deployment.name
        return json_reply({"name": name, "ready": ready, **self._engine.notices}, 200 if ready else 503)

    def _metadata(self) -> dict[str, Any]:
        return metadata_of(self._engine)

    def _config(self) -> dict[str, Any]:
        return config_of(self._engine)

    def _all_statistics(self) -> dict[str, Any]:
        return {"model_stats": self._engine.statistics.describe()}

    def _statistics(self, version: str) -> dict[str, Any]:
        found = self._engine.statistics.describe(version)
        if not found:
            raise no_version(self._engine, version)
        return {"model_stats": found}


def metadata_of(engine: Engine) -> dict[str, Any]:
    """Return what there is to know of the model before asking it."""
    model = engine.deployment.model
    variant = engine.opened.variant
    return {
        "name": engine.deployment.name,
        "versions": [variant.version],
        "platform": f"{variant.runtime}_{variant.name}",
        **engine.notices,
        "inputs": [{"name": t.name, "datatype": t.datatype, "shape": t.shape} for t in model.inputs],
        "outputs": [{"name": t.name, "datatype": t.datatype, "shape": t.shape} for t in model.outputs],
    }


def config_of(engine: Engine) -> dict[str, Any]:
    """Triton's ModelConfig as far as it has a meaning here.

    ``max_batch_size`` tells clients how many rows a request should hold at most. It stays as it is where each row runs
    alone: such a request is taken apart here, and Triton's clients would refuse to send it.

    Source: https://github.com/triton-inference-server/server, docs/protocol/extension_model_configuration.md.
    """
    deployment, opened = engine.deployment, engine.opened
    variant = opened.variant
    config: dict[str, Any] = {
        "name": deployment.name,
        "platform": f"{variant.runtime}_{variant.name}",
        "backend": variant.runtime,
        "version_policy": {"specific": {"versions": [variant.version]}},
        "max_batch_size": deployment.batching.max_rows,
        "input": [_described(tensor.name, tensor.datatype, tensor.shape) for tensor in deployment.model.inputs],
        "output": [_described(tensor.name, tensor.datatype, tensor.shape) for tensor in deployment.model.outputs],
        "instance_group": [
            {"name": f"{deployment.name}_0", "kind": "KIND_AUTO", "count": opened.executors, "gpus": []}
        ],
        "parameters": {
            "variant": {"string_value": variant.name},
            "executor": {"string_value": opened.executor},
            "rows_alone": {"string_value": str(opened.rows_alone).lower()},
        },
    }
    if opened.merges:
        config["dynamic_batching"] = {}
    if opened.streams:
        config["model_transaction_policy"] = {"decoupled": True}
    return config


def _described(name: str, datatype: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Triton's name for BYTES is STRING; the batch is no dimension where there is a max_batch_size."""
    triton = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    if len(shape) == 1:  # no dims are not allowed there; this is how Triton says them
        return {"name": name, "data_type": triton, "dims": [1], "reshape": {"shape": []}}
    return {"name": name, "data_type": triton, "dims": list(shape[1:])}
