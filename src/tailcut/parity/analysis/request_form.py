"""How the deployment's request is made from the pilot's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tailcut.errors import ManifestError, StartError
from tailcut.parity.analysis.paths import MISSING, ROWS, FieldPath, parse_path, plain_name, values_at

Kind = Literal["entities", "rows"]
_DEEPEST = 4


class FieldSource(NamedTuple):
    """Where in the pilot's request something is: the whole row (``field`` is empty), or one of its fields."""

    field: str
    path: FieldPath


class RequestForm(NamedTuple):
    """A way to make ``{"entities": [...]}`` or ``{"rows": [...]}`` of a pilot's request.

    Attributes:
        kind: which of the two; empty where the request goes as it is.
        sources: one with an empty field, or one per field.
    """

    kind: Kind | Literal[""]
    sources: tuple[FieldSource, ...]

    def __str__(self) -> str:
        return ", ".join(self._texts()) or "as it is"

    @property
    def flags(self) -> str:
        """The form as flags of the command line."""
        return " ".join(f"--request {text}" for text in self._texts())

    def _texts(self) -> list[str]:
        return [f"{self.kind}{'.' if one.field else ''}{one.field}={one.path}" for one in self.sources]

    def apply(self, body: Any) -> dict[str, Any] | None:
        """Make the deployment's request; None where the pilot's lacks something."""
        if not self.kind:
            return dict(body) if rows_in(body) is not None else None
        columns = [(one.field, _listed(body, one.path)) for one in self.sources]
        if any(column is None for _, column in columns):
            return None
        lengths = {len(column) for _, column in columns if column is not None}
        if len(lengths) != 1:
            return None
        rows = [
            {field: column[place] for field, column in columns if column is not None} for place in range(lengths.pop())
        ]
        return {self.kind: [row.get("", row) for row in rows]}

    def turned(self) -> RequestForm:
        """Take lists as one row, and single values as lists of rows."""
        turned = []
        for field, path in self.sources:
            steps = (
                path.steps[:-1] if path.steps[-1:] == (ROWS,) else (*path.steps, *(() if path.has_rows else (ROWS,)))
            )
            turned.append(FieldSource(field, FieldPath(steps)))
        return RequestForm(self.kind, tuple(turned))


AS_IT_IS = RequestForm("", ())


class Takes(NamedTuple):
    """What the deployment takes.

    Attributes:
        entity: fields of an entity; empty where it has no feature groups.
        columns: fields of a row that are known, and how deep the list of one row is (0: a plain value); empty where a
            hook reads them.
    """

    entity: tuple[str, ...]
    columns: Mapping[str, int]


def rows_in(body: Any) -> int | None:
    """Count the rows of a request of the deployment's; None where it is none."""
    if not isinstance(body, Mapping) or len(body) != 1:
        return None
    (kind, items), *_ = body.items()
    return len(items) if kind in {"entities", "rows"} and isinstance(items, list) else None


def parse_form(texts: Sequence[str]) -> RequestForm:
    """Read ``entities=PATH``, ``rows=PATH``, or ``rows.FIELD=PATH`` once per field.

    Raises:
        ManifestError: entities and rows are mixed, or it is none of these.
    """
    kinds: list[Kind] = []
    sources: list[FieldSource] = []
    for text in texts:
        target, equals, path = text.partition("=")
        kind, _, field = target.partition(".")
        if not equals or kind not in {"entities", "rows"}:
            raise ManifestError(
                f"the request mapping is {text!r}", hint="write entities=PATH, rows=PATH or rows.FIELD=PATH"
            )
        kinds.append("entities" if kind == "entities" else "rows")
        sources.append(FieldSource(field, parse_path(path)))
    if len(set(kinds)) != 1 or (len(sources) > 1 and any(not one.field for one in sources)):
        raise ManifestError(
            f"the request mapping is {', '.join(texts)!r}", hint="give one kind: entities or rows, whole or by field"
        )
    return RequestForm(kinds[0], tuple(sources))


