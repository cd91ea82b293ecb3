"""How alike requests are: which share of them, and of what they ask about, a cache would have answered.

Every payload is looked up whole, and beside that every field of it: ``entities[]``, ``user.id`` (``shapes``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import chain, islice
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.cache.repeat_rate import SAMPLE
from tailcut.profiler.payloads.fields import LEARNED, find_tables, values_of

LIVES_S = (0.1, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21_600.0, 86_400.0)
"""Life spans for which hit shares are given."""

EXACT_LOOKUPS = 200_000
"""Logs that are known to be longer are watched by a sample: one key in sixteen."""

MOST_FIELDS = 32
WHOLE = "whole payload"
_OPAQUE = object()
"""In the place of what is no JSON."""


class Point(msgspec.Struct, frozen=True):
    """A hit share at one life span (seconds) or at one size (entries)."""

    at: float
    share: float


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of thing that is looked up.

    Attributes:
        name: ``whole payload``, or the path of a field.
        lookups: how many there were.
        distinct: of how many keys.
        repeats: share that repeats an earlier look-up.
        by_life: hit share per life span, up to the first that is longer than the log.
        by_size: hit share per number of entries, to that which holds all.
        exact: every key was watched; else one in sixteen, and all figures are estimates.
    """

    name: str
    lookups: int
    distinct: int
    repeats: float
    by_life: tuple[Point, ...]
    by_size: tuple[Point, ...]
    exact: bool = True

    @property
    def constant(self) -> bool:
        """One value all along: it tells no request from another."""
        return self.lookups > 1 and self.distinct == 1

    def size_for(self, share_of_best: float = 0.95) -> int:
        """Return the entries with which a cache reaches a share of its best hit share; 0 where nothing repeats."""
        wanted = self.repeats * share_of_best
        if not self.repeats:
            return 0
        return next((int(point.at) for point in self.by_size if point.share >= wanted), self.distinct)


class Diversity(msgspec.Struct, frozen=True, kw_only=True):
    """What a log of payloads says about repeats.

    Attributes:
        requests: payloads read.
        span_s: from the first to the last.
        timed: the log had times; else they were laid out at the rate that was given.
        streams: the whole payload first, then fields, those with most repeats first.
        notes: what was left out, and why.
    """

    requests: int
    span_s: float
    timed: bool
    streams: tuple[Stream, ...]
    notes: tuple[str, ...] = ()

    @property
    def whole(self) -> Stream:
        """Repeats of whole payloads."""
        return self.streams[0]


