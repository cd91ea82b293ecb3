"""/openapi.json: the HTTP interface of one deployment, made from its manifest."""

from __future__ import annotations

from typing import Any

import tailcut
from tailcut.manifest import Deployment, Tensor
from tailcut.server.openapi_paths import INFERENCE, MANAGEMENT, SCHEMAS, paths

_TYPES = {"BOOL": "boolean", "FP16": "number", "FP32": "number", "FP64": "number", "BYTES": "string"}


def openapi(deployment: Deployment) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of a deployment's HTTP interface."""
    server = deployment.server
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": f"tailcut: {deployment.name}",
            "version": tailcut.__version__,
            "description": "Open Inference Protocol v2 with the extensions that GET /v2 names; every reply to a "
            "prediction says in Server-Timing where its time went; every error has a code and the way out.",
        },
        "paths": paths(deployment),
        "components": {"schemas": _schemas(deployment)},
    }
    schemes = {}
    if server.tokens:
        schemes[INFERENCE] = {"type": "http", "scheme": "bearer", "description": "a token of server.tokens"}
    if server.management_tokens:
        schemes[MANAGEMENT] = {"type": "http", "scheme": "bearer", "description": "a token of server.management_tokens"}
    if schemes:
        document["components"]["securitySchemes"] = schemes
    return document


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
        "GenerateRequest": _generate_request(model.inputs),
        "GenerateReply": _generate_reply(deployment),
        **SCHEMAS,
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
                "properties": {
                    "timeout": {"type": "integer", "minimum": 0, "description": "microseconds"},
                    "binary_data_output": {"type": "boolean", "description": "all outputs raw, behind the JSON"},
                },
            },
            "inputs": {
                "type": "array",
                "minItems": len(inputs),
                "maxItems": len(inputs),
                "items": {"oneOf": [_tensor(tensor) for tensor in inputs]},
            },
            "outputs": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {
                        "name": {"type": "string"},
                        "parameters": {
                            "type": "object",
                            "properties": {"binary_data": {"type": "boolean", "description": "this output raw"}},
                        },
                    },
                },
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
                "description": f"{_TYPES.get(tensor.datatype, 'integer')} values, flat or nested, in row-major order"
                + ("; null is NaN" if tensor.allow_nan and _TYPES.get(tensor.datatype) == "number" else ""),
            },
        },
    }


def _entity(fields: tuple[str, ...]) -> dict[str, Any]:
    scalar = {"type": ["string", "integer", "number"]}
    if len(fields) == 1:
        return {**scalar, "description": fields[0]}
    return {"type": "object", "required": list(fields), "properties": {field: scalar for field in fields}}


def _generate_request(inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": [tensor.name for tensor in inputs],
        "properties": {
            "id": {},
            "parameters": {"type": "object"},
            **{tensor.name: _value(tensor) for tensor in inputs},
        },
        "additionalProperties": False,
    }


def _generate_reply(deployment: Deployment) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["model_name", "model_version", *(tensor.name for tensor in deployment.model.outputs)],
        "properties": {"model_name": {"const": deployment.name}, "model_version": {"type": "string"}},
    }


def _value(tensor: Tensor) -> dict[str, Any]:
    """One row of a tensor: a single value, or a flat list."""
    kind = _TYPES.get(tensor.datatype, "integer")
    single: dict[str, Any] = {"type": [kind, "null"] if tensor.allow_nan and kind == "number" else kind}
    if len(tensor.shape) == 1:
        return single
    width = tensor.shape[1]
    limits = {"minItems": 1} if width == -1 else {"minItems": width, "maxItems": width}
    flat = {"type": "array", "items": single, **limits}
    return {"oneOf": [single, flat]} if width in {-1, 1} else flat
