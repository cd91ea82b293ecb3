"""Padding of rows of different lengths: what is padding in every row of a batch is cut off."""

from __future__ import annotations

import numpy as np

from tailcut.common.tensors import Array, Arrays

MULTIPLE = 16
"""Padded inputs are cut to multiples of this, as ``tailcut.text`` pads them."""


def trimmed(inputs: Arrays, padding: str) -> Arrays:
    """Return a batch without what is padding in all of its rows, up to a multiple of ``MULTIPLE``.

    Args:
        inputs: of the batch, each (rows, ...).
        padding: name of the input, (rows, tokens), that is 0 where there is padding; empty: nothing is padding.
    """
    found = dict(inputs)
    if padding:
        mask = found[padding]
        width = -(-int(lengths(mask).max(initial=1)) // MULTIPLE) * MULTIPLE
        padded = [name for name, array in found.items() if array.shape[1:2] == mask.shape[1:]]
        found |= {name: found[name][:, :width] for name in padded}
    return {name: np.ascontiguousarray(array) for name, array in found.items()}


def lengths(mask: Array) -> Array:
    """Return where each row ends, (rows,): behind its last value, wherever gaps are."""
    held = mask != 0
    return np.where(held.any(axis=1), held.shape[1] - np.argmax(held[:, ::-1], axis=1), 0)
