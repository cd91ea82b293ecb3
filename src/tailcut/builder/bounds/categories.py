"""Bounds of columns whose values an encoder of the estimator must know."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from tailcut.builder.bounds.trials import MOST_COLUMNS, OutOfTime, Trials, Value, fits, sample
from tailcut.common.bounds import Bound
from tailcut.common.tensors import NUMPY_OF
from tailcut.manifest import TensorSpec

MOST_VALUES = 10_000
"""Longer lists of categories are not tried."""

UNKNOWN = "tailcut: no category"
_LIBRARIES = ("sklearn.", "lightgbm.", "xgboost.")
_FOREIGN = 5
"""Categories of other encoders that are tried where a list is proven."""


class Known(msgspec.Struct, frozen=True):
    """The values that an encoder learnt for one column."""

    encoder: str
    values: tuple[Value, ...]


def known(model: Any) -> list[Known]:
    """Return the lists of categories of all encoders inside an estimator, whatever step they are in."""
    found: list[Known] = []
    for part in parts(model, {}):
        lists = getattr(part, "categories_", None)
        if isinstance(lists, list) and all(isinstance(each, np.ndarray) for each in lists):
            found += [Known(type(part).__name__, _values(each)) for each in lists]
    return [each for each in dict.fromkeys(found) if each.values]


def has_own_code(model: Any) -> bool:
    """Tell whether a step of an estimator is no plain one of a library: its values may be any function's."""
    return any(
        # A FunctionTransformer without a function stands for columns that pass through.
        not type(part).__module__.startswith(_LIBRARIES) or getattr(part, "func", None) is not None
        for part in parts(model, {})
    )


def closed(trials: Trials, tensor: TensorSpec, lists: Sequence[Known]) -> list[int]:
    """Return the columns of an input where a value that no encoder knows raises."""
    unknown = _unknown(tensor, lists)
    places = sample(trials.columns(tensor), MOST_COLUMNS)
    if unknown is None or trials.answers(trials.changed(tensor.name, places, [unknown])):
        return []
    return [place for place in places if trials.refuses(tensor, [place], [unknown])]


def bounds_of(trials: Trials, tensor: TensorSpec, columns: Sequence[int], lists: Sequence[Known]) -> list[Bound]:
    """Return the values that the estimator knows, of those columns where one encoder's list is proven."""
    groups: dict[Known, list[int]] = {}
    # Columns that were tried in time keep their values.
    with suppress(OutOfTime):
        for column in columns:
            for each in sorted(lists, key=lambda known: len(known.values), reverse=True):
                if _proven(trials, tensor, column, each, lists):
                    groups.setdefault(each, []).append(column)
                    break
    # The empty text stands for a missing value.
    takes_missing = tensor.datatype == "BYTES" and tensor.allow_nan
    return [
        Bound(
            input=tensor.name,
            columns=() if len(places) == trials.columns(tensor) else tuple(places),
            values=each.values + (("",) if takes_missing and trials.takes(tensor, places, [""]) else ()),
            why=f"{each.encoder} knows {len(each.values)} values",
        )
        for each, places in groups.items()
    ]


def _proven(trials: Trials, tensor: TensorSpec, column: int, one: Known, lists: Sequence[Known]) -> bool:
    if not _of_kind(tensor, one) or len(one.values) > MOST_VALUES:
        return False
    if not trials.answers(trials.changed(tensor.name, [column], one.values)):
        return False
    foreign = [value for other in lists if _of_kind(tensor, other) for value in other.values if value not in one.values]
    return trials.refuses(tensor, [column], foreign[:_FOREIGN])


def _of_kind(tensor: TensorSpec, one: Known) -> bool:
    if tensor.datatype == "BYTES":
        return all(isinstance(value, str) for value in one.values)
    return all(not isinstance(value, str) and fits(tensor, value) for value in one.values)


def _unknown(tensor: TensorSpec, lists: Sequence[Known]) -> Value | None:
    """Return a value that no encoder knows; None where no encoder takes such values."""
    lists = [each for each in lists if _of_kind(tensor, each)]
    if not lists:
        return None
    if tensor.datatype == "BYTES":
        return UNKNOWN
    values = {value for each in lists for value in each.values}
    largest = max(float(value) for value in values)
    value = float(np.floor(largest)) + 1
    if not fits(tensor, value):
        return None
    return value if NUMPY_OF[tensor.datatype].kind == "f" else int(value)


def _values(array: Any) -> tuple[Value, ...]:
    """Return categories as plain values; gaps are no values: ``allow_nan`` is about them."""
    values = (value.decode() if isinstance(value, bytes) else value for value in array.tolist())
    return tuple(
        value
        for value in values
        if isinstance(value, (str, bool, int)) or (isinstance(value, float) and not math.isnan(value))
    )


def parts(model: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Yield an estimator and everything of its kind inside it."""
    if id(model) in seen:
        return
    # Kept, so that no other object gets its number.
    seen[id(model)] = model
    if isinstance(model, (list, tuple)):
        for each in model:
            yield from parts(each, seen)
    elif isinstance(model, dict):
        yield from parts(list(model.values()), seen)
    elif any(hasattr(model, name) for name in ("transform", "predict")) and hasattr(model, "__dict__"):
        yield model
        yield from parts(list(vars(model).values()), seen)
