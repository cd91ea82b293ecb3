"""The values of inputs and fields in /openapi.json, with the limits that requests are held to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tailcut.core.bounds import Bound
from tailcut.engine.limits import bounds_of, fields_of
from tailcut.manifest import Model, Tensor

_TYPES = {"BOOL": "boolean", "FP16": "number", "FP32": "number", "FP64": "number", "BYTES": "string"}
_FIELD_TYPES = {"integer": "integer", "number": "number", "text": "string", "boolean": "boolean"}

Schema = dict[str, Any]


def type_of(tensor: Tensor) -> str:
    """Return the JSON type of a tensor's values."""
    return _TYPES.get(tensor.datatype, "integer")


def value_schema(tensor: Tensor, bounds: Sequence[Bound]) -> Schema:
    """Return the schema of one value of an input, wherever in the row it stands.

    Args:
        bounds: of the served variant's version.
    """
    schema: Schema = {"type": type_of(tensor)}
    for bound in bounds_of(tensor, bounds):
        if not bound.columns:
            _narrow(schema, bound, is_text=tensor.datatype == "BYTES")
    return schema


def data_schema(tensor: Tensor, bounds: Sequence[Bound]) -> Schema:
    """Return the schema of an input's ``data``: flat, or nested as deep as the shape."""
    value = value_schema(tensor, bounds)
    if tensor.allow_nan and value["type"] == "number" and "enum" not in value:
        value["type"] = ["number", "null"]
    flat: Schema = {"type": "array", "items": value}
    nested = flat
    for _ in tensor.shape[1:]:
        nested = {"type": "array", "items": nested}
    described = {"description": "values, flat or nested, in row-major order"}
    return {**flat, **described} if nested is flat else {"anyOf": [flat, nested], **described}


def sizes(tensor: Tensor, bounds: Sequence[Bound]) -> list[Schema]:
    """Return the schema of each dimension of an input's ``shape``."""
    longest = _longest(tensor, bounds)
    free: Schema = {"type": "integer", "minimum": 1}
    limited: Schema = free if longest is None else {**free, "maximum": longest}
    return [
        {"const": size} if size != -1 else (limited if axis else dict(free)) for axis, size in enumerate(tensor.shape)
    ]


def row_value(tensor: Tensor, bounds: Sequence[Bound]) -> Schema:
    """Return the schema of one row of an input: a single value, or a flat list."""
    single = value_schema(tensor, bounds)
    if len(tensor.shape) == 1:
        return single
    width = tensor.shape[1]
    limits: Schema = {"minItems": 1} if width == -1 else {"minItems": width, "maxItems": width}
    if width == -1 and (longest := _longest(tensor, bounds)) is not None:
        limits["maxItems"] = longest
    flat = {"type": "array", "items": single, **limits}
    return {"oneOf": [single, flat]} if width in {-1, 1} else flat


def field_schemas(model: Model, bounds: Sequence[Bound]) -> dict[str, Schema]:
    """Return the schema of each field of rows and entities that has limits."""
    found: dict[str, Schema] = {}
    for field in model.fields:
        schema: Schema = {} if field.type == "any" else {"type": _FIELD_TYPES[field.type]}
        limits = Bound(input="", min=field.min, max=field.max, values=field.values or None, max_length=field.max_length)
        _narrow(schema, limits, is_text=True)
        found[field.name] = schema
    for tensor in () if model.reads_any_field else model.inputs:
        for position, name in enumerate(fields_of(tensor)):
            about = [bound for bound in bounds_of(tensor, bounds) if not bound.columns or position in bound.columns]
            if about:
                schema = found.setdefault(name, {})
                schema.setdefault("type", type_of(tensor))
                for bound in about:
                    _narrow(schema, bound, is_text=tensor.datatype == "BYTES")
    return found


def _longest(tensor: Tensor, bounds: Sequence[Bound]) -> int | None:
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
