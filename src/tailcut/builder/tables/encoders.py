"""OneHotEncoder, OrdinalEncoder and TargetEncoder: a category leads to its columns by what the fitted step answers.

The fitted encoder itself is asked once for every category, for an unknown and for a missing one; dropped and rare
categories need no rules of their own. Where it refuses an unknown category, the answer of that row is NaN, which no
variant gives out; the other rows of a batch keep theirs.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from tailcut.builder.tables.columns import Block, Table, Unconvertible, guard, one, single_columns
from tailcut.builder.tables.live import Live, dense, is_nan
from tailcut.builder.tables.nodes import DOMAIN, DOUBLE, TEXT, WHOLE, Graph
from tailcut.builder.tables.scalers import one_hot
from tailcut.common.tensors import Array

_ROWS = 512
_UNKNOWN = "\x00unknown"


def one_hot_encoder(graph: Graph, step: Any, table: Table, live: Live) -> Table:
    """OneHotEncoder."""
    columns = _columns(graph, table)
    widths = list(step._n_features_outs)
    starts = np.concatenate([[0], np.cumsum(widths)]).astype(int)
    parts = []
    for place, block in enumerate(columns):
        rows, known = _asked(step, place, live, int(starts[place]), int(starts[place + 1]))
        where = np.where(rows.any(axis=1), rows.argmax(axis=1) if rows.shape[1] else 0, -1)
        position = _lookup(graph, block, step.categories_[place], where.astype(np.int64)[:, None], known)
        parts.append(one_hot(graph, position, widths[place]))
    found = parts[0] if len(parts) == 1 else graph.add("Concat", parts, axis=1)
    dtype = live.out.dtype if hasattr(live.out, "dtype") else np.dtype(step.dtype)
    return one(graph.cast(found, np.bool_, dtype), int(starts[-1]), dtype, table)


def ordinal_encoder(graph: Graph, step: Any, table: Table, live: Live) -> Table:
    """OrdinalEncoder."""
    return _values(graph, step, table, live, per_column=1)


def target_encoder(graph: Graph, step: Any, table: Table, live: Live) -> Table:
    """TargetEncoder."""
    return _values(graph, step, table, live, per_column=len(step.classes_) if step.target_type_ == "multiclass" else 1)


def _values(graph: Graph, step: Any, table: Table, live: Live, per_column: int) -> Table:
    parts = []
    for place, block in enumerate(_columns(graph, table)):
        rows, known = _asked(step, place, live, place * per_column, (place + 1) * per_column)
        parts.append(_lookup(graph, block, step.categories_[place], rows.astype(np.float64), known))
    found = parts[0] if len(parts) == 1 else graph.add("Concat", parts, axis=1)
    dtype = live.out.dtype if hasattr(live.out, "dtype") else np.dtype(getattr(step, "dtype", np.float64))
    return one(graph.cast(found, DOUBLE, dtype), per_column * table.width, dtype, table)


def _columns(graph: Graph, table: Table) -> list[Block]:
    """Return the columns as the encoder compares them: those of one array have its dtype."""
    found = single_columns(graph, table)
    if table.names is None and not table.mixed and not table.text:
        dtype = table.dtype
        found = [Block(graph.cast(block.name, block.dtype, dtype), 1, dtype) for block in found]
    for block in found:
        if table.loose and block.dtype.kind == "f":
            guard(graph, block.name, block.dtype, nan=True)
    return found


def _asked(step: Any, place: int, live: Live, start: int, stop: int) -> tuple[Array, bool]:
    """Return the output columns of one input column for each category, then for an unknown one.

    The second value tells whether the encoder answers unknown categories at all.
    """
    categories = list(step.categories_[place])
    rows = [_transform(step, place, categories[at : at + _ROWS], live) for at in range(0, len(categories), _ROWS)]
    try:
        rows.append(_transform(step, place, [_unknown(categories)], live))
    except ValueError:
        return np.concatenate(rows)[:, start:stop], False
    return np.concatenate(rows)[:, start:stop], True


def _transform(step: Any, place: int, values: Sequence[Any], live: Live) -> Array:
    """Let the encoder transform rows that have ``values`` in one column and known categories in the others."""
    columns = [_column([categories[0]] * len(values)) for categories in step.categories_]
    columns[place] = _column(values)
    given: Any
    if hasattr(step, "feature_names_in_"):
        import pandas

        given = pandas.DataFrame(dict(zip(step.feature_names_in_, columns, strict=True)))
    else:
        kinds = {column.dtype for column in columns}
        given = np.stack([column.astype(TEXT if TEXT in kinds else np.result_type(*kinds)) for column in columns], 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(dense(step.transform(given)))


def _column(values: Sequence[Any]) -> Array:
    if any(isinstance(value, str) or value is None for value in values):
        found = np.empty(len(values), object)
        found[:] = list(values)
        return found
    return np.array(values)


def _unknown(categories: Sequence[Any]) -> Any:
    present = [value for value in categories if not is_nan(value) and value is not None]
    if any(isinstance(value, str) for value in present):
        return _UNKNOWN
    if all(isinstance(value, (bool, np.bool_)) for value in present):
        return 2
    return max((float(value) for value in present), default=0.0) * 2 + 1.5


def _lookup(graph: Graph, block: Block, categories: Any, rows: Array, unknown: bool) -> str:
    """Return ``rows`` of the categories that a column holds, (rows, width of ``rows``).

    Args:
        graph: to add to.
        block: one column.
        categories: of the fitted encoder.
        rows: (categories, or categories + 1 with that of unknown ones, width).
        unknown: whether there is a row for unknown categories.
    """
    beyond = len(categories)
    nan = next((place for place, value in enumerate(categories) if is_nan(value)), beyond)
    keys = [(value, place) for place, value in enumerate(categories) if not is_nan(value) and value is not None]
    if block.dtype == TEXT:
        index = _text_index(graph, block, keys, nan, beyond)
    else:
        index = _number_index(graph, block, keys, nan, beyond)
    flat = graph.add("Reshape", [index, graph.whole([-1])])
    if not unknown:
        rows = np.concatenate([rows, rows[:1]])
        refused = np.array([[0.0]] * beyond + [[np.nan]])
        graph.guards.append(graph.add("Gather", [graph.constant(refused, DOUBLE), flat], axis=0))
    return graph.add("Gather", [graph.constant(rows, rows.dtype), flat], axis=0)


def _text_index(graph: Graph, block: Block, keys: list[tuple[Any, int]], nan: int, beyond: int) -> str:
    if not all(isinstance(value, str) for value, _ in keys):
        raise Unconvertible("it was fitted on numbers and is given text: declare the input as numbers")
    texts = {str(value): place for value, place in keys}
    if block.missing:
        texts[""] = nan
    return graph.add(
        "LabelEncoder",
        [block.name],
        domain=DOMAIN,
        keys_strings=list(texts) or [_UNKNOWN],
        values_int64s=list(texts.values()) or [beyond],
        default_int64=beyond,
    )


def _number_index(graph: Graph, block: Block, keys: list[tuple[Any, int]], nan: int, beyond: int) -> str:
    from onnx import numpy_helper

    if any(isinstance(value, str) for value, _ in keys):
        raise Unconvertible("it was fitted on text and is given numbers: declare the input BYTES")
    whole = block.dtype.kind in "iub" and all(isinstance(value, (int, bool, np.integer, np.bool_)) for value, _ in keys)
    dtype = WHOLE if whole else DOUBLE
    held = graph.cast(block.name, block.dtype, dtype)
    places = [place for _, place in keys]
    index = graph.add(
        "LabelEncoder",
        [held],
        domain=DOMAIN,
        keys_tensor=numpy_helper.from_array(np.array([value for value, _ in keys] or [0], dtype=dtype)),
        values_tensor=numpy_helper.from_array(np.array(places or [beyond], dtype=np.int64)),
        default_tensor=numpy_helper.from_array(np.array([beyond], dtype=np.int64)),
    )
    if nan != beyond and dtype == DOUBLE:
        index = graph.add("Where", [graph.add("IsNaN", [held]), graph.whole([[nan]]), index])
    return index
