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
from tailcut.protocol.openapi.document import INFERENCE, get_operation
from tailcut.protocol.routing import Route, no_version, pipeline_of
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
        statistics = get_operation("Statistics of every model", "Statistics", scheme=INFERENCE)
        return {
            "/v2": Route("GET", self._server, get_operation("Server metadata")),
            "/v2/health/live": Route("GET", self._live, get_operation("Liveness of the process")),
            "/v2/health/ready": Route("GET", self._ready, get_operation("Readiness of the server", not_ready=True)),
            "/v2/models/stats": Route("GET", self._statistics, statistics),
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
        self._routes = {
            "": self._guarded(partial(metadata_of, engine), "Model metadata"),
            "/ready": Route("GET", self._ready, get_operation("Readiness of the model: 200 or 503", not_ready=True)),
            "/config": self._guarded(partial(config_of, engine), "Configuration in Triton's format"),
            "/stats": self._guarded(self._statistics, "Statistics", "Statistics"),
        }

    def routes(self) -> dict[str, Route]:
        """Routes by path."""
        model = f"/v2/models/{self._engine.deployment.name}"
        return {f"{model}{rest}": route for rest, route in self._routes.items()}

    def versioned(self, version: str, rest: str) -> Route | None:
        """Return the route of a version; ``rest`` is the path behind it. A readiness is only that of what is served.

        The route raises NotFound where another version is served; who may not ask does not hear which.
        """
        if rest == "stats":
            return self._guarded(partial(self._statistics, version), "Statistics")
        found = self._routes.get(rest and f"/{rest}")
        if found is None:
            return None

        async def answer(headers: HeaderMap, body: Body) -> Reply:
            if rest != "ready":
                self._guard.inference(headers)
            pipeline_of(self._engine, version)
            return await found.handler(headers, body)

        return Route("GET", answer)

    def _guarded(self, describe: Callable[[], dict[str, Any]], summary: str, schema: str = "") -> Route:
        async def answer(headers: HeaderMap, body: Body) -> Reply:
            self._guard.inference(headers)
            return json_reply(describe())

        return Route("GET", answer, get_operation(summary, schema, not_ready=True, scheme=INFERENCE))

    async def _ready(self, headers: HeaderMap, body: Body) -> Reply:
        ready = self._engine.is_ready
        name = self._engine.deployment.name
        return json_reply({"name": name, "ready": ready, **self._engine.notices}, 200 if ready else 503)

    def _statistics(self, version: str = "") -> dict[str, Any]:
        found = self._engine.statistics.describe(version)
        if version and not found:
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
            "executor": {"string_value": opened.warm.choice.executor},
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
