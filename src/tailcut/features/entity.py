"""Reads an entity out of a request: strictly, because what is wrong here would fail a whole batch later."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tailcut.errors import BadRequest

EntityKey = tuple[Any, ...]
"""Values of the ``features.entity`` fields, in order."""

MAX_CHARACTERS = 1024
_LEAST, _MOST = -(2**63), 2**63 - 1


def parse_entity(value: object, fields: tuple[str, ...]) -> EntityKey:
    """Check one entity: a plain value where there is one field, else an object with exactly these fields.

    Raises:
        BadRequest: what is wrong, naming the field.
    """
    if isinstance(value, Mapping):
        return _from_mapping(value, fields)
    if len(fields) == 1:
        return (_part(value, fields[0]),)
    raise BadRequest(
        f"an entity is {_shown(value)}; it must be an object with the fields {', '.join(fields) or '(none)'}",
        hint="see /openapi.json for an example" if fields else "this model has no entities: send rows",
    )


def _from_mapping(value: Mapping[Any, Any], fields: tuple[str, ...]) -> EntityKey:
    for field in fields:
        if field not in value:
            raise BadRequest(f'an entity lacks the field "{field}"', hint=f"its fields are {', '.join(fields)}")
    for name in value:
        if name not in fields:
            raise BadRequest(
                f"an entity has the unknown field {_shown(name)}", hint=f"its fields are {', '.join(fields)}"
            )
    return tuple([_part(value[field], field) for field in fields])


def _part(value: object, field: str) -> str | int | float | bool:
    if isinstance(value, str):
        return _text(value, field)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not _LEAST <= value <= _MOST:
            raise BadRequest(
                f'entity field "{field}" is {value}, the limits are {_LEAST} and {_MOST}', hint="send text"
            )
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadRequest(f'entity field "{field}" is {value}', hint="send a finite number")
        return value
    raise BadRequest(
        f'entity field "{field}" is {_shown(value)}; it must be text, a number or a boolean', hint="send a plain value"
    )


def _text(value: str, field: str) -> str:
    if len(value) > MAX_CHARACTERS:
        raise BadRequest(
            f'entity field "{field}" has {len(value)} characters, the limit is {MAX_CHARACTERS}',
            hint="send the key only",
        )
    if "\0" in value:
        raise BadRequest(f'entity field "{field}" holds a NUL character, which no database takes', hint="remove it")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise BadRequest(
                f'entity field "{field}" is not valid Unicode: {error.reason}', hint="send UTF-8"
            ) from error
    return value


def _shown(value: object) -> str:
    if value is None:
        return "null"
    text = repr(value) if isinstance(value, str | int | float) else f"of type {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."