def form_of(body: Any, takes: Takes) -> RequestForm | None:
    """Make the form of the deployment's request from the field names of one of the pilot's; None where none fits.

    Args:
        body: the pilot's request.
        takes: fields that the deployment knows.

    Raises:
        StartError: several parts of the request have these names.
    """
    if rows_in(body) is not None:
        return AS_IT_IS
    nodes = list(_nodes(body, FieldPath(), 0))
    named: list[tuple[Kind, Mapping[str, int]]] = [
        ("entities", dict.fromkeys(takes.entity, 0)),
        ("rows", takes.columns),
    ]
    tried = [_by_fields(kind, nodes, fields) for kind, fields in named if fields] or _any_rows(nodes)
    for found in map(list, tried):
        if len(found) > 1:
            raise StartError(
                f"the pilot's request may be taken in {len(found)} ways: {' or '.join(map(str, found))}",
                hint=f"choose one, such as {found[0].flags}",
            )
        if found:
            return found[0]
    return None


def _by_fields(kind: Kind, nodes: Sequence[tuple[FieldPath, Any]], fields: Mapping[str, int]) -> Iterator[RequestForm]:
    """Objects, lists of objects and objects of lists that have all the fields, by name or plural."""
    for path, node in nodes:
        first = node[0] if isinstance(node, list) and node else node
        at = path.under(ROWS) if isinstance(node, list) else path
        if not isinstance(first, Mapping):
            continue
        names = {field: name for field in fields if (name := _named(field, first)) is not None}
        if len(names) < len(fields):
            continue
        lists = all(_depth(first[name]) > fields[field] for field, name in names.items())
        if set(first) == set(fields) and not lists:
            yield RequestForm(kind, (FieldSource("", at),))
            continue
        end = (ROWS,) if lists and not isinstance(node, list) else ()
        yield RequestForm(kind, tuple(FieldSource(field, at.under(name, *end)) for field, name in names.items()))


def _any_rows(nodes: Sequence[tuple[FieldPath, Any]]) -> Iterator[list[RequestForm]]:
    """Rows where a hook reads the fields: a list of objects, else of plain values under its name, else the object."""
    objects, lists = [], []
    for path, node in nodes:
        if isinstance(node, list) and node and all(isinstance(item, Mapping) for item in node):
            objects.append(RequestForm("rows", (FieldSource("", path.under(ROWS)),)))
        elif isinstance(node, list) and node and all(map(_is_plain, node)) and path.name:
            name = path.name[:-1] if path.name.endswith("s") and len(path.name) > 1 else path.name
            lists.append(RequestForm("rows", (FieldSource(name, path.under(ROWS)),)))
    yield from (objects, lists)
    if isinstance(nodes[0][1], Mapping):
        yield [RequestForm("rows", (FieldSource("", FieldPath()),))]


def _nodes(node: Any, path: FieldPath, depth: int) -> Iterator[tuple[FieldPath, Any]]:
    """Walk objects, outermost first."""
    yield path, node
    if isinstance(node, Mapping) and depth < _DEEPEST:
        for key, value in node.items():
            yield from _nodes(value, path.under(str(key)), depth + 1)


def _listed(body: Any, path: FieldPath) -> list[Any] | None:
    if not path.has_rows:
        found = values_at(body, path, 1)
        return None if found[0] is MISSING else found
    split = path.steps.index(ROWS)
    items = values_at(body, FieldPath(path.steps[:split]), 1)[0]
    if not isinstance(items, list) or not items:
        return None
    found = values_at(body, path, len(items))
    return None if any(value is MISSING for value in found) else found


def _named(field: str, names: Mapping[str, Any]) -> str | None:
    """Find a field by its name, whatever its case and punctuation, or by its plural."""
    wanted = {plain_name(field), f"{plain_name(field)}s", f"{plain_name(field)}es"}
    if field in names:
        return field
    return next((name for name in names if plain_name(name) in wanted), None)


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float, bool)) or value is None


def _depth(value: Any) -> int:
    """How deep a list of lists is; 0: no list."""
    return 1 + _depth(value[0]) if isinstance(value, list) and value else int(isinstance(value, list))
