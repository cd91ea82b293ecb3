"""Fine histograms as bytes: the places that are not empty, each as its distance to the one before, and its count.

All numbers are unsigned LEB128 (7 bits a byte, the lowest first; DWARF 5, 7.6): a histogram of a minute has some thirty
places, and takes two or three bytes for each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tailcut.observe.fine_histogram import PLACES, Counts

Indices = npt.NDArray[np.int64]


def to_bytes(counts: Counts) -> bytes:
    """Return a histogram's bytes; empty where nothing was counted.

    Args:
        counts: (``PLACES``,), none negative.
    """
    places = np.flatnonzero(counts)
    numbers = np.stack([np.diff(places, prepend=0), counts[places]], axis=1).ravel()
    written = bytearray()
    for number in numbers.tolist():
        rest = number
        while rest > 0x7F:
            written.append(rest & 0x7F | 0x80)
            rest >>= 7
        written.append(rest)
    return bytes(written)


def add_up(blobs: Sequence[bytes], groups: Indices, count: int) -> Counts:
    """Return the sums of histograms by group, (count, ``PLACES``).

    Args:
        blobs: made by ``to_bytes``.
        groups: of each blob, from 0 to ``count`` - 1.

    Raises:
        ValueError: bytes that ``to_bytes`` does not make.
    """
    lengths = np.array([len(blob) for blob in blobs], np.int64)
    octets = np.frombuffer(b"".join(blobs), np.uint8)
    sums = np.zeros((count, PLACES), np.int64)
    if not octets.size:
        return sums
    numbers, ends = _numbers(octets)
    # Of every blob: how many numbers there are before its first one.
    before = np.searchsorted(ends, np.cumsum(lengths) - lengths)
    pairs = np.diff(before, append=len(numbers)) // 2
    if len(numbers) != 2 * pairs.sum():
        raise ValueError("a histogram's bytes are cut off")
    gaps, found = numbers[0::2], numbers[1::2]
    running = np.cumsum(gaps)
    firsts = np.cumsum(pairs) - pairs
    bases = (running - gaps)[np.minimum(firsts, len(gaps) - 1)]
    places = running - np.repeat(bases, pairs)
    if places.max() >= PLACES:
        raise ValueError(f"a histogram has place {places.max()}; there are {PLACES}")
    np.add.at(sums, (np.repeat(groups, pairs), places), found)
    return sums


def _numbers(octets: npt.NDArray[np.uint8]) -> tuple[Indices, Indices]:
    """Return the numbers and, for each, the index of its last byte."""
    ends = np.flatnonzero(octets < 0x80)
    if not ends.size or ends[-1] != octets.size - 1:
        raise ValueError("a histogram's bytes end within a number")
    starts = np.concatenate([[0], ends[:-1] + 1])
    shifts = 7 * (np.arange(octets.size) - np.repeat(starts, ends - starts + 1))
    if shifts.max() > 56:
        raise ValueError("a histogram has a number of more than 63 bits")
    parts = (octets & 0x7F).astype(np.int64) << shifts
    return np.add.reduceat(parts, starts), ends
