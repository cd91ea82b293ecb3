"""``--set path=value`` flags and ``TAILCUT_...`` variables, put over the tree that the file holds."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import inspect

from tailcut.errors import ManifestError
from tailcut.manifest.keys import ENVIRONMENT_PREFIX, Key, dotted, keys_of, variable
from tailcut.manifest.reading import Path, shown, unknown_key
from tailcut.manifest.schema import Deployment
from tailcut.manifest.section import Section
from tailcut.manifest.suggestions import did_you_mean, other_separators

OTHER_VARIABLES: Mapping[str, str] = {
    "TAILCUT_MANIFEST": "path of the manifest, for every command with --manifest",
}
"""Variables with tailcut's prefix that are no settings of the deployment."""


_KUBERNETES = re.compile(
    r"(?:[A-Z0-9_]+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:ADDR|PORT|PROTO))?)"
)
_KUBERNETES_URL = re.compile(r"(?:[A-Z0-9_]+_)?PORT=(?:tcp|udp|sctp)://.*", re.DOTALL)
"""Behind the prefix: what Kubernetes sets in every container for a Service whose name begins with tailcut."""

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_ESCAPED = re.compile(r"\\(.)")
_PATH = re.compile(rf"(?:{_QUOTED.pattern}|[^\"=])*(?==)")
"""Up to the first equals sign outside quotes."""

_OF_MODEL = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9_.-]*):")
"""Before the path: the name of the model that is set, where there are several."""


@dataclass(frozen=True)
class Override:
    """One value to put over the tree.

    Attributes:
        parts: its path as written.
        text: the value's.
        origin: where it came from.
        model: the only model that it sets; empty where it sets every one.
    """

    parts: Path
    text: str
    origin: str
    model: str = ""

    def sets(self, model: object) -> bool:
        """Whether it sets a model of this name."""
        return not self.model or self.model == model


def from_flags(texts: Sequence[str]) -> list[Override]:
    """Read "dotted.path=value" texts; those of one model begin with its name: "risk:dotted.path=value".

    Raises:
        ManifestError: no "=" in a text, or a path that cannot be read; or one text instead of a list.
    """
    if isinstance(texts, str):
        raise ManifestError(
            f"overrides is the text {texts!r}, expected a list of texts", hint=f"write overrides=[{texts!r}]"
        )
    return [_from_flag(text) for text in texts]


def from_environment(environment: Mapping[str, str]) -> list[Override]:
    """Pick the variables that begin with TAILCUT_, in alphabetical order, without those of Kubernetes."""
    return [
        Override(_parts(name), text, "environment")
        for name, text in sorted(environment.items())
        if name.startswith(ENVIRONMENT_PREFIX) and name not in OTHER_VARIABLES and not _is_of_kubernetes(name, text)
    ]


def _parts(name: str) -> Path:
    return tuple(name[len(ENVIRONMENT_PREFIX) :].lower().split("__"))


def _is_of_kubernetes(name: str, text: str) -> bool:
    """Whether a variable describes a Service; one that begins with a section of the manifest never does."""
    rest = name[len(ENVIRONMENT_PREFIX) :]
    first, *more = _parts(name)
    if more and first in keys_of(Deployment):
        return False
    return bool(_KUBERNETES.fullmatch(rest) or _KUBERNETES_URL.fullmatch(f"{rest}={text}"))


def put(tree: dict[str, Any], override: Override) -> Path:
    """Put one override into ``tree`` (changed in place) and return the path where it went.

    Raises:
        ManifestError: the schema has no such path, or the list has no element of that name.
    """
    section: type[Section] = Deployment
    node = tree
    path: Path = ()
    parts = list(override.parts)
    while True:
        part = parts.pop(0)
        key = keys_of(section).get(part)
        if key is None:
            raise unknown_key(override.parts, path, keys_of(section), override.origin, tree)
        path = (*path, key.name)
        if parts and key.section is not None:
            section, node = key.section, _table(node, key, path)
        elif len(parts) > 1 and key.element is not None:
            name, node = _element(node.get(key.name, []), parts.pop(0), path, override, tree)
            section, path = key.element, (*path, name)
        else:
            return _put_value(node, key, path, parts, override, tree)


