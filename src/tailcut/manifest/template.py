"""A commented ``tailcut.toml`` written from the schema, so that it cannot tell anything but what the schema says."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

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


def template() -> str:
    """Write the manifest that ``tailcut init`` leaves: required keys set to examples, all others commented out."""
    return _HEAD + "\n".join(_section(Deployment, "", {}, live=True)) + "\n"


def sample(key: Key) -> Any:
    """The value that shows a key's form: its default, or an example where it has none or an empty one."""
    return key.examples[0] if key.examples and (key.required or not key.default) else key.default


def _section(section: type[Section], path: str, values: Mapping[str, Any], live: bool) -> Iterator[str]:
    """The lines of one section: values first, as TOML wants it, then the sections below it."""
    keys = keys_at(section, tuple(path.split(".")))
    for key in keys:
        if key.section is None and key.element is None:
            yield from _value(key, values, live)
    for key in keys:
        below = f"{path}.{key.name}" if path else key.name
        if key.section is not None:
            yield ""
            yield from _comment(key.description if path else _first_paragraph(key.section))
            yield f"[{below}]"
            yield from _section(key.section, below, {}, live)
        elif key.element is not None:
            yield ""
            yield from _comment(f"{key.description}; repeat the block for more")
            yield f"{'' if key.required else '#'}[[{below}]]"
            example = key.examples[0] if key.examples else {}
            yield from _section(key.element, below, example, live and key.required)


def _value(key: Key, values: Mapping[str, Any], live: bool) -> Iterator[str]:
    is_default = not key.required and sample(key) == key.default
    note = " (required)" if key.required else "" if is_default else " (an example; the default is empty)"
    yield from _comment(key.description + note)
    mark = "" if live and (key.required or key.name in values) else "#"
    yield f"{mark}{key.name} = {to_toml(values.get(key.name, sample(key)))}"


def _comment(text: str) -> Iterator[str]:
    return (f"# {line}" for line in textwrap.wrap(text, _WIDTH))


def _first_paragraph(section: type[Section]) -> str:
    return (inspect.getdoc(section) or "").partition("\n\n")[0].replace("\n", " ")
