"""A commented ``tailcut.toml`` written from the schema, so that it cannot tell anything but what the schema says."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tailcut.manifest.keys import Key, keys_at, to_toml
from tailcut.manifest.schema import Deployment
from tailcut.manifest.section import Section

_WIDTH = 100
_HEAD = """\
# tailcut.toml: one served model with everything around it.
#
# Lines that begin with '# ' explain; lines that begin with '#' and no space are settings that show their default,
# or an example where the default is empty: remove the '#' to set one.
# Required keys are filled with examples: put your own there. Flag > environment > this file > default:
# server.port is also --set server.port=8700 and TAILCUT_SERVER__PORT=8700.

"""


class ListElement(NamedTuple):
    """One element of a list of sections: its keys that are set, and comments that stand above it."""

    values: Mapping[str, Any]
    comments: Sequence[str] = ()


Filled = Mapping[str, str | Sequence[ListElement]]
"""Dotted path of a key -> its value; of a list of sections -> its elements."""


def template(filled: Filled | None = None) -> str:
    """Write the manifest that ``tailcut init`` leaves: all keys that need not be set are commented out.

    Args:
        filled: what is known of the model; other required keys are set to examples.
    """
    return _HEAD + "\n".join(_section(Deployment, "", {}, live=True, filled=filled or {})) + "\n"


def sample(key: Key) -> Any:
    """The value that shows a key's form: its default, or an example where it has none or an empty one."""
    return key.examples[0] if key.examples and (key.required or not key.default) else key.default


def _section(section: type[Section], path: str, values: Mapping[str, Any], live: bool, filled: Filled) -> Iterator[str]:
    """The lines of one section: values first, as TOML wants it, then the sections below it."""
    keys = keys_at(section, tuple(path.split(".")))
    paths = {key.name: f"{path}.{key.name}" if path else key.name for key in keys}
    values = {**values, **{name: filled[below] for name, below in paths.items() if below in filled}}
    for key in keys:
        if key.section is None and key.element is None:
            yield from _value(key, values, live)
    for key in keys:
        below = paths[key.name]
        if key.section is not None:
            yield ""
            yield from _comment(key.description if path else _first_paragraph(key.section))
            yield f"[{below}]"
            yield from _section(key.section, below, {}, live, filled)
        elif key.element is not None:
            yield ""
            yield from _comment(f"{key.description}; repeat the block for more")
            yield from _blocks(key, key.element, below, live, filled)


def _blocks(key: Key, element: type[Section], path: str, live: bool, filled: Filled) -> Iterator[str]:
    """The elements of a list; those after the first show what is set and no more."""
    given: Any = filled.get(path)
    first, *others = given or [ListElement(key.examples[0] if key.examples else {})]
    yield from (f"# {comment}" for comment in first.comments)
    yield f"{'' if key.required or given else '#'}[[{path}]]"
    yield from _section(element, path, first.values, live and bool(key.required or given), {})
    for block in others:
        yield ""
        yield from (f"# {comment}" for comment in block.comments)
        yield f"[[{path}]]"
        yield from (f"{name} = {to_toml(value)}" for name, value in block.values.items())


def _value(key: Key, values: Mapping[str, Any], live: bool) -> Iterator[str]:
    is_default = not key.required and sample(key) == key.default
    known = is_default or (live and key.name in values)
    note = " (required)" if key.required else "" if known else " (an example; the default is empty)"
    yield from _comment(key.description + note)
    mark = "" if live and (key.required or key.name in values) else "#"
    yield f"{mark}{key.name} = {to_toml(values.get(key.name, sample(key)))}"


def _comment(text: str) -> Iterator[str]:
    return (f"# {line}" for line in textwrap.wrap(text, _WIDTH))


def _first_paragraph(section: type[Section]) -> str:
    return (inspect.getdoc(section) or "").partition("\n\n")[0].replace("\n", " ")
