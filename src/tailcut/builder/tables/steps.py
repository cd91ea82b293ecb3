"""Fitted steps of scikit-learn as ONNX: Pipelines, ColumnTransformers and FeatureUnions are walked, down to the last.

The live steps run beside the graph on a few rows: what they give says which dtype, width and form the next one gets.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tailcut.builder.tables import fallback, features, scalers
from tailcut.builder.tables.columns import (
    Block,
    ColumnTable,
    Unconvertible,
    guard,
    matrix,
    one,
    select,
    single_columns,
    sklearn_kind,
)
from tailcut.builder.tables.live import Live, dense, is_frame, is_nan, is_sparse, names, table_of, width
from tailcut.builder.tables.nodes import BOOL, DOMAIN, DOUBLE, FLOAT, TEXT, WHOLE, Graph
from tailcut.builder.tables.scalers import one_hot
from tailcut.common.tensors import Array

# OneHotEncoder, OrdinalEncoder and TargetEncoder: a category leads to its columns by what the fitted step answers.
# The fitted encoder itself is asked once for every category, for an unknown and for a missing one; dropped and rare
# categories need no rules of their own. Where it refuses an unknown category, the answer of that row is NaN, which no
# variant gives out; the other rows of a batch keep theirs.

_ROWS = 512
_UNKNOWN = "\x00unknown"


def one_hot_encoder(graph: Graph, step: Any, table: ColumnTable, live: Live) -> ColumnTable:
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
    found = graph.concat(parts)
    dtype = live.out.dtype if hasattr(live.out, "dtype") else np.dtype(step.dtype)
    return one(graph.cast(found, np.bool_, dtype), int(starts[-1]), dtype, table)


def value_encoder(graph: Graph, step: Any, table: ColumnTable, live: Live) -> ColumnTable:
    """OrdinalEncoder, or TargetEncoder: numbers for each category, of several classes one for each class."""
    per_column = len(step.classes_) if getattr(step, "target_type_", "") == "multiclass" else 1
    parts = []
    for place, block in enumerate(_columns(graph, table)):
        rows, known = _asked(step, place, live, place * per_column, (place + 1) * per_column)
        parts.append(_lookup(graph, block, step.categories_[place], rows.astype(np.float64), known))
    found = graph.concat(parts)
    dtype = live.out.dtype if hasattr(live.out, "dtype") else np.dtype(getattr(step, "dtype", np.float64))
    return one(graph.cast(found, DOUBLE, dtype), per_column * table.width, dtype, table)


def _columns(graph: Graph, table: ColumnTable) -> list[Block]:
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
    with warnings.catch_warnings(action="ignore"):
        return np.asarray(dense(step.transform(given)))


def _column(values: Sequence[Any]) -> Array:
    has_text = any(isinstance(value, str) or value is None for value in values)
    return np.array(values, dtype=object if has_text else None)


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


def simple(graph: Graph, step: Any, table: ColumnTable, live: Live) -> ColumnTable:
    """SimpleImputer.

    Raises:
        Unconvertible: values other than numbers, text and NaN count as missing.
    """
    _check(step.missing_values)
    kept = list(range(table.width))
    if not step.keep_empty_features:
        kept = [place for place, value in enumerate(step.statistics_) if not is_nan(value)]
    if step.strategy in {"mean", "median"} or not (table.text or table.mixed):
        found = _numbers(graph, step, table, kept)
    else:
        blocks = [_block(graph, block, step, place) for place, block in enumerate(single_columns(graph, table))]
        found = replace(table, blocks=tuple(blocks[place] for place in kept), names=None, mixed=True)
    if not step.add_indicator:
        return found
    flags = _flags(graph, table, step.missing_values, step.indicator_.features_)
    return replace(found, blocks=(*found.blocks, *flags), names=None)


def indicator(graph: Graph, step: Any, table: ColumnTable, live: Live) -> ColumnTable:
    """MissingIndicator."""
    _check(step.missing_values)
    flags = _flags(graph, table, step.missing_values, step.features_)
    return replace(table, blocks=tuple(flags), names=None, mixed=False, loose=False)


def _numbers(graph: Graph, step: Any, table: ColumnTable, kept: Sequence[int]) -> ColumnTable:
    dtype = table.dtype
    if step.strategy in {"mean", "median"} or step._fit_dtype == TEXT:
        dtype = FLOAT if dtype == FLOAT else DOUBLE
    if dtype == np.float16:
        raise Unconvertible("it computes in float16: declare the input FP32")
    name = matrix(graph, table, dtype)
    if table.loose:
        guard(graph, name, dtype, nan=True)
    mask = _mask(graph, Block(name, table.width, dtype), step.missing_values)
    if mask:
        fill = [0 if is_nan(value) else value for value in step.statistics_]
        name = graph.add("Where", [mask, graph.constant([fill], dtype), name])
    return select(graph, replace(one(name, table.width, dtype, table), loose=not is_nan(step.missing_values)), kept)


def _block(graph: Graph, block: Block, step: Any, place: int) -> Block:
    """Impute one column of an object array or of a DataFrame with text."""
    mask = _mask(graph, block, step.missing_values)
    fill = step.statistics_[place]
    if not mask or is_nan(fill):
        return block
    if isinstance(fill, str) != (block.dtype == TEXT):
        raise Unconvertible(f"it fills a column of {'text' if block.dtype == TEXT else 'numbers'} with {fill!r}")
    name = graph.add("Where", [mask, graph.constant([[fill]], block.dtype), block.name])
    return replace(block, name=name, missing=block.missing and not is_nan(step.missing_values))


def _mask(graph: Graph, block: Block, missing: Any) -> str:
    """Return where a value is missing, (rows, width); empty where none can be."""
    if block.dtype == TEXT:
        if is_nan(missing):
            return graph.add("Equal", [block.name, graph.constant([""], TEXT)]) if block.missing else ""
        return graph.add("Equal", [block.name, graph.constant([missing], TEXT)]) if isinstance(missing, str) else ""
    if is_nan(missing):
        return graph.add("IsNaN", [block.name]) if block.dtype.kind == "f" else ""
    if isinstance(missing, str):
        return ""
    wide = DOUBLE if block.dtype.kind == "f" else np.dtype(np.int64)
    if wide == np.int64 and float(missing) != int(missing):
        return ""
    return graph.add("Equal", [graph.cast(block.name, block.dtype, wide), graph.constant(missing, wide)])


def _flags(graph: Graph, table: ColumnTable, missing: Any, features: Any) -> list[Block]:
    blocks = single_columns(graph, table)
    found = []
    for place in features:
        block = blocks[int(place)]
        mask = _mask(graph, block, missing)
        if not mask:
            # No value can be missing here: false, in the shape of the column.
            held = block.name if block.dtype == TEXT else graph.cast(block.name, block.dtype, DOUBLE)
            mask = graph.add("And", [graph.add("Equal", [held, held]), graph.constant([[False]], BOOL)])
        found.append(Block(mask, 1, BOOL))
    return found


def _check(missing: Any) -> None:
    if not is_nan(missing) and not isinstance(missing, (str, int, float, np.number)):
        raise Unconvertible(f"missing_values={missing!r} is neither NaN, a number nor text")


Converter = Callable[[Graph, Any, ColumnTable, Live], ColumnTable]

_CONVERTERS: dict[str, Converter] = {
    "SimpleImputer": simple,
    "MissingIndicator": indicator,
    "StandardScaler": scalers.standard,
    "MaxAbsScaler": scalers.max_abs,
    "RobustScaler": scalers.robust,
    "Normalizer": scalers.normalizer,
    "Binarizer": scalers.binarizer,
    "KBinsDiscretizer": scalers.bins,
    "OneHotEncoder": one_hot_encoder,
    "OrdinalEncoder": value_encoder,
    "TargetEncoder": value_encoder,
    "FunctionTransformer": features.function,
    "PowerTransformer": features.power,
    "PolynomialFeatures": features.polynomial,
    "PCA": features.pca,
}


def transform(
    graph: Graph, step: Any, table: ColumnTable, given: Any, path: tuple[str, ...]
) -> tuple[ColumnTable, Any]:
    """Add a fitted step; what cannot be converted is a failure of the graph.

    Args:
        graph: to add to.
        step: a transformer, "passthrough" or None.
        table: what it gets, in the graph.
        given: what it gets, live.
        path: names of the steps that lead to it.

    Returns:
        what it gives: in the graph, and live.
    """
    if step is None or isinstance(step, str):
        return table, given
    kind = sklearn_kind(step)
    if kind == "Pipeline":
        for name, each in step.steps:
            table, given = transform(graph, each, table, given, (*path, name))
        return table, given
    with warnings.catch_warnings(action="ignore"):
        out = step.transform(given)
    try:
        if kind == "ColumnTransformer":
            made = _side_by_side(graph, step, _column_parts(graph, step, table, given, path), out)
        elif kind == "FeatureUnion":
            made = _side_by_side(graph, step, _union_parts(graph, step, table, given, path), out)
        else:
            made = converter_of(step)(graph, step, table, Live(given, out))
        return as_live(graph, made, out), out
    except Unconvertible as error:
        graph.fail(path, step, str(error))
        # The steps behind it are tried too.
        return table_of(out, "lost")[0], out


def converter_of(step: Any) -> Converter:
    """Return what converts a step; skl2onnx where tailcut does not."""
    kind = sklearn_kind(step)
    if kind in _CONVERTERS:
        return _CONVERTERS[kind]
    return features.selected if kind and hasattr(step, "get_support") else fallback.step


def as_live(graph: Graph, made: ColumnTable, out: Any) -> ColumnTable:
    """Give a converted step's result the dtypes and names of the live one.

    Raises:
        Unconvertible: another number of columns.
    """
    if made.width != width(out):
        raise Unconvertible(f"it gives {width(out)} columns, its ONNX form {made.width}")
    if is_frame(out):
        if len(out.shape) == 2:
            kinds = [np.dtype(kind) if isinstance(kind, np.dtype) else TEXT for kind in out.dtypes]
            made = replace(made, blocks=tuple(_typed_blocks(graph, made, kinds)))
        return replace(made, names=names(out), sparse=False, mixed=False)
    if out.dtype == TEXT or out.dtype.kind in "US":
        return replace(made, names=None, sparse=False, mixed=True)
    name = matrix(graph, made, out.dtype)
    return replace(
        made, blocks=(Block(name, made.width, out.dtype),), names=None, mixed=False, sparse=is_sparse(out), flat=False
    )


def _typed_blocks(graph: Graph, made: ColumnTable, kinds: Sequence[Any]) -> list[Block]:
    found, at = [], 0
    for block in made.blocks:
        inside = set(kinds[at : at + block.width])
        at += block.width
        kind = inside.pop() if len(inside) == 1 else block.dtype
        if kind in {TEXT, block.dtype}:
            found.append(block)
        else:
            found.append(replace(block, name=graph.cast(block.name, block.dtype, kind), dtype=kind))
    return found


def _column_parts(
    graph: Graph, step: Any, table: ColumnTable, given: Any, path: tuple[str, ...]
) -> Iterator[tuple[str, ColumnTable]]:
    """Yield the parts of a ColumnTransformer by name."""
    for name, each, columns in step.transformers_:
        places = list(step._transformer_to_input_indices.get(name, ()))
        if (isinstance(each, str) and each == "drop") or not places:
            continue
        if table.names is not None and hasattr(step, "feature_names_in_"):
            places = [table.names.index(str(step.feature_names_in_[place])) for place in places]
        flat = isinstance(columns, (str, int, np.integer)) and not isinstance(columns, bool)
        where: Any = places[0] if flat else places
        taken = given.iloc[:, where] if is_frame(given) else given[:, where]
        part = replace(select(graph, table, places), flat=flat)
        found, _ = transform(graph, each, part, taken, (*path, name))
        yield name, replace(found, flat=False)


def _union_parts(
    graph: Graph, step: Any, table: ColumnTable, given: Any, path: tuple[str, ...]
) -> Iterator[tuple[str, ColumnTable]]:
    """Yield the parts of a FeatureUnion by name."""
    for name, each in step.transformer_list:
        if not (isinstance(each, str) and each == "drop"):
            yield name, transform(graph, each, table, given, (*path, name))[0]


def _side_by_side(graph: Graph, step: Any, parts: Iterable[tuple[str, ColumnTable]], out: Any) -> ColumnTable:
    """Weigh parts and put them side by side, as np.hstack, SciPy or pandas do."""
    weights = step.transformer_weights or {}
    blocks: list[Block] = []
    loose = False
    for name, part in parts:
        loose |= part.loose
        if (weight := weights.get(name)) is not None:
            dtype = part.dtype if part.dtype.kind == "f" else DOUBLE
            weighted = graph.add("Mul", [matrix(graph, part, dtype), graph.constant(weight, dtype)])
            blocks.append(Block(weighted, part.width, dtype))
        elif part.blocks and not is_frame(out) and part.dtype != TEXT:
            # An array comes from each part first, of the part's own dtype.
            blocks.append(Block(matrix(graph, part, part.dtype), part.width, part.dtype))
        else:
            blocks += part.blocks
    return ColumnTable(tuple(blocks), loose=loose)
