"""From values to cells: which cell of its column's sketch each value of a batch lies in. Vectorised over columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tailcut.common.tensors import Array, Doubles
from tailcut.observe.drift.sketch import LARGEST, Sketch, plain_category

Cells = npt.NDArray[np.intp]


class Cellular:
    """Places the values of batches into the cells of sketches.

    Args:
        sketches: of all columns.

    Attributes:
        width: cells of a column, at most.
    """

    def __init__(self, sketches: Sequence[Sketch]) -> None:
        self.width = max(each.cells for each in sketches)
        self._numeric = [place for place, each in enumerate(sketches) if each.is_numeric]
        self._coded = [place for place, each in enumerate(sketches) if not each.is_numeric]
        self._columns = len(sketches)
        most = max((len(sketches[place].edges) for place in self._numeric), default=0)
        # (edges, numeric columns), a row after the other: the loop below is over them.
        self._edges = np.full((most, len(self._numeric)), np.inf)
        for at, place in enumerate(self._numeric):
            edges = sketches[place].edges
            self._edges[: len(edges), at] = edges
        self._missing = np.array([sketches[place].cells - 1 for place in self._numeric], np.intp)
        self._codes = {place: _Codes(sketches[place]) for place in self._coded}

    def place(self, values: Sequence[Array]) -> Cells:
        """Return the cell of each value.

        Args:
            values: per column, in the order of the sketches: (rows,).

        Returns:
            (rows, columns) of cell numbers.
        """
        found = np.empty((len(values[0]), self._columns), np.intp)
        if self._numeric:
            numbers = np.empty((len(found), len(self._numeric)))
            for at, place in enumerate(self._numeric):
                numbers[:, at] = values[place]
            found[:, self._numeric] = self._place_numbers(numbers)
        for place, codes in self._codes.items():
            found[:, place] = codes.place(values[place])
        return found

    def count(self, cells: Cells) -> npt.NDArray[np.int64]:
        """Count (rows, columns) of cells: (columns, ``width``)."""
        offsets = np.arange(self._columns) * self.width
        counted = np.bincount((cells + offsets).ravel(), minlength=self._columns * self.width)
        return counted.reshape(self._columns, self.width).astype(np.int64, copy=False)

    def _place_numbers(self, numbers: Doubles) -> Cells:
        found = np.zeros(numbers.shape, np.intp)
        numbers = np.clip(numbers, -LARGEST, LARGEST)
        for edges in self._edges:
            found += numbers >= edges
        return np.where(np.isnan(numbers), self._missing, found)


class _Codes:
    """Places categories into the cells of one sketch."""

    def __init__(self, sketch: Sketch) -> None:
        self._missing = sketch.cells - 1
        self._unseen = sketch.cells - 2
        self._rest = sketch.cells - 3
        # Where not all categories of the reference are known by name, a new one cannot be told from a rare one.
        self._stranger = self._unseen if sketch.all_known else self._rest
        self._cell: dict[int | str, int] = {each: self._rest for each in sketch.others}
        self._cell |= {each: place for place, each in enumerate(sketch.categories)}
        self._cell[""] = self._missing
        whole = sorted((key, cell) for key, cell in self._cell.items() if isinstance(key, int))
        self._keys = np.array([key for key, _ in whole], np.int64)
        self._cells = np.array([cell for _, cell in whole], np.intp)

    def place(self, values: Array) -> Cells:
        if values.dtype.kind in "biu" and len(self._keys):
            wanted = values.astype(np.int64)
            at = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
            return np.where(self._keys[at] == wanted, self._cells[at], self._stranger)
        find = self._cell.get
        found = [find(plain_category(value), self._stranger) for value in values.tolist()]
        return np.array(found, np.intp)
