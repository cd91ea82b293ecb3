"""Growth of counters by the minute, for as long as the longest window of a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MOST_KEYS = 4_000
"""Series that are kept; further ones are left out and counted."""


class Key(NamedTuple):
    """A counter of one model; ``model`` is empty for the process. Labels are sorted, without the model."""

    model: str
    name: str
    labels: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, model: str, name: str, labels: Mapping[str, str]) -> Key:
        """Return the key of a series."""
        return cls(model, name, tuple(sorted(labels.items())))

    def label(self, name: str) -> str:
        """Return a label's value; empty where there is none of that name."""
        return dict(self.labels).get(name, "")


class MinuteCounts:
    """Sums of counters' growth over windows that end with the newest minute. For one thread.

    Args:
        minutes: that are kept of a series by its name; others keep ``short``.
        short: minutes that are kept of all other series.

    Attributes:
        newest: number of the newest minute since 1970; -1 before the first.
        left_out: values of which there was no room for their series.
    """

    def __init__(self, minutes: Mapping[str, int], short: int) -> None:
        self.newest = -1
        self.left_out = 0
        self._minutes = minutes
        self._short = short
        self._rings: dict[Key, npt.NDArray[np.float64]] = {}
        self._named: dict[tuple[str, str], list[Key]] = {}

    def advance(self, minute: int) -> None:
        """Begin a minute: what is older than a series keeps is forgotten. One that has been is not begun again."""
        if minute <= self.newest:
            return
        for ring in self._rings.values():
            passed = min(minute - self.newest, len(ring))
            ring[np.arange(minute - passed + 1, minute + 1) % len(ring)] = 0
        self.newest = minute

    def add(self, minute: int, key: Key, growth: float) -> None:
        """Count growth in a minute that is not newer than the newest; an older one than is kept is left out."""
        ring = self._rings.get(key)
        if ring is None:
            if len(self._rings) >= MOST_KEYS:
                self.left_out += 1
                return
            ring = self._rings[key] = np.zeros(self._minutes.get(key.name, self._short))
            self._named.setdefault((key.name, key.model), []).append(key)
        if 0 <= self.newest - minute < len(ring):
            ring[minute % len(ring)] += growth

    def keys(self, name: str, model: str) -> Sequence[Key]:
        """Return the series of a name and a model."""
        return self._named.get((name, model), ())

    def sum(self, key: Key, minutes: int, ago: int = 0) -> float:
        """Return the growth in a window of so many minutes that ends ``ago`` minutes before the newest one's end."""
        ring = self._rings.get(key)
        if ring is None:
            return 0.0
        until = self.newest + 1 - ago
        first = max(until - minutes, self.newest + 1 - len(ring))
        return float(ring[np.arange(first, until) % len(ring)].sum()) if first < until else 0.0

    def total(self, name: str, model: str, minutes: int, ago: int = 0, **labels: str) -> float:
        """Return the growth over all series of a name, a model and these labels."""
        wanted = labels.items()
        return sum(self.sum(key, minutes, ago) for key in self.keys(name, model) if wanted <= dict(key.labels).items())
