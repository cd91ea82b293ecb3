"""The type of each field of the entity, from its groups' keys and from the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailcut.errors import StartError
from tailcut.features.groups import Group
from tailcut.features.key_types import (
    ANY,
    BOOLEAN,
    DECLARED,
    MIXED,
    NUMERIC_OR_TEXT,
    SENT_AS_TEXT,
    TEXT,
    KeyType,
    common_type,
)
from tailcut.manifest.schema import Features


def field_types(features: Features, groups: Sequence[Group], declared: Mapping[str, str]) -> tuple[KeyType, ...]:
    """The type of each field of the entity, from the groups that have it in their key and from ``model.fields``.

    Raises:
        StartError: no value could be right for all of them.
    """
    return tuple(_field_type(name, groups, declared.get(name, "any")) for name in features.entity)


def _field_type(name: str, groups: Sequence[Group], declared: str) -> KeyType:
    found = {
        group.name: group.source.key_types[group.spec.key.index(name)] for group in groups if name in group.spec.key
    }
    kind = common_type(list(found.values()))
    said = ", ".join(f"{kind.name} in {group}" for group, kind in found.items() if kind != ANY)
    if kind is None:
        raise StartError(
            f'features.entity: the field "{name}" is a key of several types: {said}',
            hint="cast the columns to one type in the groups' queries",
        )
    if (wanted := DECLARED.get(declared)) is None:
        return kind
    common = common_type([wanted, kind])
    # A column without a type does not say what it holds; the declaration does.
    if common == wanted or (kind == MIXED and wanted != BOOLEAN) or (wanted == TEXT and kind == NUMERIC_OR_TEXT):
        return wanted
    if (declared == "number" and common == kind) or (wanted == TEXT and kind in SENT_AS_TEXT):
        return kind
    raise StartError(
        f'model.fields: "{name}" is declared as {declared}, but the key is {said}',
        hint="declare the type of the column, or remove it",
    )


def settle(groups: Sequence[Group], entity: Sequence[str], types: Sequence[KeyType]) -> None:
    """Tell each group which parts of its key differ from what a request's row holds."""
    of_field = dict(zip(entity, types, strict=True))
    for group in groups:
        own, known = group.key_types, group.source.key_types
        # What the values of a table tell may be another type when it is read again.
        inferred = [group.table is not None and kind == ANY for kind in known]
        group.converted = tuple(
            at
            for at, name in enumerate(group.spec.key)
            if inferred[at] or (own[at] != ANY and own[at] != of_field.get(name))
        )
        group.key_is_entity = group.key_is_entity and not group.converted
