"""Rows of one entity count once within a window."""

from __future__ import annotations

import numpy as np

from tailcut.common.tensors import Bools, Keys

NONE = 0
"""Key of a row that belongs to no entity, and stands for itself."""
_BITS = 21
_MIX = np.int64(-7046029254386353131)
"""2^64 divided by the golden ratio, as a signed number: keys that are close get places that are not."""


class OncePerWindow:
    """Remembers which entities have been counted in the current window; of bounded size.

    A table of 2^21 places, 2 MB, tells by an entity's hash whether it was counted. Of two entities with the same place
    only the first is: of 250,000 some 6 % are left out. Where a quarter of the places are taken, every second entity is
    left out from then on, by its hash, so that late rows of a window count as much as early ones.
    """

    def __init__(self) -> None:
        self._taken: Bools | None = None
        self._count = 0
        self._one_in = 1
        self._window = -1

    def first(self, entities: Keys, window: int) -> Bools:
        """Tell which rows count as their entity's first in the window, (rows,), and remember them.

        Args:
            entities: (rows,) of hashes; ``NONE``: no entity.
            window: number of the window; another one than before begins anew.
        """
        if self._taken is None or window != self._window:
            self._taken = np.zeros(2**_BITS, np.bool_)
            self._count, self._window = 0, window
        mixed = entities * _MIX
        places = (mixed >> (64 - _BITS)) & (2**_BITS - 1)
        _, firsts = np.unique(entities, return_index=True)  # of rows of one entity in the same batch, too
        counts = np.zeros(len(entities), np.bool_)
        counts[firsts] = True
        counts &= ~self._taken[places] & ((mixed >> 16) % self._one_in == 0) & (entities != NONE)
        self._taken[places[counts]] = True
        self._count += int(np.count_nonzero(counts))
        if self._count > 2 ** (_BITS - 2):
            self._one_in *= 2
            self._count //= 2  # that would still be counted
        return np.asarray(counts | (entities == NONE), np.bool_)
