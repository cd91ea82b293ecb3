"""Limits of inputs and fields that cannot work. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from reprlib import repr as shown
from typing import Any

from tailcut.errors import ManifestError
from tailcut.manifest.keys import meant, repeated, to_toml
from tailcut.manifest.schema import Deployment, Field, TensorSpec
from tailcut.manifest.schema.model import LIMITS

_KINDS = {"BYTES": "text", "BOOL": "boolean", "FP16": "number", "FP32": "number", "FP64": "number"}
"""What a tensor's values are; a datatype that is not here has integers."""

_WORDS = {"text": "texts", "boolean": "true or false", "number": "numbers", "integer": "whole numbers"}


def bounds_problems(deployment: Deployment) -> Iterator[ManifestError]:
    """Yield what cannot work in ``min``, ``max``, ``values``, ``max_length`` and ``type``."""
    model = deployment.model
    for tensor in model.outputs:
        if given := [name for name in LIMITS if getattr(tensor, name) not in (None, ())]:
            yield ManifestError(
                f"model.outputs.{tensor.name}.{given[0]}: an output has no limits",
                hint=f"remove it; {', '.join(LIMITS)} limit the inputs of requests",
            )
    for tensor in model.inputs:
        kind = _KINDS.get(tensor.datatype, "integer")
        path = f"model.inputs.{tensor.name}"
        yield from _limits(path, tensor, kind)
        if kind == "integer":
            yield from _representable(path, tensor)
        if tensor.max_length is not None and kind != "text" and -1 not in tensor.shape[1:]:
            yield ManifestError(
                f"{path}.max_length: {tensor.max_length}, but shape {list(tensor.shape)} has no free dimension",
                hint="remove it, or write -1 for the dimension that may vary",
            )
    for field in model.fields:
        yield from _limits(f"model.fields.{field.name}", field, "" if field.type == "any" else field.type)
    yield from _field_names(deployment)


def _limits(path: str, limits: TensorSpec | Field, kind: str) -> Iterator[ManifestError]:
    """Yield what contradicts another limit, or what the values are."""
    low, high = limits.min, limits.max
    for name, limit in (("min", low), ("max", high)):
        if limit is None:
            continue
        if kind in {"text", "boolean"}:
            yield ManifestError(
                f"{path}.{name}: {limit}, but its values are {_WORDS[kind]}",
                hint="list the allowed values in values" + (", or set max_length" if kind == "text" else ""),
            )
        elif not isfinite(limit):
            yield ManifestError(
                f"{path}.{name}: {to_toml(limit)} is not a limit", hint="remove it: without the key there is no limit"
            )
        elif kind == "integer" and limit != int(limit):
            yield ManifestError(
                f"{path}.{name}: {limit}, but its values are whole numbers", hint=f"write for example {int(limit)}"
            )
    if low is not None and high is not None and low > high:
        yield ManifestError(f"{path}.min: {low} is above max = {high}, so no value is allowed", hint="swap the two")
    for value in limits.values:
        if problem := _value_problem(value, limits, kind):
            yield ManifestError(f"{path}.values: {shown(value)} {problem}", hint="remove it, or change the other key")


def _value_problem(value: Any, limits: TensorSpec | Field, kind: str) -> str:
    """Say why a value cannot be among the allowed ones; empty where it can."""
    if kind and not _is_kind(value, kind):
        return f"is not allowed: values must be {_WORDS[kind]}"
    is_text, longest = isinstance(value, str), limits.max_length
    if isinstance(value, float) and not isfinite(value):
        return "cannot be an allowed value; allow NaN with allow_nan"
    if is_text and longest is not None and len(value) > longest:
        return f"has {len(value)} characters, more than max_length = {longest}"
    for name, limit, sign in (("min", limits.min, 1), ("max", limits.max, -1)):
        if limit is None:
            continue
        if is_text:
            return f"is a text, but {name} = {limit} is for numbers"
        if (value - limit) * sign < 0:
            return f"is {'below' if sign > 0 else 'above'} {name} = {limit}"
    return ""


def _is_kind(value: Any, kind: str) -> bool:
    if kind == "text":
        return isinstance(value, str)
    if kind == "boolean" or isinstance(value, bool):
        return kind == "boolean" and isinstance(value, bool)
    whole = kind != "integer" or not isinstance(value, float) or value.is_integer()
    return isinstance(value, int | float) and whole


def _representable(path: str, tensor: TensorSpec) -> Iterator[ManifestError]:
    """Yield a value that the datatype does not have: no request could hold it."""
    kind, _, bits = tensor.datatype.partition("INT")  # without NumPy, which takes longer to import than all of this
    least, most = (0, 2 ** int(bits) - 1) if kind else (-(2 ** (int(bits) - 1)), 2 ** (int(bits) - 1) - 1)
    for value in tensor.values:
        if isinstance(value, int | float) and not least <= value <= most:
            yield ManifestError(
                f"{path}.values: {value} is outside the range of {tensor.datatype}, {least} to {most}",
                hint="remove it, or change the datatype",
            )


def _field_names(deployment: Deployment) -> Iterator[ManifestError]:
    model, features = deployment.model, deployment.features
    names = [field.name for field in model.fields]
    for name in repeated(names):
        yield ManifestError(f"model.fields: {name} is listed twice", hint="write its limits in one block")
    if model.reads_any_field:
        return
    known = {*features.entity, *(column for group in features.groups for column in group.columns)}
    for tensor in model.inputs:
        known.update(tensor.columns or (tensor.name,))
    for name in names:
        if name not in known:
            yield ManifestError(
                f"model.fields.{name}: no entity, row or feature group has this field",
                hint=meant(name, sorted(known), f"the fields are: {', '.join(sorted(known))}"),
            )
