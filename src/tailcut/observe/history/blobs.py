"""Fine histograms as bytes: pairs of a place and its count, of the places that are not empty.

Bytes of several histograms in a row are those of their sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

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


def add_up(blobs: Sequence[bytes], groups: npt.NDArray[np.int64], count: int) -> Counts:
    """Return the sums of histograms by group, (count, ``PLACES``).

    Args:
        blobs: made by ``to_bytes``.
        groups: of each blob, from 0 to ``count`` - 1.

    Raises:
        ValueError: bytes that ``to_bytes`` does not make.
    """
    lengths = np.array([len(blob) for blob in blobs], np.int64)
    if (lengths % _PAIR.itemsize).any():
        raise ValueError("a histogram's bytes are cut off")
    pairs = np.frombuffer(b"".join(blobs), _PAIR)
    if pairs["place"].max(initial=0) >= PLACES:
        raise ValueError(f"a histogram has place {pairs['place'].max()}; there are {PLACES}")
    sums = np.zeros((count, PLACES), np.int64)
    np.add.at(sums, (np.repeat(groups, lengths // _PAIR.itemsize), pairs["place"]), pairs["count"])
    return sums