def read_text(text: str, kind: inspect.Type) -> Any:
    """Read a flag's or variable's text: as TOML where it is TOML of a fitting type, else as the text itself."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # Text that is wanted stays as it was written: --set name=2024 is the name "2024".
    if set(parsed) != {"value"} or (isinstance(kind, inspect.StrType) and not isinstance(parsed["value"], str)):
        return text
    return parsed["value"]


def split_path(text: str) -> Path:
    """Split "a.b.c"; a part in double quotes may hold dots and spaces, and a quote or backslash behind a backslash.

    Raises:
        ManifestError: an empty part, or a quote that is not closed.
    """
    parts: list[str] = []
    rest = text.strip()
    while True:
        if rest.startswith('"'):
            found = _QUOTED.match(rest)
            rest = rest[found.end() :] if found else rest
            if not found or (rest and not rest.startswith(".")):
                raise ManifestError(
                    f"{text}: the quotes do not close", hint='write for example ladder.rungs."a b".variant'
                )
            part = _ESCAPED.sub(r"\1", found.group()[1:-1])
            dot, rest = rest[:1], rest[1:]
        else:
            part, dot, rest = rest.partition(".")
        if not part:
            raise ManifestError(f"{text!r} is not a path: a part is empty", hint="write for example server.port")
        parts.append(part)
        if not dot:
            return tuple(parts)


def _from_flag(text: str) -> Override:
    found = _PATH.match(text)
    path, equals, value = (found.group(), "=", text[found.end() + 1 :]) if found else text.partition("=")
    if not equals:
        raise ManifestError(f"--set {text}: no value", hint="write path=value, for example --set server.port=8700")
    model = of[1] if (of := _OF_MODEL.match(path)) else ""
    return Override(split_path(path[of.end() :] if of else path), value, "flag", model)


def _table(node: dict[str, Any], key: Key, path: Path) -> dict[str, Any]:
    below = node.setdefault(key.name, {})
    if not isinstance(below, dict):
        raise ManifestError(
            f"{dotted(path)}: {shown(below)} is not a table", hint=f"write [{dotted(path)}] in the manifest"
        )
    return below


def _element(
    items: Any, wanted: str, path: Path, override: Override, tree: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The element of a named list; variables, whose case and punctuation are lost, match without them."""
    named = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    names = [str(item.get("name", "")) for item in named]
    same = [name for name in names if variable([wanted]) == variable([name])]
    if override.origin == "environment" and len(same) > 1:
        raise ManifestError(
            f"{variable(override.parts)}: {' and '.join(same)} of {dotted(path)} have this variable",
            hint=f"give it as a flag: --set '{dotted((*path, same[0]))}.KEY=value'",
        )
    for name, item in zip(names, named, strict=True):
        if wanted == name or (override.origin == "environment" and name in same):
            return name, item
    hint = did_you_mean(override.parts, path, names, override.origin, tree)
    raise ManifestError(
        f"{_written(override)}: {dotted(path)} has no element named {wanted}",
        hint=hint or f"there are: {', '.join(names) or 'none'}",
    )


def _put_value(
    node: dict[str, Any], key: Key, path: Path, parts: list[str], override: Override, tree: Mapping[str, Any]
) -> Path:
    if not parts:
        node[key.name] = read_text(override.text, key.kind)
        return path
    if isinstance(key.kind, inspect.DictType):
        name = ".".join(parts)
        _table(node, key, path)[name] = read_text(override.text, key.kind.value_type)
        return (*path, name)
    hint = other_separators(override.parts, override.origin, tree)
    if key.element is not None:
        names = f"write {dotted((*path, parts[0]))}.KEY=value, where KEY is one of {', '.join(keys_of(key.element))}"
        raise ManifestError(f"{_written(override)}: a whole element cannot be set", hint=hint or names)
    raise ManifestError(
        f"{_written(override)}: {dotted(path)} is a value and has no keys",
        hint=hint or f"set {dotted(path)} itself",
    )


def _written(override: Override) -> str:
    return variable(override.parts) if override.origin == "environment" else dotted(override.parts)
