"""Growth of counters by the minute, for as long as the longest window of a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_MOST_KEYS = 4_000
"""Series that are kept; further ones are left out."""


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
    """Sums of counters' growth over windows that end with the running minute. For one thread.

    Minutes are counted as they begin, whatever the wall clock says: one that is set moves no count.

    Args:
        minutes: kept of a series, by its name.
        short: minutes that are kept of all other series.
    """

    def __init__(self, minutes: Mapping[str, int], short: int) -> None:
        self._now = 0
        self._minutes = minutes
        self._short = short
        self._rings: dict[Key, npt.NDArray[np.float64]] = {}
        self._named: dict[tuple[str, str], list[Key]] = {}

    def begin_minute(self) -> None:
        """Begin a minute; what is older than a series keeps is forgotten."""
        self._now += 1
        for ring in self._rings.values():
            ring[self._now % len(ring)] = 0

    def add(self, key: Key, growth: float, ago: int = 0) -> None:
        """Count growth in the running minute, or so many minutes before it; left out where that is not kept."""
        ring = self._rings.get(key)
        if ring is None:
            if len(self._rings) >= _MOST_KEYS:
                return
            ring = self._rings[key] = np.zeros(self._minutes.get(key.name, self._short))
            self._named.setdefault((key.name, key.model), []).append(key)
        if ago < len(ring):
            ring[(self._now - ago) % len(ring)] += growth

    def keys(self, name: str, model: str) -> Sequence[Key]:
        """Return the series of a name and a model."""
        return self._named.get((name, model), ())

    def sum(self, key: Key, minutes: int, ago: int = 0) -> float:
        """Return the growth in a window of so many minutes that ends ``ago`` minutes before the running one's end."""
        ring = self._rings.get(key)
        if ring is None:
            return 0.0
        return float(ring[(self._now - np.arange(ago, min(ago + minutes, len(ring)))) % len(ring)].sum())
