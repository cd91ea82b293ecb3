"""Paths into JSON: ``predictions[].risk``, where ``[]`` steps over the rows of a request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tailcut.errors import ManifestError

_TOKEN = re.compile(r"\.?(?P<key>[^.\[\]]+)|\[(?P<index>\d*)\]")
BARE = "prediction"
"""Name of a prediction that is a bare value or a list, and so has no field names."""


class _Missing:
    def __repr__(self) -> str:
        return "(absent)"


MISSING: Final = _Missing()
"""Stands for a value that a reply lacks; null is a value."""

ROWS: Final = None
"""The step over the rows."""

Step = str | int | None


class FieldPath(NamedTuple):
    """Steps from a JSON document to a value: a key, an index, or ``ROWS``."""

    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        text = ""
        for step in self.steps:
            if isinstance(step, str):
                text += f".{step}" if text else step
            else:
                text += "[]" if step is ROWS else f"[{step}]"
        return text or "."

    @property
    def has_rows(self) -> bool:
        """Whether it steps over rows."""
        return ROWS in self.steps

    @property
    def name(self) -> str:
        """Its last key; empty where it has none."""
        return next((step for step in reversed(self.steps) if isinstance(step, str)), "")

    def under(self, *steps: Step) -> FieldPath:
        """Return the path that goes on from here."""
        return FieldPath((*self.steps, *steps))


def parse_path(text: str) -> FieldPath:
    """Read ``a.b[].c[0]``; ``.`` is the whole document.

    Raises:
        ManifestError: it is no path.
    """
    if text.strip() in {".", ""}:
        return FieldPath()
    steps: list[Step] = []
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise ManifestError(f"{text!r} is not a path", hint="write keys and indexes such[].risk")
        index = found["index"]
        steps.append(found["key"] if index is None else int(index) if index else ROWS)
        place = found.end()
    if steps.count(ROWS) > 1:
        raise ManifestError(f"{text!r} steps over rows twice", hint="write [] once; other positions have a number")
    return FieldPath(tuple(steps))


def values_at(document: Any, path: FieldPath, rows: int) -> list[Any]:
    """Return the value of each row at a path; ``MISSING`` where there is none.

    Args:
        document: decoded JSON.
        path: without ``[]`` the same value counts for every row.
        rows: of the request.
    """
    if not path.has_rows:
        return [_at(document, path.steps)] * rows
    split = path.steps.index(ROWS)
    items = _at(document, path.steps[:split])
    if not isinstance(items, list) or len(items) != rows:
        return [MISSING] * rows
    return [_at(item, path.steps[split + 1 :]) for item in items]


def leaves(document: Any, rows: int) -> dict[FieldPath, list[Any]]:
    """Return every value of a reply by its path, one per row.

    The outermost list as long as the request has rows is taken for its rows. A list of plain values inside is one
    value (probabilities of classes, an embedding). What a reply says once for several rows belongs to none of them.

    Args:
        document: decoded JSON.
        rows: of the request.
    """
    found: dict[FieldPath, list[Any]] = {}
    for path, row, value in _walk(document, FieldPath(), rows, None):
        if row is None and rows != 1:
            continue
        found.setdefault(path, [MISSING] * rows)[row or 0] = value
    return found


def predictions_of(document: Any, rows: int) -> dict[FieldPath, list[Any]]:
    """Return the values of a deployment's reply by their path within one prediction.

    Args:
        document: decoded reply of ``/predict``.
        rows: of the request.
    """
    items = document.get("predictions") if isinstance(document, Mapping) else None
    if not isinstance(items, list) or len(items) != rows:
        return {}
    found: dict[FieldPath, list[Any]] = {}
    for row, item in enumerate(items):
        for path, _, value in _walk(item, FieldPath(), 0, row):
            found.setdefault(path, [MISSING] * rows)[row] = value
    return found


def plain_name(name: str) -> str:
    """Return a name without case and punctuation: ``riskScore`` and ``risk_score`` are one."""
    return "".join(char for char in name.lower() if char.isalnum())


def output_name(path: FieldPath) -> str:
    """Name a field of a prediction for people: its path, or ``prediction`` where the prediction is a bare value."""
    return str(path) if path.steps else BARE


def output_path(text: str) -> FieldPath:
    """Read what ``output_name`` wrote.

    Raises:
        ManifestError: it is no path.
    """
    return FieldPath() if text == BARE else parse_path(text)


def _walk(node: Any, path: FieldPath, rows: int, row: int | None) -> Iterator[tuple[FieldPath, int | None, Any]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _walk(value, path.under(str(key)), rows, row)
    elif isinstance(node, list) and row is None and rows and len(node) == rows:
        for place, value in enumerate(node):
            yield from _walk(value, path.under(ROWS), rows, place)
    elif isinstance(node, list) and not _is_plain(node):
        for place, value in enumerate(node):
            yield from _walk(value, path.under(place), rows, row)
    else:
        yield path, row, node


def _is_plain(value: Any) -> bool:
    """Whether a list holds plain values, or lists of them."""
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return not isinstance(value, Mapping)


def _at(node: Any, steps: tuple[Step, ...]) -> Any:
    for step in steps:
        if isinstance(step, str):
            node = node.get(step, MISSING) if isinstance(node, Mapping) else MISSING
        elif isinstance(step, int):
            node = node[step] if isinstance(node, list) and step < len(node) else MISSING
    return node
