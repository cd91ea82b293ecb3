"""The values of inputs and fields in /openapi.json, with the limits that requests are held to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tailcut.common.bounds import Bound
from tailcut.manifest import Model, Tensor
from tailcut.models.value_limits import bounds_of, fields_of, limits_said

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
    return _or_null(schema) if _takes_null(tensor) else schema


def positions_said(tensor: Tensor, bounds: Sequence[Bound]) -> str:
    """Return the limits of single positions of a row in words, for which JSON's schema has none where data is flat."""
    said = [
        f"position {', '.join(map(str, bound.columns))}: {limits}"
        for bound in bounds_of(tensor, bounds)
        if bound.columns and (limits := limits_said(bound))
    ]
    return f"in the flattened row, {'; '.join(said)}" if said else ""


def data_schema(tensor: Tensor, bounds: Sequence[Bound]) -> Schema:
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


def _takes_null(tensor: Tensor) -> bool:
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
