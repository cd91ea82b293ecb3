"""The files of the page, read once; nothing in them is made from requests or models."""

from __future__ import annotations

import hashlib
from functools import cache
from html import escape
from importlib.resources import files

from tailcut.protocol.http import HeaderMap, Headers, Reply

_KINDS = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

_SAFE: Headers = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
]
"""Of everything under /ui: scripts and styles come from files of the server, never from a text in the page."""


def safe(*more: tuple[str, str]) -> Headers:
    """Return the headers of a reply of the page."""
    return [*more, *_SAFE]


def page(name: str, root: str, status: int = 200, **texts: str) -> Reply:
    """Return a page.

    Args:
        name: of its file, without the ending.
        root: relative path from the page's address to the files of the page.
        texts: put in place of ``{{name}}``, escaped.
    """
    html = _files()[f"{name}.html"].decode()
    for key, text in {"root": root, **texts}.items():
        html = html.replace("{{" + key + "}}", escape(text))
    headers = safe(("content-type", "text/html; charset=utf-8"), ("cache-control", "no-store"))
    return Reply(status, headers, html.encode())


def asset(name: str, headers: HeaderMap) -> Reply | None:
    """Return a script, style or picture; None where there is none of that name."""
    content = _files().get(name)
    kind = _KINDS.get(name[name.rfind(".") :])
    if content is None or kind is None:
        return None
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    told = safe(("content-type", kind), ("cache-control", "no-cache"), ("etag", tag))
    if headers.get("if-none-match") == tag:
        return Reply(304, told, b"")
    return Reply(200, told, content)


@cache
def _files() -> dict[str, bytes]:
    folder = files("tailcut.protocol.ui") / "static"
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}
