"""Fine histograms as bytes: pairs of a place and its count, of the places that are not empty.

Bytes of several histograms in a row are those of their sum.
"""

from __future__ import annotations

import numpy as np

from tailcut.observe.fine_histogram import PLACES, Counts

_PAIR = np.dtype([("place", "<u2"), ("count", "<u4")])


def to_bytes(counts: Counts) -> bytes:
    """Return a histogram's bytes; empty where nothing was counted.

    Args:
        counts: (``PLACES``,), of a minute: from 0 to 2**32 - 1.
    """
    places = np.flatnonzero(counts)
    pairs = np.empty(len(places), _PAIR)
    pairs["place"], pairs["count"] = places, counts[places]
    return pairs.tobytes()


def from_bytes(data: bytes | bytearray) -> Counts:
    """Return the histogram, or the sum of the histograms, of some bytes, (``PLACES``,).

    Raises:
        ValueError: bytes that ``to_bytes`` does not make.
    """
    if len(data) % _PAIR.itemsize:
        raise ValueError("a histogram's bytes are cut off")
    pairs = np.frombuffer(data, _PAIR)
    if pairs["place"].max(initial=0) >= PLACES:
        raise ValueError(f"a histogram has place {pairs['place'].max()}; there are {PLACES}")
    return np.bincount(pairs["place"], pairs["count"], PLACES).astype(np.int64)
