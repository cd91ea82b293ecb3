"""What the schema says about each key, in a form that loading, flags, ``tailcut init`` and the docs share."""

from __future__ import annotations

import difflib
import json
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from tailcut.common.units import Duration, Share, Size, format_duration, format_share, format_size
from tailcut.manifest.schema import Deployment
from tailcut.manifest.schema.model import OF_INPUTS
from tailcut.manifest.section import NAME_PATTERN, Section

ENVIRONMENT_PREFIX = "TAILCUT_"
_FORMATS: dict[type, Callable[[Any], str]] = {Duration: format_duration, Size: format_size, Share: format_share}
_ITEM_WORDS: dict[type[inspect.Type], str] = {
    inspect.StrType: "strings",
    inspect.IntType: "integers",
    inspect.FloatType: "numbers",
    inspect.BoolType: "booleans",
}


@dataclass(frozen=True)
class Key:
    """One key of one section.

    Attributes:
        name: as it is written in the file.
        attribute: as it is called in Python (with its unit).
        kind: type and limits; a section has a ``StructType``.
        annotation: the same as Python's typing writes it.
        default: ``msgspec.NODEFAULT`` where the key is required.
        examples: values for ``tailcut init`` where the default alone does not show the form.
    """

    name: str
    attribute: str
    kind: inspect.Type
    annotation: Any
    description: str
    default: Any
    examples: tuple[Any, ...]

    @property
    def required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    @property
    def section(self) -> type[Section] | None:
        """The section below this key; None for a value."""
        return _section(self.kind)

    @property
    def element(self) -> type[Section] | None:
        """The section that each element of this list is; None for anything else."""
        return _section(self.kind.item_type) if isinstance(self.kind, inspect.VarTupleType) else None


@cache
def keys_of(section: type[Section]) -> dict[str, Key]:
    """The keys of a section by name, in the schema's order."""
    annotations = typing.get_type_hints(section, include_extras=True)
    found = inspect.type_info(section)
    assert isinstance(found, inspect.StructType)
    return {field.encode_name: _key(field, annotations[field.name]) for field in found.fields}


def keys_at(section: type[Section], path: tuple[str, ...]) -> list[Key]:
    """The keys of a section that may be set where it stands: an output has neither columns nor limits."""
    keys = keys_of(section).values()
    return [key for key in keys if not (path[:2] == ("model", "outputs") and key.name in OF_INPUTS)]


def find(path: str) -> Key:
    """The key at a dotted path without list elements, such as "server.port".

    Raises:
        KeyError: no such key: a mistake of the program, not of its user.
    """
    section: type[Section] | None = Deployment
    for part in path.split("."):
        if section is None:
            raise KeyError(path)
        key = keys_of(section)[part]
        section = key.section
    return key


def variable(path: Iterable[str]) -> str:
    """The environment variable of a path: ("server", "port") is TAILCUT_SERVER__PORT."""
    return ENVIRONMENT_PREFIX + "__".join(part.upper().replace("-", "_").replace(".", "_") for part in path)


def dotted(path: Iterable[str]) -> str:
    """The path as people write it; parts that hold a dot or a space are quoted."""
    return ".".join(
        part if part and not set(part) & set('. "=\\') else json.dumps(part, ensure_ascii=False) for part in path
    )


