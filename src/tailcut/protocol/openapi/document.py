"""/openapi.json: the HTTP interface of a server, made from the manifests of its models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tailcut.common.bounds import Bound
from tailcut.manifest import Deployment, Model, ServerSettings, TensorSpec
from tailcut.models.value_limits import bounds_of, fields_of, limits_said
from tailcut.protocol.http import LONGEST_TENANT
from tailcut.protocol.routing import Operation, Route
from tailcut.version import version

INFERENCE, MANAGEMENT = "inference", "management"
"""Names of the security schemes."""

_ERRORS = {
    "400": "the request is wrong; `error` names the input, the value and the limit",
    "401": "no bearer token, or an invalid one",
    "403": "this needs a management token: others may reach this server, and server.management_tokens is not set",
    "404": "no such model, version, path or entity",
    "408": "the body was not complete at the deadline",
    "413": "the body or the batch is over the limit",
    "415": "the body's content-encoding is neither gzip nor deflate",
    "429": "shed: the queue is full; retry after Retry-After seconds",
    "500": "the model or a hook failed; find `incident` in the server's log",
    "503": "not ready, or a feature group cannot be fetched",
    "504": "the deadline passed; the code names the phase",
}
_PREDICTING = ("400", "404", "408", "413", "415", "429", "500", "503", "504")

_ANY = {"type": "object"}
SCHEMAS: dict[str, Any] = {
    "Error": {
        "type": "object",
        "required": ["error", "code", "hint"],
        "properties": {
            **{key: {"type": "string"} for key in ("error", "code", "hint")},
            "incident": {"type": "string", "description": "key of this error in the server's log"},
        },
    },
    "IndexRequest": {"type": "object", "properties": {"ready": {"type": "boolean"}}},
    "IndexReply": {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["name", "version", "state", "reason"],
            "properties": {
                key: {"type": "string"} for key in ("name", "version", "state", "reason", "variant", "status")
            },
        },
    },
    "LoadRequest": {
        "type": "object",
        "properties": {
            "parameters": {
                "type": "object",
                "properties": {"version": {"type": "string"}, "variant": {"type": "string"}},
                "additionalProperties": False,
            }
        },
    },
    "UnloadRequest": {"type": "object", "properties": {"parameters": {"type": "object"}}},
    "Statistics": {
        "type": "object",
        "required": ["model_stats"],
        "properties": {"model_stats": {"type": "array", "items": {"type": "object", "required": ["name", "version"]}}},
    },
}


def _paths(routes: Mapping[str, Route], server: ServerSettings, model: str = "") -> dict[str, Any]:
    """Return what is described of some routes; those of a model also with a version.

    Args:
        model: path of the model; empty for routes of none.
    """
    found: dict[str, Any] = {}
    for path, route in routes.items():
        operation = dict(route.operation)
        schemes = {INFERENCE: server.tokens, MANAGEMENT: server.management_tokens}
        if "security" in operation and not any(schemes[name] for each in operation["security"] for name in each):
            del operation["security"]
        elif "security" in operation:
            operation["responses"] = {**operation["responses"], "401": _error(_ERRORS["401"])}
        found[path] = {route.method.lower(): operation}
        if model and f"{path}/".startswith(f"{model}/"):
            versioned = f"{model}/versions/{{version}}{path.removeprefix(model)}"
            found[versioned] = {route.method.lower(): _of_version(operation)}
    return found


def _of_version(operation: Operation) -> Operation:
    version = {"name": "version", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    return {
        **operation,
        "summary": f"{operation['summary']}, of a version",
        "parameters": [version, *operation.get("parameters", [])],
        "responses": {**operation["responses"], "404": _error(_ERRORS["404"])},
    }


def _content(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _error(description: str) -> dict[str, Any]:
    return {"description": description, "content": _content("Error")}


def _headers(server: ServerSettings) -> list[dict[str, Any]]:
    headers: list[dict[str, Any]] = [
        {
            "name": "x-tailcut-timeout-ms",
            "in": "header",
            "description": f"deadline of this request in milliseconds, at most {server.max_timeout_s * 1e3:g}",
            "schema": {"type": "number", "exclusiveMinimum": 0},
        }
    ]
    if server.tenant_header:
        headers.append(
            {
                "name": server.tenant_header.lower(),
                "in": "header",
                "required": not server.tokens,
                "description": "tenant of the request; the token's tenant takes precedence",
                "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_TENANT},
            }
        )
    return headers


def _errors(statuses: Sequence[str]) -> dict[str, Any]:
    return {status: _error(_ERRORS[status]) for status in statuses}


def prediction_operation(
    summary: str, request: str, reply: str, server: ServerSettings, *, kind: str = "application/json"
) -> Operation:
    """Describe a route that answers with predictions.

    Args:
        request, reply: names of schemas.
        kind: of the reply; another than JSON has no schema.
    """
    content = _content(reply) if kind == "application/json" else {kind: {"schema": {"type": "string"}}}
    return {
        "summary": summary,
        "parameters": _headers(server),
        "requestBody": {"required": True, "content": _content(request)},
        "responses": {
            "200": {"description": "the answer; Server-Timing has each stage in ms", "content": content},
            **_errors(_PREDICTING),
        },
        "security": [{INFERENCE: []}],
    }


def repository_operation(
    summary: str, request: str, errors: Sequence[str], scheme: str = MANAGEMENT, reply: Mapping[str, Any] = _ANY
) -> Operation:
    """Describe a route about the repository of models; the body may be left out."""
    return {
        "summary": summary,
        "requestBody": {"required": False, "content": _content(request)},
        "responses": {
            "200": {"description": "done", "content": {"application/json": {"schema": reply}}},
            **_errors(errors),
        },
        "security": [{scheme: []}],
    }


def get_operation(
    summary: str,
    schema: str = "",
    *,
    kind: str = "application/json",
    not_ready: bool = False,
    errors: Sequence[str] = (),
    scheme: str = "",
) -> Operation:
    """Describe a route that is only read.

    Args:
        schema: of the reply, by name; empty where it has none.
        not_ready: whether it answers 503 before the model is ready.
        scheme: of the token that it needs, where the manifest names a file of them.
    """
    content = _content(schema) if schema else {kind: {}}
    responses: dict[str, Any] = {"200": {"description": summary, "content": content}, **_errors(errors)}
    if not_ready:
        responses["503"] = {"description": "not ready", "content": {"application/json": {}}}
    return {"summary": summary, "responses": responses} | ({"security": [{scheme: []}]} if scheme else {})


Described = tuple[Deployment, Sequence[Bound]]
"""A model, and the bounds of its inputs beside the manifest's own: those of the version that is served."""


