"""SimpleImputer and MissingIndicator, of numbers and text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tailcut.builder.tables.columns import Block, Table, Unconvertible, guard, matrix, one, select, single_columns
from tailcut.builder.tables.live import Live, is_nan
from tailcut.builder.tables.nodes import BOOL, DOUBLE, FLOAT, TEXT, Graph


def simple(graph: Graph, step: Any, table: Table, live: Live) -> Table:
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


def indicator(graph: Graph, step: Any, table: Table, live: Live) -> Table:
    """MissingIndicator."""
    _check(step.missing_values)
    flags = _flags(graph, table, step.missing_values, step.features_)
    return replace(table, blocks=tuple(flags), names=None, mixed=False, loose=False)


def _numbers(graph: Graph, step: Any, table: Table, kept: Sequence[int]) -> Table:
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


def _flags(graph: Graph, table: Table, missing: Any, features: Any) -> list[Block]:
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
