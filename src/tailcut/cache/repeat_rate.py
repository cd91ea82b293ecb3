"""How many look-ups repeat an earlier one: the running share with its interval, and a sketch to see repeats with.

The sketch watches a fixed part of all keys, chosen by their hash, so that every repeat of a watched key is seen and the
share among them is the share among all. Source: spatially hashed sampling, C. Waldspurger et al. (2015), "Efficient MRC
Construction with SHARDS", FAST '15, section 3.
"""

from __future__ import annotations

from collections import OrderedDict
from math import sqrt

SAMPLE = 16
"""One key in so many is watched."""

_MOST_KEYS = 4096
_HALF_LIFE = 2000.0
"""Look-ups after which what was seen counts half."""
_Z = 2.0
"""Width of the interval in standard errors: about 95 %."""


class RepeatShare:
    """Running share of look-ups that repeat an earlier one."""

    def __init__(self) -> None:
        self.lookups = 0.0
        """Seen so far, older ones counting less."""
        self._repeats = 0.0

    def add(self, lookups: int, repeats: int) -> None:
        """Count look-ups, ``repeats`` of them repeating an earlier one."""
        keep = 0.5 ** (lookups / _HALF_LIFE)
        self.lookups = keep * self.lookups + lookups
        self._repeats = keep * self._repeats + repeats

    @property
    def value(self) -> float:
        """From 0 to 1; 0 before the first look-up."""
        return self._repeats / self.lookups if self.lookups else 0.0

    def interval(self) -> tuple[float, float]:
        """Between which shares the true one is, by Wilson's score interval (E. B. Wilson, 1927, JASA 22:209-212)."""
        n, p = self.lookups, min(self.value, 1.0)
        if not n:
            return 0.0, 1.0
        middle = p + _Z * _Z / (2 * n)
        half = _Z * sqrt(p * (1 - p) / n + _Z * _Z / (4 * n * n))
        scale = 1 + _Z * _Z / n
        return max((middle - half) / scale, 0.0), min((middle + half) / scale, 1.0)


class KeySketch:
    """When each watched key was last seen; the oldest are forgotten, so that it stays small."""

    def __init__(self, most: int = _MOST_KEYS) -> None:
        self._most = most
        self._seen_s: OrderedDict[int, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen_s)

    def see(self, key: int, now_s: float, life_s: float) -> bool:
        """Whether a cache whose entries live ``life_s`` would have had the key; it is remembered from now on.

        Args:
            key: a hash of 64 bits.
        """
        seen_s = self._seen_s.get(key)
        if seen_s is not None and now_s - seen_s < life_s:
            return True  # an entry's life does not begin anew when it is used
        self._seen_s[key] = now_s
        self._seen_s.move_to_end(key)
        if len(self._seen_s) > self._most:
            self._seen_s.popitem(last=False)
        return False
