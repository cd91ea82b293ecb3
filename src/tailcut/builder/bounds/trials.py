"""Trials: the user's object on changed holdout rows. An answer or an error is the only proof that a bound has."""

from __future__ import annotations

import os
import resource
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from tailcut.builder.calling import said
from tailcut.common.tensors import NUMPY_OF, Arrays
from tailcut.manifest import TensorSpec

Call = Callable[[Arrays], Arrays]
Value = int | float | str | bool

_ROOM = 8 * 2**30
"""Address space in bytes for one trial, so that a model that allocates by an input's value raises."""

_BATCH = 32
PATIENCE_S = 60.0
"""Time for the trials of one model: what of a slow one comes after is not tried, and proves nothing."""

MOST_COLUMNS = 64
"""Columns of one input that are tried one by one; of more, as many at even distances."""


class OutOfTime(Exception):
    """A trial was not made, because the trials before it took all of the time."""


class Patience:
    """The time for the trials of one model."""

    def __init__(self) -> None:
        self._spent_s = 0.0

    def run(self, call: Call, arrays: Arrays) -> Arrays:
        """Run rows without warnings of overflow and native error logs, and with a limit on memory.

        Raises:
            OutOfTime: there is no time left; nothing was run.
            Exception: whatever the object raises.
        """
        if self._spent_s >= PATIENCE_S:
            raise OutOfTime
        started_s = perf_counter()
        try:
            with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"), _limited_memory(), _quiet():
                return call(arrays)
        finally:
            self._spent_s += perf_counter() - started_s


class Trials:
    """Runs the user's object on changed holdout rows.

    Args:
        call: runs it on arrays by name; raises where the object raises.
        inputs: the tensors of ``model.inputs``.
        rows: a few holdout rows that it answers.

    Its methods raise ``OutOfTime`` where a trial is needed and there is no time left.
    """

    def __init__(self, call: Call, inputs: Sequence[TensorSpec], rows: Arrays) -> None:
        self.inputs = tuple(inputs)
        self.rows = {name: array.astype(object) if array.dtype.kind in "US" else array for name, array in rows.items()}
        self._call = call
        self._patience = Patience()

    @property
    def count(self) -> int:
        """Number of holdout rows."""
        return len(next(iter(self.rows.values())))

    def answers(self, arrays: Arrays) -> bool:
        """Tell whether the object answers all these rows."""
        try:
            self._patience.run(self._call, arrays)
        except OutOfTime:
            raise
        except Exception:
            return False
        return True

    def columns(self, tensor: TensorSpec) -> int:
        """Return the number of values in a row of an input, as the holdout has them."""
        array = self.rows[tensor.name]
        return int(np.prod(array.shape[1:]))

    def observed(self, tensor: TensorSpec, columns: Sequence[int] = ()) -> Any:
        """Return the holdout's values of an input, (rows, columns)."""
        array = self.rows[tensor.name]
        flat = array.reshape(len(array), -1)
        return flat[:, list(columns)] if columns else flat

    def changed(self, name: str, columns: Sequence[int], values: Sequence[Any], base: int = 0) -> Arrays:
        """Return the holdout row ``base`` once per value, with that value in all of ``columns`` of input ``name``."""
        found = {each: np.repeat(array[base : base + 1], len(values), axis=0) for each, array in self.rows.items()}
        flat = found[name].reshape(len(values), -1)
        encode = flat.dtype.kind == "O" and isinstance(flat.ravel()[0], bytes)
        for place, value in enumerate(values):
            flat[place, list(columns)] = value.encode() if encode and isinstance(value, str) else value
        found[name] = flat.reshape(found[name].shape)
        return found

    def refuses(self, tensor: TensorSpec, columns: Sequence[int], values: Sequence[Any]) -> bool:
        """Tell whether every value in every single one of ``columns``, in the first and the last row, raises."""
        return not any(
            self.answers(self.changed(tensor.name, [column], [value], base))
            for base in {0, self.count - 1}
            for column in columns
            for value in values
        )

    def takes(self, tensor: TensorSpec, columns: Sequence[int], values: Sequence[Any]) -> bool:
        """Tell whether every value in every single one of ``columns``, in the first and the last row, is answered."""
        return all(
            self.answers(self.changed(tensor.name, [column], values, base))
            for base in {0, self.count - 1}
            for column in columns
        )


def each_row(call: Call, rows: Sequence[Arrays], patience: Patience) -> list[Arrays | str | None]:
    """Return the answer to each of some single rows, or what is raised on it alone; rows of one shape run together.

    None stands for rows for which no time was left.
    """
    found: list[Arrays | str | None] = [None] * len(rows)
    shapes: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for place, row in enumerate(rows):
        shapes.setdefault(tuple(array.shape for array in row.values()), []).append(place)
    parts = [part[start : start + _BATCH] for part in shapes.values() for start in range(0, len(part), _BATCH)]
    while parts:
        part = parts.pop()
        batch = {name: np.concatenate([rows[place][name] for place in part]) for name in rows[0]}
        try:
            answers = patience.run(call, batch)
        except OutOfTime:
            return found
        except Exception as error:
            if len(part) == 1:
                found[part[0]] = said(error)
            else:
                middle = len(part) // 2
                parts += [part[:middle], part[middle:]]
            continue
        for number, place in enumerate(part):
            found[place] = {name: array[number : number + 1] for name, array in answers.items()}
    return found


def fits(tensor: TensorSpec, value: float | int) -> bool:
    """Tell whether a tensor's datatype holds a number."""
    dtype = NUMPY_OF[tensor.datatype]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype.str)
        return value == int(value) and limits.min <= value <= limits.max
    return dtype.kind == "f" and (not np.isfinite(value) or abs(value) <= float(np.finfo(dtype.str).max))


def sample(count: int, most: int) -> list[int]:
    """Return at most ``most`` of the numbers below ``count``, at even distances, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(place) for place in np.linspace(0, count - 1, most)})


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop what native code writes to stderr: onnxruntime logs every error, and here errors are wanted."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _limited_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + _ROOM
    if before[0] != resource.RLIM_INFINITY and before[0] <= limit:
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
