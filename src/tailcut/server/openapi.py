"""/openapi.json: the HTTP interface of one deployment, made from its manifest."""

from __future__ import annotations

from typing import Any

import tailcut
from tailcut.manifest import Deployment, Server, Tensor
from tailcut.server.http import LONGEST_TENANT

_TYPES = {"BOOL": "boolean", "FP16": "number", "FP32": "number", "FP64": "number", "BYTES": "string"}
_ERRORS = {
    "400": "the request is wrong; `error` names the input, the value and the limit",
    "404": "no such model, version, path or entity",
    "408": "the body had not arrived by the deadline",
    "413": "the body or the batch is over the limit",
    "429": "shed: the queue is full; retry after Retry-After seconds",
    "503": "not ready, or a feature group cannot be fetched",
    "504": "the deadline passed; the code says in which phase",
}


def openapi(deployment: Deployment) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of a deployment's HTTP interface."""
    name = deployment.name
    headers = _headers(deployment.server)
    infer = _post("Open Inference Protocol v2 inference", "InferenceRequest", "InferenceReply", headers)
    predict = _post("Predict for entities or for feature rows", "PredictionRequest", "PredictionReply", headers)
    return {
        "openapi": "3.1.0",
        "info": {"title": f"tailcut: {name}", "version": tailcut.__version__},
        "paths": {
            f"/predict/{name}": {"post": predict},
            f"/v2/models/{name}/infer": {"post": infer},
            f"/v2/models/{name}": {"get": _get("Model metadata")},
            f"/v2/models/{name}/ready": {"get": _get("Whether the model is ready (200) or not (503)", not_ready=True)},
            "/v2": {"get": _get("Server metadata")},
            "/v2/health/live": {"get": _get("Whether the process is alive")},
            "/v2/health/ready": {"get": _get("Whether requests should be sent here", not_ready=True)},
            "/metrics": {"get": _get("Prometheus metrics", "text/plain")},
            "/openapi.json": {"get": _get("This document")},
        },
        "components": {"schemas": _schemas(deployment)},
    }


def _schemas(deployment: Deployment) -> dict[str, Any]:
    model = deployment.model
    return {
        "PredictionRequest": _prediction_request(deployment),
        "PredictionReply": {
            "type": "object",
            "required": ["model", "predictions"],
            "properties": {"model": {"const": deployment.name}, "predictions": {"type": "array"}},
        },
        "InferenceRequest": _inference_request(model.inputs),
        "InferenceReply": {
            "type": "object",
            "required": ["model_name", "model_version", "outputs"],
            "properties": {
                "model_name": {"const": deployment.name},
                "model_version": {"type": "string"},
                "id": {"type": "string"},
                "outputs": {"type": "array", "items": {"oneOf": [_tensor(tensor) for tensor in model.outputs]}},
            },
        },
        "Error": {
            "type": "object",
            "required": ["error", "code", "hint"],
            "properties": {
                **{key: {"type": "string"} for key in ("error", "code", "hint")},
                "incident": {"type": "string", "description": "under which the server's log says more"},
            },
        },
    }


def _prediction_request(deployment: Deployment) -> dict[str, Any]:
    properties: dict[str, Any] = {"rows": {"type": "array", "minItems": 1, "items": {"type": "object"}}}
    if deployment.features.groups:
        items = _entity(deployment.features.entity)
        properties["entities"] = {"type": "array", "minItems": 1, "items": items}
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    }


def _inference_request(inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": {
                "type": "object",
                "properties": {"timeout": {"type": "integer", "minimum": 0, "description": "microseconds"}},
            },
            "inputs": {
                "type": "array",
                "minItems": len(inputs),
                "maxItems": len(inputs),
                "items": {"oneOf": [_tensor(tensor) for tensor in inputs]},
            },
            "outputs": {
                "type": "array",
                "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
            },
        },
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    shape = [{"const": size} if size != -1 else {"type": "integer", "minimum": 1} for size in tensor.shape]
    return {
        "type": "object",
        "required": ["name", "shape", "datatype", "data"],
        "properties": {
            "name": {"const": tensor.name},
            "datatype": {"const": tensor.datatype},
            "shape": {"type": "array", "prefixItems": shape, "minItems": len(shape), "maxItems": len(shape)},
            "data": {
                "type": "array",
                "description": f"{_TYPES.get(tensor.datatype, 'integer')} values, flat or nested, in row-major order",
            },
        },
    }


def _entity(fields: tuple[str, ...]) -> dict[str, Any]:
    scalar = {"type": ["string", "integer", "number"]}
    if len(fields) == 1:
        return {**scalar, "description": fields[0]}
    return {"type": "object", "required": list(fields), "properties": {field: scalar for field in fields}}


def _content(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _error(description: str) -> dict[str, Any]:
    return {"description": description, "content": _content("Error")}


def _headers(server: Server) -> list[dict[str, Any]]:
    headers: list[dict[str, Any]] = [
        {
            "name": "x-tailcut-timeout-ms",
            "in": "header",
            "description": "deadline of this request in milliseconds; "
            f"above {server.max_timeout_s * 1e3:g} it counts as that",
            "schema": {"type": "number", "exclusiveMinimum": 0},
        }
    ]
    if server.tenant_header:
        headers.append(
            {
                "name": server.tenant_header.lower(),
                "in": "header",
                "required": True,
                "description": "the tenant whose request it is",
                "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_TENANT},
            }
        )
    return headers


def _post(summary: str, request: str, reply: str, headers: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "summary": summary,
        "parameters": headers,
        "requestBody": {"required": True, "content": _content(request)},
        "responses": {
            "200": {"description": "the answer; Server-Timing has each stage in ms", "content": _content(reply)},
            **{status: _error(description) for status, description in _ERRORS.items()},
        },
    }


def _get(summary: str, kind: str = "application/json", *, not_ready: bool = False) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": summary, "content": {kind: {}}}}
    if not_ready:
        responses["503"] = {"description": "not ready", "content": {kind: {}}}
    return {"summary": summary, "responses": responses}