def openapi(
    name: str, server: ServerSettings, models: Sequence[Described], routes: Mapping[str, Mapping[str, Route]]
) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of a server's HTTP interface.

    Where it has several models, the name of each stands before those of its schemas.

    Args:
        name: of the only model; empty where there are several.
        routes: by path, of each model by name; under the empty name those that belong to none.
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
        "components": {"schemas": dict(SCHEMAS)},
    }
    for deployment, bounds in models:
        own = _schemas(deployment, bounds)
        prefix = f"{deployment.name}." if len(models) > 1 else ""
        paths = _paths(routes[deployment.name], deployment.server, f"/v2/models/{deployment.name}")
        document["paths"] |= _renamed(paths, own, prefix)
        document["components"]["schemas"] |= {
            f"{prefix}{name}": _renamed(schema, own, prefix) for name, schema in own.items()
        }
    document["paths"] |= _paths(routes[""], server)
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
        "GenerateRequest": {
            "type": "object",
            "required": [tensor.name for tensor in model.inputs],
            "properties": {
                "id": {},
                "parameters": {"type": "object"},
                **{tensor.name: row_value(tensor, bounds) for tensor in model.inputs},
            },
            "additionalProperties": False,
        },
        "GenerateReply": {
            "type": "object",
            "required": ["model_name", "model_version", *(tensor.name for tensor in model.outputs)],
            "properties": {"model_name": {"const": deployment.name}, "model_version": {"type": "string"}},
        },
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


def _inference_request(inputs: tuple[TensorSpec, ...], bounds: Sequence[Bound]) -> dict[str, Any]:
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


def _input(tensor: TensorSpec, bounds: Sequence[Bound]) -> dict[str, Any]:
    found = _tensor(tensor)
    found["properties"]["shape"]["prefixItems"] = sizes(tensor, bounds)
    found["properties"]["data"] = data_schema(tensor, bounds)
    return found


def _tensor(tensor: TensorSpec) -> dict[str, Any]:
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


# -- Limits as JSON schema ---------------------------------------------------------------------------------------------


# The values of inputs and fields in /openapi.json, with the limits that requests are held to. Pure.

_TYPES = {"BOOL": "boolean", "FP16": "number", "FP32": "number", "FP64": "number", "BYTES": "string"}
_FIELD_TYPES = {"integer": "integer", "number": "number", "text": "string", "boolean": "boolean"}

Schema = dict[str, Any]


def type_of(tensor: TensorSpec) -> str:
    """Return the JSON type of a tensor's values."""
    return _TYPES.get(tensor.datatype, "integer")


def value_schema(tensor: TensorSpec, bounds: Sequence[Bound]) -> Schema:
    """Return the schema of one value of an input, wherever in the row it stands.

    Args:
        bounds: of the served variant's version.
    """
    schema: Schema = {"type": type_of(tensor)}
    for bound in bounds_of(tensor, bounds):
        if not bound.columns:
            _narrow(schema, bound, is_text=tensor.datatype == "BYTES")
    return _or_null(schema) if _takes_null(tensor) else schema


