"""How far apart the uses of one key lie: in time, and in other keys. One pass, from which all hit shares follow.

A cache of ``n`` entries that evicts the least recently used has a key exactly where fewer than ``n`` other keys were
used since: the key's reuse distance. Source: R. L. Mattson et al. (1970), "Evaluation techniques for storage
hierarchies", IBM Systems Journal 9(2), counted with a tree as in B. T. Bennett and V. J. Kruskal (1975), "LRU stack
processing", IBM Journal of Research and Development 19(4); here a Fenwick tree that is renumbered when it is full, so
that memory goes with the keys and not with the look-ups. A life span knows no such law, since an entry's life does not
begin anew when it is used: one moment of birth is kept per key and life span.

For long logs only keys are watched whose hash is in a fixed part of all hashes, and what is missed among them is scaled
up (misses and not hits: what a hot key adds by being in the sample, or not, is hits). Source: C. Waldspurger et al.
(2015), "Efficient MRC Construction with SHARDS", FAST '15, sections 3 and 3.4.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_FIRST_PLACES = 1024


class Distances:
    """Counts reuse distances; memory in proportion to the keys."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        """Distance -> how many look-ups had it."""
        self.distinct = 0
        """Keys seen, each of which was missed once whatever the cache."""
        self._place_of: dict[int, int] = {}
        self._places = _FIRST_PLACES
        self._tree = [0] * (_FIRST_PLACES + 1)
        self._next = 1

    def see(self, key: int) -> int:
        """Count a look-up; return how many other keys were used since the last one, -1 for the first.

        Args:
            key: a number, or a hash of what was looked up.
        """
        if self._next > self._places:
            self._renumber()
        place = self._place_of.get(key)
        distance = -1
        if place is not None:
            distance = len(self._place_of) - self._up_to(place)
            self.counts[distance] += 1
            self._add(place, -1)
        else:
            self.distinct += 1
        self._add(self._next, 1)
        self._place_of[key] = self._next
        self._next += 1
        return distance

    def hits(self, size: int) -> int:
        """Look-ups that a cache of ``size`` entries would have answered, the least recently used evicted."""
        return sum(count for distance, count in self.counts.items() if distance < size)

    def _add(self, place: int, change: int) -> None:
        tree, last = self._tree, self._places
        while place <= last:
            tree[place] += change
            place += place & -place

    def _up_to(self, place: int) -> int:
        tree, total = self._tree, 0
        while place:
            total += tree[place]
            place &= place - 1
        return total

    def _renumber(self) -> None:
        """Give the keys, in the order of their last use, the first places; leave as much room again."""
        keys = sorted(self._place_of, key=self._place_of.__getitem__)
        self._place_of = {key: number for number, key in enumerate(keys, 1)}
        self._places = max(_FIRST_PLACES, 2 * len(keys))
        # A Fenwick node holds the sum of the places (node - lowest bit, node]; those up to len(keys) are taken.
        taken = len(keys)
        self._tree = [0] + [min(node, taken) - min(node & (node - 1), taken) for node in range(1, self._places + 1)]
        self._next = taken + 1


class Lives:
    """Counts what entries that live so long, from when they were made, would have missed."""

    def __init__(self, lives_s: Sequence[float]) -> None:
        self.lives_s = np.asarray(lives_s, dtype=np.float64)
        self.misses: npt.NDArray[np.int64] = np.zeros(len(lives_s), dtype=np.int64)
        """Per life span, shape [lives]."""
        self._born_s: dict[int, npt.NDArray[np.float64]] = {}

    def see(self, key: int, at_s: float) -> None:
        """Count a look-up. Times may not go back."""
        born_s = self._born_s.get(key)
        if born_s is None:
            self._born_s[key] = np.full(len(self.lives_s), at_s)
            self.misses += 1
            return
        over = at_s - born_s >= self.lives_s
        if over.any():
            self.misses += over
            born_s[over] = at_s


class Reuse:
    """Watches look-ups of one kind of thing.

    Args:
        lives_s: life spans to count for.
        sample: one key in so many is watched; 1 for all, exactly. Keys must be hashes where it is not 1.
    """

    def __init__(self, lives_s: Sequence[float], *, sample: int = 1) -> None:
        self.sample = sample
        self.lookups = 0
        self._distances = Distances()
        self._lives = Lives(lives_s)

    def see(self, key: int, at_s: float) -> None:
        """Count a look-up of a key of 64 bits. Times may not go back."""
        self.lookups += 1
        if self.sample == 1 or key % self.sample == 0:
            self._distances.see(key)
            self._lives.see(key, at_s)

    @property
    def distinct(self) -> int:
        """Keys seen; an estimate where only a sample is watched."""
        return min(self._distances.distinct * self.sample, self.lookups)

    def share_ever(self) -> float:
        """Share of the look-ups that repeat an earlier one."""
        return self._share(self._distances.distinct)

    def shares_by_life(self) -> list[float]:
        """Share of hits per life span, in a cache without a bound."""
        return [self._share(int(misses)) for misses in self._lives.misses]

    def share_by_size(self, size: int) -> float:
        """Share of hits of an LRU cache of ``size`` entries that live for ever."""
        # Distances in the sample are shorter by the part that is watched: a cache shrunk alike has the same misses.
        watched = sum(self._distances.counts.values()) + self._distances.distinct
        return self._share(watched - self._distances.hits(-(-size // self.sample)))

    def _share(self, misses: int) -> float:
        return max(1.0 - misses * self.sample / self.lookups, 0.0) if self.lookups else 0.0


def cache_hits(
    keys: Sequence[int], at_s: Sequence[float] | npt.NDArray[np.float64], *, life_s: float, size: int
) -> npt.NDArray[np.bool_]:
    """Play a cache bounded in both ways: entries live ``life_s``, the least recently used of ``size`` is evicted.

    Args:
        keys: looked up one after the other, shape [n].
        at_s: when, ascending, shape [n].

    Returns:
        Whether each look-up was answered from the cache, shape [n].
    """
    born_s: OrderedDict[int, float] = OrderedDict()
    hits = np.zeros(len(keys), dtype=bool)
    for number, (key, now_s) in enumerate(zip(keys, at_s, strict=True)):
        born = born_s.get(key)
        if born is not None and now_s - born < life_s:
            hits[number] = True
        else:
            born_s[key] = float(now_s)
        born_s.move_to_end(key)
        if len(born_s) > size:
            born_s.popitem(last=False)
    return hits