class Reuse:
    """Watches look-ups of one kind of thing; one pass, from which all hit shares follow.

    A cache of ``n`` entries that evicts the least recently used has a key exactly where fewer than ``n`` other keys
    were used since: the key's reuse distance. Source: R. L. Mattson et al. (1970), "Evaluation techniques for storage
    hierarchies", IBM Systems Journal 9(2). A life span knows no such law, since an entry's life does not begin anew
    when it is used: one moment of birth is kept per key and life span.

    For long logs only keys are watched whose hash is in a fixed part of all hashes, and what is missed among them is
    scaled up (misses and not hits: what a hot key adds by being in the sample, or not, is hits). Source: C. Waldspurger
    et al. (2015), "Efficient MRC Construction with SHARDS", FAST '15, sections 3 and 3.4.

    Args:
        lives_s: life spans to count for.
        sample: one key in so many is watched; 1 for all, exactly. Keys must be hashes where it is not 1.
    """

    def __init__(self, lives_s: Sequence[float], *, sample: int = 1) -> None:
        self.sample = sample
        self.lookups = 0
        self._distances: Counter[int] = Counter()
        self._last_use: dict[int, int] = {}
        self._uses: list[int] = []
        """The last use of each key, the latest last."""
        self._lives_s = np.asarray(lives_s, dtype=np.float64)
        self._misses: npt.NDArray[np.int64] = np.zeros(len(lives_s), dtype=np.int64)
        self._born_s: dict[int, npt.NDArray[np.float64]] = {}

    def see(self, key: int, at_s: float) -> None:
        """Count a look-up of a key of 64 bits. Times may not go back."""
        self.lookups += 1
        if key % self.sample:
            return
        born_s = self._born_s.setdefault(key, np.full(len(self._lives_s), -np.inf))
        over = at_s - born_s >= self._lives_s
        self._misses += over
        born_s[over] = at_s
        if key in self._last_use:
            place = bisect_left(self._uses, self._last_use[key])
            self._distances[len(self._uses) - 1 - place] += 1
            del self._uses[place]
        self._uses.append(self.lookups)
        self._last_use[key] = self.lookups

    @property
    def distinct(self) -> int:
        """Keys seen; an estimate where only a sample is watched."""
        return min(len(self._uses) * self.sample, self.lookups)

    def share_ever(self) -> float:
        """Share of the look-ups that repeat an earlier one."""
        return self._share(len(self._uses))

    def shares_by_life(self) -> list[float]:
        """Share of hits per life span, in a cache without a bound."""
        return [self._share(int(misses)) for misses in self._misses]

    def share_by_size(self, size: int) -> float:
        """Share of hits of an LRU cache of ``size`` entries that live for ever."""
        # Distances in the sample are shorter by the part that is watched: a cache shrunk alike has the same misses.
        shrunk = -(-size // self.sample)
        later = sum(count for distance, count in self._distances.items() if distance >= shrunk)
        return self._share(later + len(self._uses))

    def _share(self, misses: int) -> float:
        return max(1.0 - misses * self.sample / self.lookups, 0.0) if self.lookups else 0.0


def read_diversity(payloads: Iterable[tuple[float, bytes]], *, timed: bool, sample: int = 1) -> Diversity:
    """Read a log once.

    Args:
        payloads: when (seconds, never going back) and what was sent.
        timed: the times are those of the log.
        sample: 1 for an exact answer; ``repeats.SAMPLE`` for long logs.
    """
    log = iter(payloads)
    first = list(islice(log, LEARNED))
    tables = find_tables([decoded for _, body in first if (decoded := _decode(body)) is not _OPAQUE])
    whole = Reuse(LIVES_S, sample=sample)
    fields: dict[str, Reuse] = {}
    first_s = last_s = 0.0
    left_out = opaque = 0
    for number, (at_s, body) in enumerate(chain(first, log)):
        first_s, last_s = (at_s if number == 0 else first_s), at_s
        whole.see(key_of(body), at_s)
        payload = _decode(body)
        if payload is _OPAQUE:
            opaque += 1
            continue
        for name, value in values_of(payload, tables):
            stream = fields.get(name)
            if stream is None:
                if len(fields) == MOST_FIELDS:
                    left_out += 1
                    continue
                stream = fields[name] = Reuse(LIVES_S, sample=sample)
            stream.see(key_of(msgspec.json.encode(value)), at_s)
    span_s = last_s - first_s
    streams = [_stream(WHOLE, whole, span_s)]
    found = (_stream(name, seen, span_s) for name, seen in fields.items())
    streams += sorted(found, key=lambda one: (one.constant, -one.repeats, one.name))
    notes = []
    if left_out:
        notes.append(f"{left_out} values of fields beyond the first {MOST_FIELDS} were not examined")
    if opaque:
        notes.append(f"{opaque} payloads are not JSON: only whole payloads are compared for them")
    return Diversity(requests=whole.lookups, span_s=span_s, timed=timed, streams=tuple(streams), notes=tuple(notes))


def key_of(body: bytes) -> int:
    """Hash to 64 bits, the same in every process."""
    return int.from_bytes(blake2b(body, digest_size=8).digest(), "little")


def sample_for(lookups: int) -> int:
    """Choose how many keys are watched: all of a short log, one in sixteen of a long one."""
    return 1 if lookups <= EXACT_LOOKUPS else SAMPLE


def _decode(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _OPAQUE


def _stream(name: str, seen: Reuse, span_s: float) -> Stream:
    lives = []
    for life_s, share in zip(LIVES_S, seen.shares_by_life(), strict=True):
        lives.append(Point(life_s, share))
        if life_s > span_s:
            break
    sizes = []
    size = 1
    while seen.lookups:
        sizes.append(Point(float(size), seen.share_by_size(size)))
        if size >= seen.distinct:
            break
        size *= 2
    return Stream(
        name=name,
        lookups=seen.lookups,
        distinct=seen.distinct,
        repeats=seen.share_ever(),
        by_life=tuple(lives),
        by_size=tuple(sizes),
        exact=seen.sample == 1,
    )
