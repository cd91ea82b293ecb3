"""The OpenAPI description as one page of HTML: no script, nothing from elsewhere. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a;
  background: #fff }
h1 { font-size: 1.5rem } h2 { font-size: 1.2rem; margin-top: 2rem }
summary { cursor: pointer; padding: .4rem .6rem; border-radius: 6px; background: #f3f4f6; margin: .4rem 0 }
code, pre { font: 13px/1.45 ui-monospace, monospace } pre { overflow: auto; background: #f3f4f6; padding: .6rem;
  border-radius: 6px } .method { display: inline-block; width: 3.5rem; font-weight: 600 }
.said { color: #4b5563 } td { padding: .15rem .8rem .15rem 0; vertical-align: top }
@media (prefers-color-scheme: dark) { body { color: #e5e7eb; background: #111 }
  summary, pre { background: #1f2937 } .said { color: #9ca3af } }
"""


def docs_page(document: Mapping[str, Any]) -> str:
    """Return the page.

    Args:
        document: an OpenAPI 3.1 description.
    """
    info = document["info"]
    paths = "".join(_operations(document["paths"]))
    schemas = "".join(
        f"<details><summary><code>{escape(name)}</code></summary>{_json(schema)}</details>"
        for name, schema in document["components"]["schemas"].items()
    )
    title = escape(f"{info['title']} {info['version']}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>"
        f"<p>{escape(info.get('description', ''))}</p><p>For programs: <a href='openapi.json'>openapi.json</a></p>"
        f"<h2>Routes</h2>{paths}<h2>Schemas</h2>{schemas}</body></html>"
    )


def _operations(paths: Mapping[str, Any]) -> Iterator[str]:
    for path, operations in paths.items():
        for method, operation in operations.items():
            yield (
                f"<details><summary><span class=method>{escape(method.upper())}</span> <code>{escape(path)}</code> "
                f"<span class=said>{escape(operation['summary'])}</span></summary>"
                f"{''.join(_parts(operation))}</details>"
            )


def _parts(operation: Mapping[str, Any]) -> Iterator[str]:
    parameters = operation.get("parameters", [])
    if parameters:
        yield _table("Parameters", ((each["name"], each.get("description", "")) for each in parameters))
    content = operation.get("requestBody", {}).get("content", {})
    for kind, described in content.items():
        yield f"<p>Body: <code>{escape(kind)}</code></p>{_json(described.get('schema', {}))}"
    yield _table("Replies", ((status, each["description"]) for status, each in operation["responses"].items()))


def _table(title: str, rows: Any) -> str:
    cells = "".join(f"<tr><td><code>{escape(name)}</code><td>{escape(said)}" for name, said in rows)
    return f"<p>{title}</p><table>{cells}</table>"


def _json(value: object) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2))}</pre>"