def expected(kind: inspect.Type) -> str:
    """What a value of this type is, limits included, to follow "is not"."""
    match kind:
        case inspect.IntType() | inspect.FloatType():
            words = ("an integer" if isinstance(kind, inspect.IntType) else "a number") + _limits(kind)
        case inspect.StrType():
            words = "a string"
            if kind.pattern is not None and kind.pattern.startswith(NAME_PATTERN):
                words = "a name (letters, digits, '_', '-' and '.', starting with a letter or digit)"
            if kind.max_length is not None:
                words += f" of at most {kind.max_length} characters"
        case inspect.BoolType():
            words = "true or false"
        case inspect.LiteralType():
            words = f"one of {', '.join(to_toml(value) for value in kind.values)}"
        case inspect.CustomType():
            words = {Duration: "a duration", Size: "a size", Share: "a share"}[kind.cls]
        case inspect.UnionType():
            words = " or ".join(expected(one) for one in _alternatives(kind))
        case inspect.VarTupleType():
            words = f"an array of {_items(kind.item_type)}"
            words += " with at least one element" if kind.min_length else ""
        case inspect.DictType():
            words = f"a table whose values are each {expected(kind.value_type)}"
        case _:
            words = "a table"
    return words


def _items(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.LiteralType):
        return f"strings, each {expected(kind)}"
    if not isinstance(kind, inspect.UnionType):
        return _ITEM_WORDS.get(type(kind), "tables")
    *words, last = [_ITEM_WORDS[type(one)] for one in _alternatives(kind)]
    return f"{', '.join(words)} or {last}"


def _alternatives(kind: inspect.UnionType) -> list[inspect.Type]:
    """The types of a union as people tell them apart: None is no value, and an integer is a number."""
    skipped: tuple[type, ...] = (inspect.NoneType,)
    if any(isinstance(one, inspect.FloatType) for one in kind.types):
        skipped = (inspect.NoneType, inspect.IntType)
    return [one for one in kind.types if not isinstance(one, skipped)]


def to_toml(value: Any) -> str:
    """Write one value as TOML reads it; durations, sizes and shares with their unit."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (Duration, Size, Share)):
        return json.dumps(to_plain(value))
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{dotted([name])} = {to_toml(one)}" for name, one in value.items()) + " }"
            if value
            else "{}"
        )
    if isinstance(value, Sequence):
        return "[" + ", ".join(to_toml(one) for one in value) + "]"
    return str(value)


def to_plain(value: Any) -> Any:
    """Turn a value of a ``Deployment``, or the whole of it, into what a manifest file would hold."""
    match value:
        case Section():
            pairs = ((key.name, getattr(value, key.attribute)) for key in keys_of(type(value)).values())
            return {name: to_plain(one) for name, one in pairs if one is not None}
        case tuple():
            return [to_plain(one) for one in value]
        case dict():
            return {name: to_plain(one) for name, one in value.items()}
        case Duration() | Size() | Share():
            return _FORMATS[type(value)](value)
    return value


def nearest(word: str, names: Iterable[str], least: float = 0.6) -> str:
    """The name that looks most like ``word``, or empty where none has at least this similarity (0 to 1)."""
    found = difflib.get_close_matches(word, list(names), n=1, cutoff=least)
    return found[0] if found else ""


def repeated(names: Iterable[str]) -> list[str]:
    """The names that occur more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def meant(word: str, names: Iterable[str], otherwise: str) -> str:
    """Ask whether the name that looks most like ``word`` was meant; ``otherwise`` where none does."""
    close = nearest(word, names)
    return f"did you mean {close}?" if close else otherwise


def _key(field: inspect.Field, annotation: Any) -> Key:
    kind = field.type
    extra: dict[str, Any] = {}
    if isinstance(kind, inspect.Metadata):
        extra, kind = kind.extra_json_schema or {}, kind.type
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    return Key(
        field.encode_name,
        field.name,
        kind,
        annotation,
        extra.get("description", ""),
        default,
        tuple(extra.get("examples", ())),
    )


def _section(kind: inspect.Type) -> type[Section] | None:
    if isinstance(kind, inspect.StructType) and issubclass(kind.cls, Section):
        return kind.cls
    return None


def _limits(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge} to {kind.le}"
    if kind.ge is not None:
        return f" of at least {kind.ge}"
    if kind.gt is not None:
        return f" above {kind.gt}" + (f" and at most {kind.le}" if kind.le is not None else "")
    return f" of at most {kind.le}" if kind.le is not None else ""
