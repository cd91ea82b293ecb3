"""Reads an entity out of a request: strictly, because what is wrong here would fail a whole batch later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailcut.errors import BadRequest
from tailcut.features.key_types import KeyType

EntityKey = tuple[Any, ...]
"""Values of the ``features.entity`` fields, in order, each in the normal form of its type."""

MAX_CHARACTERS = 1024
_PLAIN = frozenset({int, str, float, bool})


def parse_entity(value: object, fields: tuple[str, ...], types: Sequence[KeyType]) -> EntityKey:
    """Check one entity: a plain value where there is one field, else an object with exactly these fields.

    Args:
        types: of the fields, in order.

    Raises:
        BadRequest: what is wrong, naming the field.
    """
    # First, because it is what most requests send, and asking whether a value is a mapping costs more than the rest.
    if type(value) in _PLAIN and len(fields) == 1:
        return (_part(value, fields[0], types[0]),)
    if isinstance(value, Mapping):
        return _from_mapping(value, fields, types)
    if len(fields) == 1:
        return (_part(value, fields[0], types[0]),)
    raise BadRequest(
        f"an entity is {_shown(value)}; it must be an object with the fields {', '.join(fields) or '(none)'}",
        hint="see /openapi.json for an example" if fields else "this model has no entities: send rows",
    )


def _from_mapping(value: Mapping[Any, Any], fields: tuple[str, ...], types: Sequence[KeyType]) -> EntityKey:
    for field in fields:
        if field not in value:
            raise BadRequest(f'an entity lacks the field "{field}"', hint=f"its fields are {', '.join(fields)}")
    for name in value:
        if name not in fields:
            raise BadRequest(
                f"an entity has the unknown field {_shown(name)}", hint=f"its fields are {', '.join(fields)}"
            )
    return tuple([_part(value[field], field, kind) for field, kind in zip(fields, types, strict=True)])


def _part(value: object, field: str, kind: KeyType) -> Any:
    if isinstance(value, str):
        _check_text(value, field)
    elif not isinstance(value, int | float):
        raise BadRequest(
            f'entity field "{field}" is {_shown(value)}; it must be text, a number or a boolean',
            hint="send a single value",
        )
    try:
        return kind.normal(value)
    except ValueError as error:
        why = f": {error}" if str(error) else ""
        raise BadRequest(
            f'entity field "{field}" is {_shown(value)}, which is no {kind.name}{why}', hint=kind.takes
        ) from error


def _check_text(value: str, field: str) -> None:
    if len(value) > MAX_CHARACTERS:
        raise BadRequest(
            f'entity field "{field}" has {len(value)} characters, the limit is {MAX_CHARACTERS}',
            hint="send the key only",
        )
    if "\0" in value:
        raise BadRequest(
            f'entity field "{field}" holds a NUL character, which databases do not accept', hint="remove it"
        )
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise BadRequest(
                f'entity field "{field}" is not valid Unicode: {error.reason}', hint="send UTF-8"
            ) from error


def _shown(value: object) -> str:
    if value is None:
        return "null"
    text = _json(value) if isinstance(value, str | int | float) else f"of type {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def _json(value: float | str) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
