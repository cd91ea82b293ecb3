"""Rows of one entity count once within a window."""

from __future__ import annotations

import numpy as np

from tailcut.common.tensors import Bools, Keys

NONE = 0
"""Key of a row that belongs to no entity, and stands for itself."""
_BITS = 18


class OncePerWindow:
    """Remembers which entities have been counted in the current window; of bounded size.

    A table of 2^18 places holds the last entity of each: with more entities than that in a window some are counted
    again, so that memory stays at 2 MB.
    """

    def __init__(self) -> None:
        self._table: Keys | None = None
        self._window = -1

    def first(self, entities: Keys, window: int) -> Bools:
        """Tell which rows are their entity's first in the window, (rows,), and remember them.

        Args:
            entities: (rows,) of hashes; ``NONE``: no entity.
            window: number of the window; another one than before begins anew.
        """
        if self._table is None or window != self._window:
            self._table = np.zeros(2**_BITS, np.int64)
            self._window = window
        places = (entities ^ (entities >> _BITS)) & (2**_BITS - 1)
        found = self._table[places] != entities
        self._table[places] = entities
        # Of rows of one entity in the same batch, too.
        _, first = np.unique(entities, return_index=True)
        leads = np.zeros(len(entities), np.bool_)
        leads[first] = True
        return np.asarray((found & leads) | (entities == NONE), np.bool_)
