"""/openapi.json: the HTTP interface of a server, made from the manifests of its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailcut.common.bounds import Bound
from tailcut.manifest import Deployment, Server, Tensor
from tailcut.protocol.openapi.limits import data_schema, field_schemas, row_value, sizes, type_of
from tailcut.protocol.openapi.paths import INFERENCE, MANAGEMENT, SCHEMAS, model_paths, server_paths
from tailcut.version import version

Described = tuple[Deployment, Sequence[Bound]]
"""A model, and the bounds of its inputs beside the manifest's own: those of the version that is served."""


def openapi(name: str, server: Server, models: Sequence[Described]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of a server's HTTP interface.

    Where it has several models, the name of each stands before those of its schemas.

    Args:
        name: of the only model; empty where there are several.
    """
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": f"tailcut: {name}" if name else "tailcut",
            "version": version(),
            "description": "Open Inference Protocol v2 with the extensions listed by GET /v2. Every prediction "
            "reports the time of its stages in Server-Timing. Every error has a code and a hint.",
        },
        "paths": {},
        "components": {"schemas": dict(_SHARED)},
    }
    for deployment, bounds in models:
        own = _schemas(deployment, bounds)
        prefix = f"{deployment.name}." if len(models) > 1 else ""
        document["paths"] |= _renamed(model_paths(deployment), own, prefix)
        document["components"]["schemas"] |= {
            f"{prefix}{name}": _renamed(schema, own, prefix) for name, schema in own.items()
        }
    document["paths"] |= server_paths(server)
    schemes = {}
    if server.tokens:
        schemes[INFERENCE] = {"type": "http", "scheme": "bearer", "description": "a token of server.tokens"}
    if server.management_tokens:
        schemes[MANAGEMENT] = {"type": "http", "scheme": "bearer", "description": "a token of server.management_tokens"}
    if schemes:
        document["components"]["securitySchemes"] = schemes
    return document


def _schemas(deployment: Deployment, bounds: Sequence[Bound]) -> dict[str, Any]:
    model = deployment.model
    return {
        "PredictionRequest": _prediction_request(deployment, bounds),
        "PredictionReply": {
            "type": "object",
            "required": ["model", "predictions"],
            "properties": {"model": {"const": deployment.name}, "predictions": {"type": "array"}},
        },
        "InferenceRequest": _inference_request(model.inputs, bounds),
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
        "GenerateRequest": _generate_request(model.inputs, bounds),
        "GenerateReply": _generate_reply(deployment),
    }


def _renamed(value: Any, own: Mapping[str, Any], prefix: str) -> Any:
    """Return a tree whose references to ``own`` schemas have the prefix."""
    if isinstance(value, list):
        return [_renamed(each, own, prefix) for each in value]
    if not isinstance(value, dict):
        return value
    found = {key: _renamed(each, own, prefix) for key, each in value.items()}
    name = str(value.get("$ref", "")).removeprefix(_REF)
    if name in own:
        found["$ref"] = f"{_REF}{prefix}{name}"
    return found


_REF = "#/components/schemas/"
_SHARED = {
    **SCHEMAS,
    "Error": {
        "type": "object",
        "required": ["error", "code", "hint"],
        "properties": {
            **{key: {"type": "string"} for key in ("error", "code", "hint")},
            "incident": {"type": "string", "description": "key of this error in the server's log"},
        },
    },
}


def _prediction_request(deployment: Deployment, bounds: Sequence[Bound]) -> dict[str, Any]:
    fields = field_schemas(deployment.model, bounds)
    row: dict[str, Any] = {"type": "object", "properties": fields} if fields else {"type": "object"}
    properties: dict[str, Any] = {"rows": {"type": "array", "minItems": 1, "items": row}}
    if deployment.features.groups:
        items = _entity(deployment.features.entity, field_schemas(deployment.model, bounds, is_entity=True))
        properties["entities"] = {"type": "array", "minItems": 1, "items": items}
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    }


def _inference_request(inputs: tuple[Tensor, ...], bounds: Sequence[Bound]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": {
                "type": "object",
                "properties": {
                    "timeout": {"type": "integer", "minimum": 0, "description": "microseconds"},
                    "binary_data_output": {"type": "boolean", "description": "all outputs raw, after the JSON"},
                },
            },
            "inputs": {
                "type": "array",
                "minItems": len(inputs),
                "maxItems": len(inputs),
                "items": {"oneOf": [_input(tensor, bounds) for tensor in inputs]},
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


def _input(tensor: Tensor, bounds: Sequence[Bound]) -> dict[str, Any]:
    found = _tensor(tensor)
    found["properties"]["shape"]["prefixItems"] = sizes(tensor, bounds)
    found["properties"]["data"] = data_schema(tensor, bounds)
    return found


def _tensor(tensor: Tensor) -> dict[str, Any]:
    shape = sizes(tensor, ())
    return {
        "type": "object",
        "required": ["name", "shape", "datatype", "data"],
        "properties": {
            "name": {"const": tensor.name},
            "datatype": {"const": tensor.datatype},
            "shape": {"type": "array", "prefixItems": shape, "minItems": len(shape), "maxItems": len(shape)},
            "data": {
                "type": "array",
                "description": f"{type_of(tensor)} values, flat or nested, in row-major order"
                + ("; null is NaN" if tensor.allow_nan and type_of(tensor) == "number" else ""),
            },
        },
    }


def _entity(fields: tuple[str, ...], limits: Mapping[str, Any]) -> dict[str, Any]:
    parts = {field: {"type": ["string", "integer", "number"], **limits.get(field, {})} for field in fields}
    if len(fields) == 1:
        return {**parts[fields[0]], "description": fields[0]}
    return {"type": "object", "required": list(fields), "properties": parts}


def _generate_request(inputs: tuple[Tensor, ...], bounds: Sequence[Bound]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": [tensor.name for tensor in inputs],
        "properties": {
            "id": {},
            "parameters": {"type": "object"},
            **{tensor.name: row_value(tensor, bounds) for tensor in inputs},
        },
        "additionalProperties": False,
    }


def _generate_reply(deployment: Deployment) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["model_name", "model_version", *(tensor.name for tensor in deployment.model.outputs)],
        "properties": {"model_name": {"const": deployment.name}, "model_version": {"type": "string"}},
    }