def positions_said(tensor: TensorSpec, bounds: Sequence[Bound]) -> str:
    """Return the limits of single positions of a row in words, for which JSON's schema has none where data is flat."""
    said = [
        f"position {', '.join(map(str, bound.columns))}: {limits}"
        for bound in bounds_of(tensor, bounds)
        if bound.columns and (limits := limits_said(bound))
    ]
    return f"in the flattened row, {'; '.join(said)}" if said else ""


def data_schema(tensor: TensorSpec, bounds: Sequence[Bound]) -> Schema:
    """Return the schema of an input's ``data``: flat, or nested as deep as the shape."""
    value = value_schema(tensor, bounds)
    flat: Schema = {"type": "array", "items": value}
    nested = flat
    for _ in tensor.shape[1:]:
        nested = {"type": "array", "items": nested}
    null = f"; null is {'a missing text' if tensor.datatype == 'BYTES' else 'NaN'}" if tensor.allow_nan else ""
    positions = positions_said(tensor, bounds)
    described = {"description": f"values, flat or nested, in row-major order{null}{positions and f'; {positions}'}"}
    return {**flat, **described} if nested is flat else {"anyOf": [flat, nested], **described}


def sizes(tensor: TensorSpec, bounds: Sequence[Bound]) -> list[Schema]:
    """Return the schema of each dimension of an input's ``shape``."""
    longest = _longest(tensor, bounds)
    free: Schema = {"type": "integer", "minimum": 1}
    limited: Schema = free if longest is None else {**free, "maximum": longest}
    return [
        {"const": size} if size != -1 else (limited if axis else dict(free)) for axis, size in enumerate(tensor.shape)
    ]


def row_value(tensor: TensorSpec, bounds: Sequence[Bound]) -> Schema:
    """Return the schema of one row of an input: a single value, or a flat list."""
    single = value_schema(tensor, bounds)
    if len(tensor.shape) == 1:
        return single
    width = tensor.shape[1]
    limits: Schema = {"minItems": 1} if width == -1 else {"minItems": width, "maxItems": width}
    if width == -1 and (longest := _longest(tensor, bounds)) is not None:
        limits["maxItems"] = longest
    if positions := positions_said(tensor, bounds):
        limits["description"] = positions
    flat = {"type": "array", "items": single, **limits}
    return {"oneOf": [single, flat]} if width in {-1, 1} else flat


def field_schemas(model: Model, bounds: Sequence[Bound], *, is_entity: bool = False) -> dict[str, Schema]:
    """Return the schema of each field of rows and entities that has limits.

    Args:
        is_entity: whether the fields are an entity's, which may not be null.
    """
    found: dict[str, Schema] = {}
    for field in model.fields:
        schema: Schema = {} if field.type == "any" else {"type": _FIELD_TYPES[field.type]}
        limits = Bound(input="", min=field.min, max=field.max, values=field.values or None, max_length=field.max_length)
        _narrow(schema, limits, is_text=True)
        found[field.name] = schema
    not_null = set()
    for tensor in () if model.reads_any_field else model.inputs:
        for position, name in enumerate(fields_of(tensor)):
            if not _takes_null(tensor):
                not_null.add(name)
            about = [bound for bound in bounds_of(tensor, bounds) if not bound.columns or position in bound.columns]
            if about:
                schema = found.setdefault(name, {})
                schema.setdefault("type", type_of(tensor))
                for bound in about:
                    _narrow(schema, bound, is_text=tensor.datatype == "BYTES")
    return {name: each if is_entity or name in not_null else _or_null(each) for name, each in found.items()}


def _takes_null(tensor: TensorSpec) -> bool:
    """Return whether null is a value of an input: NaN, or a missing text."""
    return tensor.allow_nan and type_of(tensor) in {"number", "string"}


def _or_null(schema: Schema) -> Schema:
    """Return a schema that takes null, too."""
    more: Schema = {}
    if "type" in schema:
        more["type"] = [schema["type"], "null"]
    if "enum" in schema:
        more["enum"] = [*schema["enum"], None]
    return {**schema, **more}


def _longest(tensor: TensorSpec, bounds: Sequence[Bound]) -> int | None:
    if tensor.datatype == "BYTES":
        return None
    lengths: Iterable[int | None] = (bound.max_length for bound in bounds_of(tensor, bounds))
    return min((length for length in lengths if length is not None), default=None)


def _narrow(schema: Schema, bound: Bound, *, is_text: bool) -> None:
    """Put a bound into a schema beside those that are in it."""
    if bound.min is not None:
        schema["minimum"] = max(bound.min, schema.get("minimum", bound.min))
    if bound.max is not None:
        schema["maximum"] = min(bound.max, schema.get("maximum", bound.max))
    if bound.values is not None:
        before = schema.get("enum", bound.values)
        schema["enum"] = [value for value in bound.values if value in before]
    if bound.max_length is not None and is_text:
        schema["maxLength"] = min(bound.max_length, schema.get("maxLength", bound.max_length))
