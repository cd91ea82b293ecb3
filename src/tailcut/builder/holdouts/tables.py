"""Columns of holdout files: .parquet, .csv or .npz. A .csv has no datatypes: pandas guesses them."""

from __future__ import annotations

import re
from collections.abc import Collection
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.common.scalars import is_missing
from tailcut.common.tensors import Arrays

_PADDED = re.compile(r"0\d+")
"""A number would lose the leading zeros of such a text."""


def read(path: Path) -> Arrays:
    """Return the columns of a file, whose suffix tells the format, by name: NumPy arrays, (rows, ...).

    Raises:
        ImportError, OSError, ValueError and what else pandas, pyarrow, zipfile and NumPy raise: it cannot be read.
    """
    if path.suffix.lower() == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    import pandas

    is_csv = path.suffix.lower() == ".csv"
    table = pandas.read_csv(path) if is_csv else pandas.read_parquet(path)
    return {str(name): table[name].to_numpy() for name in table.columns}


def as_text(path: Path, names: Collection[str]) -> Arrays:
    """Return columns of a .csv as they are written ("00501", "None"), as text objects; an empty text is missing.

    Args:
        path: of the file. Other formats have datatypes: nothing is returned for them.
        names: of columns that it has.
    """
    if path.suffix.lower() != ".csv" or not names:
        return {}
    import pandas

    # By itself pandas takes "None", "NA" and "nan" for gaps. All columns are read: a choice would move them where
    # pandas takes the first for an index.
    table = pandas.read_csv(path, dtype=dict.fromkeys(names, str), keep_default_na=False, na_values=[""])
    return {name: table[name].to_numpy(dtype=object) for name in names}


def text_columns(path: Path, columns: Arrays, names: Collection[str]) -> set[str]:
    """Return those of the named columns of a .csv that hold text; none of another file.

    Args:
        path: of the file.
        columns: as ``read`` gave them.
        names: to look at. A column that pandas takes for whole numbers is text, too, where leading zeros would be
            lost, as in zip codes.
    """
    if path.suffix.lower() != ".csv":
        return set()
    held = {name: columns[name] for name in names if name in columns}
    found = {
        name
        for name, array in held.items()
        if array.dtype.kind == "O" and any(isinstance(value, str) for value in array.tolist())
    }
    numbers = [name for name, array in held.items() if array.dtype.kind in "iuf"]
    written = as_text(path, numbers)
    return found | {name for name in numbers if any(_PADDED.fullmatch(str(text)) for text in written[name].tolist())}


def numbers_of(array: Any) -> Any:
    """Return objects that are booleans, numbers or decimals as booleans, or as float64 with NaN for gaps.

    Other arrays, and objects of anything else, are returned as they are.
    """
    if array.dtype.kind != "O":
        return array
    values = array.ravel().tolist()
    known = [value for value in values if not is_missing(value)]
    if not known or not all(isinstance(value, bool | int | float | Decimal | np.bool_ | np.number) for value in known):
        return array
    if len(known) == len(values) and all(isinstance(value, bool | np.bool_) for value in known):
        return array.astype(np.bool_)
    floats = [np.nan if is_missing(value) else float(value) for value in values]
    return np.array(floats, np.float64).reshape(array.shape)
