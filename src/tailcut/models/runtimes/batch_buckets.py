"""Buckets: the few batch sizes that a runtime prepares for, where every shape costs a graph, a profile or a compile.

A batch is filled up to the smallest bucket that holds it; one that is larger than the largest is run in parts. So no
request ever meets a shape that was not prepared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
