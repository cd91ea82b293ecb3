"""How alike requests are: which share of them, and of what they ask about, a cache would have answered.

Every payload is looked up whole, and beside that every field of it: ``entities[]``, ``user.id`` (``shapes``).
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from itertools import chain, islice
from typing import Any

import msgspec

from tailcut.cache.repeat_rate import SAMPLE
from tailcut.profiler.payloads.fields import LEARNED, find_tables, values_of
from tailcut.profiler.payloads.reuse_distance import Reuse

LIVES_S = (0.1, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21_600.0, 86_400.0)
"""Life spans that hit shares are told for."""

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
        """Entries with which a cache has so much of what it could have at most; 0 where nothing repeats."""
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
    streams += sorted((_stream(name, seen, span_s) for name, seen in fields.items()), key=_most_telling)
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


def _most_telling(stream: Stream) -> tuple[bool, float, str]:
    return stream.constant, -stream.repeats, stream.name
