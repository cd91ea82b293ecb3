"""Buckets: the few batch sizes that a runtime prepares for, where every shape costs a graph, a profile or a compile.

A batch is filled up to the smallest bucket that holds it; one that is larger than the largest is run in parts. So no
request ever meets a shape that was not prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tailcut.common.tensors import NUMPY_OF, Array, Arrays
from tailcut.errors import ArtifactError
from tailcut.manifest import TensorSpec

FREE = 8
"""Size that warm-up gives to a free dimension that is not the batch."""

WARM_UP_RUNS = 3
"""Of each bucket: libraries choose their kernels and reserve memory in the first ones."""


MOST = 8
"""Buckets of one runtime: each holds memory of its own on the device (pytorch issue 128424)."""


class BucketPart(NamedTuple):
    """Some rows of a batch and the bucket that they run in."""

    start: int
    rows: int
    bucket: int


def powers(max_rows: int) -> list[int]:
    """Return powers of two below ``max_rows``, and ``max_rows``: the batch sizes that are warmed up and timed."""
    return [1 << power for power in range(max_rows.bit_length()) if 1 << power < max_rows] + [max_rows]


def sizes(max_rows: int, most: int = MOST) -> tuple[int, ...]:
    """Return ``powers`` of ``max_rows``, thinned out evenly to ``most`` of them."""
    if max_rows < 1 or most < 2:
        raise ValueError(f"buckets up to {max_rows} rows, at most {most}; the least are 1 and 2")
    found = powers(max_rows)
    if len(found) <= most:
        return tuple(found)
    return tuple(found[round(place * (len(found) - 1) / (most - 1))] for place in range(most))


def parts(rows: int, buckets: Sequence[int]) -> list[BucketPart]:
    """Divide a batch: full largest buckets, then the smallest one that holds the rest.

    Args:
        rows: of the batch.
        buckets: ascending.
    """
    largest = buckets[-1]
    found = [BucketPart(start, largest, largest) for start in range(0, rows - largest + 1, largest)]
    rest = rows - len(found) * largest
    if rest:
        found.append(BucketPart(rows - rest, rest, next(size for size in buckets if size >= rest)))
    return found


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
