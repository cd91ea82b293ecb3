"""Columns and labels of a group: the data that its model is fitted on, judged on and asked about."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.matrix.axes import Group

Column = NDArray[Any]
Columns = dict[str, Column]

TRAINING_ROWS = 600
HOLDOUT_ROWS = 320

MERCHANT = 400_000_000
SECONDS = 1_790_000_000
EXACT = 2**53
"""Floats hold every whole number up to here."""

CITIES = ("Aachen", "Zürich", "São Paulo", "東京", "New York", "x")
KINDS = ("new", "old", "")

_DATATYPES = {
    "float32": ("FP32", "FP32", "FP32", "FP32"),
    "float64": ("FP64", "FP64", "FP64", "FP64"),
    "int64": ("INT64", "INT64", "INT64", "FP64"),
    "missing": ("FP32", "FP64", "FP32", "INT64"),
    "text": ("BYTES", "BYTES", "FP64", "INT64"),
    "constant": ("FP32", "FP32", "FP32", "INT64"),
}
_OF_ONE_TENSOR = {"int64": "INT64", "missing": "FP32", "constant": "FP32"}
NUMPY = {"FP32": np.dtype("f4"), "FP64": np.dtype("f8"), "INT64": np.dtype("i8"), "BYTES": np.dtype("O")}


def datatypes(group: Group) -> dict[str, str]:
    """Return the datatype of each column, in their order."""
    found = _DATATYPES[group.values]
    if group.one_tensor:
        found = (_OF_ONE_TENSOR.get(group.values, found[0]),) * len(found)
    return dict(zip("abcd", found, strict=True))


def may_be_missing(group: Group) -> frozenset[str]:
    """Return the columns that may hold NaN, or no text."""
    if group.values == "missing":
        return frozenset(name for name, datatype in datatypes(group).items() if datatype != "INT64")
    # Only the Pipeline has an imputer in front of its text.
    return frozenset("b") if group.values == "text" and group.model == "pipeline" else frozenset()


@dataclass(frozen=True)
class Table:
    """Rows with their labels: column name -> (rows,), labels (rows,), codes (rows,) of the labels' classes."""

    columns: Columns
    labels: Column
    codes: Column

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.labels)


@lru_cache(maxsize=8)
def training(group: Group) -> Table:
    """Rows to fit on."""
    return _table(group, TRAINING_ROWS, 0)


@lru_cache(maxsize=8)
def holdout(group: Group) -> Table:
    """Rows to judge on."""
    return _table(group, HOLDOUT_ROWS, 1)


def draw(group: Group, rows: int, rng: np.random.Generator) -> Columns:
    """Draw rows of the group's kind of values."""
    made = {"a": rng.normal(size=rows), "b": rng.normal(size=rows) * 3, "c": rng.exponential(size=rows)}
    made["d"] = rng.integers(0, 50, rows)
    if group.values == "float64":
        # What tells rows apart begins at the tenth digit: nothing of it is left in float32.
        made["a"] = 1.0 + rng.integers(0, 40, rows) * 1e-9
        made["d"] = 1e6 + rng.integers(0, 40, rows) * 1e-6
    elif group.values == "int64":
        made["a"] = MERCHANT + rng.integers(0, 40, rows)
        made["b"] = SECONDS + rng.integers(0, 4 * 3600, rows)
        made["c"] = EXACT - 80 + 2 * rng.integers(0, 40, rows)
    elif group.values == "missing":
        for name in sorted(may_be_missing(group)):
            made[name] = np.where(rng.random(rows) < 0.2, np.nan, made[name])
    elif group.values == "text":
        made["a"] = _texts(rng.choice(CITIES, rows))
        made["b"] = _texts(rng.choice(KINDS if may_be_missing(group) else KINDS[:2], rows))
    elif group.values == "constant":
        made["d"] = np.full(rows, 7)
    items = zip(datatypes(group).items(), made.values(), strict=True)
    return {name: typed(values, datatype) for (name, datatype), values in items}


def typed(values: Column, datatype: str) -> Column:
    """Return a column in its datatype; of text only "" stands for none."""
    if datatype == "BYTES":
        return values
    return np.ascontiguousarray(np.asarray(values).astype(NUMPY[datatype]))


def _texts(values: Any) -> Column:
    found = np.empty(len(values), object)
    found[:] = [str(value) for value in values]
    return found


def _table(group: Group, rows: int, part: int) -> Table:
    rng = np.random.default_rng([group.place, part])
    columns = draw(group, rows, rng)
    signal = _signal(group, columns) + rng.normal(size=rows) * 0.4
    if not group.classes:
        return Table(columns, signal, np.zeros(rows, np.int64))
    edges = (0.0,) if len(group.classes) == 2 else (-0.6, 0.6)
    codes = np.digitize(signal, edges)
    labels = np.array(group.classes)[codes]
    return Table(columns, labels, codes)


def _signal(group: Group, columns: Columns) -> Column:
    """What the labels follow; of wide numbers their last digits."""
    a, b, c, d = columns.values()
    if group.values == "int64":
        return ((a % 7 == 3) * 2.0 + (b % 10 < 4) * 1.0 + ((c // 2) % 3 == 0) * 0.5) - 1.0
    if group.values == "float64":
        return np.sin((a - 1.0) * 1e9) + np.where((d - 1e6) * 1e6 > 20, 0.7, -0.7) + 0.2 * b
    if group.values == "text":
        first = np.array([len(text) % 3 - 1.0 for text in a])
        return first + np.array([0.5 if text == "new" else -0.3 for text in b]) + 0.02 * (d - 25.0)
    numbers = [np.nan_to_num(np.asarray(each, np.float64), nan=1.5) for each in (a, b, c)]
    return numbers[0] - 0.4 * numbers[1] + 0.5 * (numbers[2] - 1.0)
