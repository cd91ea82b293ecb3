"""A tree of plain values -> ``Deployment``, with an error that names the path, the value, the limit and the way out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from tailcut.common.units import Duration, Share, Size, UnitError, parse_duration, parse_share, parse_size
from tailcut.errors import ManifestError
from tailcut.manifest.keys import Key, dotted, expected, keys_of, nearest, to_toml, variable
from tailcut.manifest.schema import Deployment
from tailcut.manifest.section import Section
from tailcut.manifest.suggestions import did_you_mean

Path = tuple[str, ...]
S = TypeVar("S", bound=Section)
_PARSERS: dict[type, Any] = {Duration: parse_duration, Size: parse_size, Share: parse_share}
_SHOWN_CHARACTERS = 120


def read(tree: Mapping[str, Any], origins: Mapping[str, str]) -> Deployment:
    """Make the deployment of a manifest; see ``read_as``."""
    return read_as(Deployment, tree, origins)


def read_as(section: type[S], tree: Mapping[str, Any], origins: Mapping[str, str]) -> S:
    """Check every key and value of ``tree`` against the schema and make the record.

    Args:
        section: class of the record.
        tree: as TOML gives it, overrides applied.
        origins: dotted path -> "flag", "environment" or "file"; errors say where to mend the value.

    Raises:
        ManifestError: an unknown or missing key, a wrong type, or a value outside its limits.
    """
    for path, key, value in _walk(section, tree, (), origins):
        _check_value(path, key, value, origins)
    return msgspec.convert(tree, section, dec_hook=_parse_unit)


def unknown_key(
    written: Path, known: Path, names: Iterable[str], origin: str, tree: Mapping[str, Any]
) -> ManifestError:
    """The error for a path that the schema does not have, with the nearest one that it has.

    Args:
        written: the whole path as it was given.
        known: the beginning of it that the schema has; the part behind it is unknown.
        names: keys that may follow ``known``.
        origin: "flag", "environment" or "file".
        tree: the manifest so far.
    """
    hint = did_you_mean(written, known, names, origin, tree)
    if origin == "environment":
        message = f"{variable(written)}: tailcut has no such setting"
        return ManifestError(message, hint=hint or "see docs/reference/manifest.md for all settings")
    where = f"[{dotted(known)}]" if known else "the manifest"
    message = f"{dotted((*known, written[len(known)]))}: no such key in {where}"
    return ManifestError(message, hint=hint or f"its keys are {', '.join(names)}")


def wrong_value(path: Path, key: Key, problem: str, origins: Mapping[str, str]) -> ManifestError:
    """The error for a value that its key cannot take; the hint is a line that would be right."""
    return ManifestError(f"{dotted(path)}: {problem}", hint=_way_out(path, key, origins))


def shown(value: Any) -> str:
    """A value as TOML writes it, cut where it is long."""
    text = to_toml(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + " ..."


def origin_of(path: Path, origins: Mapping[str, str]) -> str:
    """Where the value at a path came from: the nearest part of the path that was set as a whole."""
    for end in range(len(path), 0, -1):
        if found := origins.get(dotted(path[:end])):
            return found
    return "default"


def _walk(section: type[Section], tree: Any, path: Path, origins: Mapping[str, str]) -> Iterator[tuple[Path, Key, Any]]:
    """Every value of the tree with its key, unknown and missing keys refused on the way."""
    names = keys_of(section)
    if not isinstance(tree, Mapping):
        raise ManifestError(
            f"{dotted(path)}: {shown(tree)} is not a table", hint=f"write [{dotted(path)}] and its keys below it"
        )
    for name in tree:
        if name not in names:
            raise unknown_key((*path, name), path, names, origin_of((*path, name), origins), {})
    for name, key in names.items():
        below = (*path, name)
        if name not in tree:
            if key.required:
                raise ManifestError(f"{dotted(below)}: missing, and it has no default", hint=_way_out(below, key, {}))
        elif key.section is not None:
            yield from _walk(key.section, tree[name], below, origins)
        elif key.element is not None:
            yield from _walk_list(key, key.element, tree[name], below, origins)
        else:
            yield below, key, tree[name]


def _walk_list(
    key: Key, element: type[Section], items: Any, path: Path, origins: Mapping[str, str]
) -> Iterator[tuple[Path, Key, Any]]:
    if not isinstance(items, list):
        raise wrong_value(path, key, f"{shown(items)} is not {expected(key.kind)}", origins)
    if not items and isinstance(key.kind, inspect.VarTupleType) and key.kind.min_length:
        raise wrong_value(path, key, "[] is empty; at least one is needed", origins)
    for index, item in enumerate(items):
        name = item.get("name") if isinstance(item, Mapping) else None
        yield from _walk(element, item, (*path, name if isinstance(name, str) else str(index)), origins)


def _check_value(path: Path, key: Key, value: Any, origins: Mapping[str, str]) -> None:
    if parser := _PARSERS.get(_custom_class(key.kind)):
        try:
            parser(value)
        except UnitError as error:
            raise wrong_value(path, key, str(error), origins) from None
        return
    try:
        msgspec.convert(value, key.annotation)
    except msgspec.ValidationError:
        problem = f"{shown(value)} is not {expected(key.kind)}"
        if isinstance(key.kind, inspect.LiteralType) and isinstance(value, str):
            close = nearest(value, [str(one) for one in key.kind.values])
            problem += f'; did you mean "{close}"?' if close else ""
        raise wrong_value(path, key, problem, origins) from None


def _custom_class(kind: inspect.Type) -> type:
    """The class of a duration, size or share, also where it may be absent."""
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return next((one.cls for one in kinds if isinstance(one, inspect.CustomType)), object)


def _parse_unit(kind: type, value: Any) -> Any:
    return _PARSERS[kind](value)


def _way_out(path: Path, key: Key, origins: Mapping[str, str]) -> str:
    value = key.examples[0] if key.examples else key.default
    if key.element is not None:
        return f"write [[{dotted(path)}]] and its keys below it, once for each"
    origin = origin_of(path, origins)
    bare = value if isinstance(value, str) else to_toml(value).strip('"')
    if origin == "flag":
        return f"for example --set '{dotted(path)}={bare}'"
    if origin == "environment":
        return f"for example {variable(path)}='{bare}'"
    above = f"[{dotted(path[:-1])}]" if len(path) > 1 else "the first lines"
    return f"for example {key.name} = {to_toml(value)} in {above} of the manifest"
