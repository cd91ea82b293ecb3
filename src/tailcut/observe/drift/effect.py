"""The size of a change: the population stability index of a window against the reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tailcut.common.tensors import Doubles
from tailcut.observe.drift.bets import transform
from tailcut.observe.drift.sketch import Sketch

GROUPS = 10
"""Groups of equal share that the values of a column of numbers are compared in, as is the custom for this index."""

Counts = npt.NDArray[np.int64]


class Effect:
    """The population stability index of columns, and the distributions that it compares.

    Args:
        sketches: of the columns.
    """

    def __init__(self, sketches: Sequence[Sketch]) -> None:
        width = max(each.cells for each in sketches)
        groups = [_groups(each) for each in sketches]
        self._most = max(max(each) + 1 for each in groups)
        self._group = np.zeros((len(sketches), width, self._most))
        self._reference = np.zeros((len(sketches), width))
        for place, (sketch, group) in enumerate(zip(sketches, groups, strict=True)):
            self._group[place, np.arange(sketch.cells), group] = 1
            self._reference[place, : sketch.cells] = [*sketch.counts, sketch.missing]
        self._used = self._group.any(1)
        self._rows = np.array([each.effective_rows for each in sketches])

    def psi(self, counts: Counts) -> Doubles:
        """Return sum((q - p) ln(q / p)) over the groups of each column, (columns,); 0 without rows.

        Half a row is added to each group (Jeffreys), so that an empty one is no infinity. What two samples of one
        population are expected to differ by, (groups - 1)(1/n + 1/m), is taken off (Yurdakul and Naranjo, "Statistical
        properties of the population stability index", 2020).

        Args:
            counts: (columns, cells) of the window.
        """
        rows = counts.sum(1)
        expected = self._shares(self._reference)
        found = self._shares(counts)
        terms = np.where(self._used, (found - expected) * np.log(found / expected), 0.0)
        chance = (self._used.sum(1) - 1) * (1 / self._rows + 1 / np.maximum(rows, 1))
        return np.where(rows > 0, np.maximum(terms.sum(1) - chance, 0.0), 0.0)

    def _shares(self, counts: npt.NDArray[np.generic]) -> Doubles:
        grouped = np.matmul(counts[:, None, :].astype(np.float64), self._group)[:, 0]
        raised = np.where(self._used, grouped + 0.5, 1.0)
        return np.asarray(raised / np.where(self._used, raised, 0.0).sum(1, keepdims=True), np.float64)


def _groups(sketch: Sketch) -> list[int]:
    """Return the group of each cell; the last one is what is missing."""
    if not sketch.is_numeric:
        # What is not seen in the reference, and what is missing, weigh as much as a frequent category.
        return list(range(sketch.cells))
    tenths = np.minimum((transform(sketch) * GROUPS).astype(int), GROUPS - 1)
    used, groups = np.unique(tenths, return_inverse=True)
    return [*groups.tolist(), len(used)]
