"""What runtimes with prepared batch sizes share: a batch in parts, each filled up to its bucket, and put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tailcut.common.tensors import NUMPY_OF, Array, Arrays
from tailcut.errors import ArtifactError
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes.batch_buckets import parts

FREE = 8
"""Size that warm-up gives to a free dimension that is not the batch."""

WARM_UP_RUNS = 3
"""Of each bucket: libraries choose their kernels and reserve memory in the first ones."""


def fixed(inputs: Sequence[TensorSpec]) -> bool:
    """Tell whether the batch is the only free dimension."""
    return all(-1 not in tensor.shape[1:] for tensor in inputs)


def buckets_of(settings: Mapping[str, Any], variant: str) -> tuple[int, ...]:
    """Read the setting ``buckets``; empty where there are none.

    Raises:
        ArtifactError: they are not ascending numbers of rows.
    """
    found = settings.get("buckets", ())
    good = isinstance(found, (list, tuple)) and all(isinstance(size, int) and size > 0 for size in found)
    if not good or list(found) != sorted(set(found)):
        raise ArtifactError(
            f"the setting buckets of variant {variant!r} is {found!r}, expected ascending numbers of rows",
            hint="run `tailcut build` again",
        )
    return tuple(found)


def zeros(inputs: Sequence[TensorSpec], rows: int, free: int = FREE) -> Arrays:
    """Return inputs to warm up with: zeros, and empty texts.

    Args:
        free: size of free dimensions.
    """
    return {
        tensor.name: np.full(
            (rows, *(free if size == -1 else size for size in tensor.shape[1:])),
            "" if tensor.datatype == "BYTES" else 0,
            NUMPY_OF[tensor.datatype],
        )
        for tensor in inputs
    }


def fill(array: Array, start: int, rows: int, target: Array) -> None:
    """Copy ``rows`` rows from ``start`` into ``target`` and repeat the last of them to its end.

    A copy of a real row takes no path through the model (an overflow, a mask of nothing) that the row does not take.
    """
    target[:rows] = array[start : start + rows]
    target[rows:] = array[start + rows - 1]


def filled(inputs: Arrays, start: int, rows: int, size: int) -> Arrays:
    """Return ``size`` rows of every input; see ``fill``."""
    found = {name: np.empty((size, *array.shape[1:]), array.dtype) for name, array in inputs.items()}
    for name, target in found.items():
        fill(inputs[name], start, rows, target)
    return found


def in_parts(
    inputs: Arrays, outputs: Sequence[str], buckets: Sequence[int], run: Callable[[int, int, int], Arrays]
) -> Arrays:
    """Run a batch bucket by bucket.

    Args:
        inputs: of the batch.
        outputs: names of those wanted.
        buckets: ascending.
        run: (start, rows, bucket) -> outputs of that part, ``rows`` long.
    """
    rows = len(next(iter(inputs.values())))
    found = [run(*part) for part in parts(rows, buckets)]
    if len(found) == 1:
        return found[0]
    return {name: np.concatenate([part[name] for part in found]) for name in outputs}
