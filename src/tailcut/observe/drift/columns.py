"""Columns of tensors: what of a batch is watched, by name.

A tensor of (rows,) is one column, one of (rows, d) is d columns; one with more columns than are watched is summed up
per row, by mean and standard deviation. With a free dimension (tokens) padding is in the values, and differs from batch
to batch: of integers it is watched how many elements of a row are not zero, of other values nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tailcut.common.tensors import Array
from tailcut.manifest import TensorSpec
from tailcut.observe.drift.sketch import Role

MOST = 256
"""Columns of one tensor that are watched one by one."""


class Column(NamedTuple):
    """A column of a batch: (rows,) of values."""

    role: Role
    name: str
    values: Array


def columns_of(role: Role, spec: TensorSpec, array: Array) -> list[Column]:
    """Return the columns of one tensor of a batch.

    Args:
        role: whether it goes into the model or comes out.
        spec: of the tensor.
        array: (rows, ...).
    """
    width = int(np.prod(spec.shape[1:])) if len(spec.shape) > 1 else 1
    flat = array.reshape(len(array), -1)
    if -1 in spec.shape[1:]:
        if role == "output" or flat.dtype.kind not in "iu":
            return []
        # As a float: a length is a number, however few different ones there are.
        return [Column(role, f"{spec.name}.nonzero", np.count_nonzero(flat, axis=1).astype(np.float64))]
    if width > MOST:
        return _summed_up(role, spec.name, flat)
    return [Column(role, name, flat[:, place]) for place, name in enumerate(names_of(spec, flat.shape[1]))]


def names_of(spec: TensorSpec, width: int) -> Sequence[str]:
    """Name the columns of a tensor: as the manifest does, else by their place."""
    if width == 1:
        return spec.columns if len(spec.columns) == 1 else (spec.name,)
    return spec.columns if len(spec.columns) == width else [f"{spec.name}[{place}]" for place in range(width)]


def _summed_up(role: Role, name: str, flat: Array) -> list[Column]:
    if flat.dtype.hasobject:
        return []
    wide = flat.astype(np.float64)
    return [Column(role, f"{name}.mean", wide.mean(1)), Column(role, f"{name}.std", wide.std(1))]
