"""The model's inputs on both sides, column by column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailcut.parity.analysis.changes import EXACT, explain
from tailcut.parity.analysis.tolerance import compare
from tailcut.profiler.recording.model_inputs import ModelCall
from tailcut.report.parity.file import ColumnParity

Columns = dict[str, list[Any]]
"""Name -> one value per row."""


_FIRST = 3
_NULL = "None where x is NaN, which scikit-learn's imputers do not take for missing"


def joined(calls: Sequence[ModelCall], rows: int) -> ModelCall | None:
    """Put the calls of one request together: one with all rows, or one call per row; None where they do not fit."""
    whole = [call for call in calls if _rows_of(call) == rows]
    if whole:
        return whole[-1]
    last = calls[-1].model if calls else ""
    same = [call for call in calls if call.model == last]
    if rows > 1 and len(same) == rows and all(_rows_of(call) == 1 for call in same):
        named = {name: [call.named[name][0] for call in same if name in call.named] for name in same[0].named}
        placed = [[call.placed[at][0] for call in same if at < len(call.placed)] for at in range(len(same[0].placed))]
        return ModelCall(model=last, named=named, placed=tuple(placed))
    return None


def split(name: str, values: list[Any], width: int, columns: Sequence[str] = ()) -> Columns:
    """Split a tensor into its columns.

    Args:
        name: of the tensor.
        values: a value or a list per row.
        width: of the lists, where it is fixed; 0: a row is one value.
        columns: names of the columns, where they are known.
    """
    if not width:
        return {name: values}
    names = columns if len(columns) == width else [f"{name}[{place}]" for place in range(width)]
    return {column: [row[place] for row in values] for place, column in enumerate(names)}


def matched(call: ModelCall, ours: Mapping[str, Columns]) -> Columns | None:
    """Find the pilot's columns for those of the deployment; None where they do not fit.

    Args:
        call: of the pilot.
        ours: per tensor of the deployment, its columns.
    """
    every = {column: values for columns in ours.values() for column, values in columns.items()}
    by_name = {name: _flat(values) for name, values in call.named.items()}
    if set(every) <= set(by_name):
        return {column: by_name[column] for column in every}
    found: Columns = {}
    for columns, values in zip(ours.values(), _in_order(call, ours), strict=False):
        parts = _columns_of(values, columns)
        if parts is None:
            break
        found.update(parts)
    if set(found) == set(every):
        return found
    if len(call.placed) == 1 and (parts := _columns_of(call.placed[0], every)) is not None:
        return parts
    return None


def compare_columns(
    theirs: Mapping[str, list[Any]], ours: Mapping[str, list[Any]], requests: Sequence[int]
) -> list[ColumnParity]:
    """Compare columns and describe those that differ, the most frequent first.

    Args:
        theirs: the pilot's.
        ours: the deployment's, with the same names.
        requests: number of the request of each row.
    """
    found = []
    for name, mine in ours.items():
        gaps = [compare(one, other, EXACT) for one, other in zip(theirs[name], mine, strict=True)]
        unequal = [place for place, gap in enumerate(gaps) if not gap.equal] or _nulls(theirs[name], mine)
        if not unequal:
            continue
        sizes = [size for gap in gaps if (size := gap.size) is not None]
        values = tuple((requests[place], theirs[name][place], mine[place]) for place in unequal[:_FIRST])
        change = _NULL if all(gap.equal for gap in gaps) else explain(theirs[name], mine)
        found.append(
            ColumnParity(
                column=name,
                rows=len(mine),
                differing_rows=len(unequal),
                max_difference=max(sizes, default=None),
                change=change,
                first=values,
            )
        )
    return sorted(found, key=lambda one: -one.differing_rows)


def _rows_of(call: ModelCall) -> int:
    return len(next(iter((*call.named.values(), *call.placed)), []))


def _nulls(theirs: Sequence[Any], ours: Sequence[Any]) -> list[int]:
    """Places of a column of texts where the pilot has None and the deployment NaN."""
    if not any(isinstance(value, str) for value in ours):
        return []
    pairs = enumerate(zip(theirs, ours, strict=True))
    return [place for place, (one, other) in pairs if one is None and isinstance(other, float)]


def _in_order(call: ModelCall, ours: Mapping[str, Columns]) -> list[list[Any]]:
    """The pilot's tensors in the deployment's order: by their names where all of them have one."""
    if call.named and set(ours) <= set(call.named):
        return [call.named[name] for name in ours]
    return [*call.placed, *call.named.values()]


def _columns_of(values: list[Any], columns: Mapping[str, list[Any]]) -> Columns | None:
    width = {len(row) if isinstance(row, list) else 0 for row in values}
    if len(columns) == 1:
        name, mine = next(iter(columns.items()))
        return {name: _flat(values) if width == {1} and not any(isinstance(one, list) for one in mine) else values}
    if width == {len(columns)}:
        return {column: [row[place] for row in values] for place, column in enumerate(columns)}
    return None


def _flat(values: list[Any]) -> list[Any]:
    """Rows of one value each as values."""
    return [row[0] if isinstance(row, list) and len(row) == 1 else row for row in values]
