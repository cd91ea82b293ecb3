"""Which of their fetches a feature cache would have answered, by what these ask for: a statement with its parameters.

Not every request is traced, and a cache sees all of them. So for each statement the field of the payloads is looked for
that it goes by: of those whose values always come with the same parameters, the one with the fewest values. By it
requests that were not traced are known to ask for the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.profiler.attribution.calls import is_fetch, shown_label
from tailcut.profiler.attribution.span_table import Name, is_good
from tailcut.profiler.payloads.cache_hits import answered_shares
from tailcut.profiler.payloads.diversity import WHOLE, Diversity, key_of
from tailcut.profiler.payloads.fields import LEARNED, find_tables, values_of
from tailcut.profiler.records import FETCHING, Recording, Request, Span, Stage

_EXCEPTIONS = 0.01
"""Of the requests that ask, the share that may ask for something else than their field's value says: data changes
meanwhile. Judged are values that several requests have: of one that none shares, whatever is asked follows."""
_PAIRED = 8
"""So many fields, those with the fewest values, are looked at two by two where none says it alone."""
_LEAST = 20
"""Requests that ask a statement, from which on something is said of it."""

Statement = tuple[Stage, str]
"""A query, command or address without its values."""


@dataclass(frozen=True)
class KeyRepeats:
    """What a cache would have answered of the traced requests' fetches.

    Attributes:
        shares: of each statement whose parameters are known, by request's number.
        requests: of all statements together, by request's number; those whose parameters are not known repeat nothing.
        by: the fields that statements go by.
        covered: share of the time of all fetches that those of known parameters take.
    """

    shares: Mapping[Statement, Mapping[int, float]] = field(default_factory=dict)
    requests: Mapping[int, float] = field(default_factory=dict)
    by: tuple[str, ...] = ()
    covered: float = 0.0

    def share(self, stage: Stage, label: str, number: int) -> float:
        """Of one request's fetches of a statement; none where it is not known what that asks for."""
        return self.shares.get((stage, shown_label(stage, label)), {}).get(number, 0.0)


def read_asked(
    recording: Recording,
    bodies: Sequence[bytes],
    diversity: Diversity,
    at_s: npt.NDArray[np.float64],
    *,
    life_s: float,
    size: int,
) -> KeyRepeats:
    """Play what the requests of a log ask for through a cache.

    Args:
        bodies: payloads in the order of the requests' numbers, which begin again where these end; at least one.
        diversity: of these payloads.
        at_s: when they came, ascending, shape [n].
        life_s, size: of the cache's entries, and how many it holds.
    """
    fetched = {one.number: list(_fetches(one)) for one in recording.requests if is_good(one)}
    asked = _asked(fetched)
    if not asked:
        return KeyRepeats()
    numbers = list(fetched)
    traced = [number % len(bodies) for number in numbers]
    fields = _Fields(bodies, diversity)
    columns = fields.at(traced)
    shares: dict[Statement, dict[int, float]] = {}
    hits = dict.fromkeys(numbers, 0.0)
    by: list[str] = []
    for statement, keys in asked.items():
        of_request = [keys.get(number, ()) for number in numbers]
        names = _goes_by(columns, of_request)
        by += [" with ".join(names)] if names else []
        values = fields.everywhere(names) if names is not None else None
        found = _played(values, traced, of_request, at_s, life_s=life_s, size=size)
        shares[statement] = {number: found[place] for number, place in zip(numbers, traced, strict=True)}
        for number, its in zip(numbers, of_request, strict=True):
            hits[number] += shares[statement][number] * len(its)
    requests = {number: hits[number] / len(its) for number, its in fetched.items() if its}
    return KeyRepeats(shares, requests, tuple(dict.fromkeys(by)), _covered(fetched, asked))


_Fetched = Mapping[int, Sequence[tuple[Statement, Span]]]
"""By request's number."""


def _fetches(one: Request) -> Iterable[tuple[Statement, Span]]:
    """What a request fetches; rows that are read of a query later are no fetch of their own."""
    for span in one.spans:
        if span.stage in FETCHING and not span.more:
            label = shown_label(span.stage, span.label)
            if is_fetch(Name(span.stage, label, "")):
                yield (span.stage, label), span


def _covered(fetched: _Fetched, known: Mapping[Statement, object]) -> float:
    """Which share of the time of all fetches is of statements that are known."""
    took_ns = {True: 0, False: 0}
    for its in fetched.values():
        for statement, span in its:
            took_ns[statement in known] += span.end_ns - span.start_ns
    return took_ns[True] / max(sum(took_ns.values()), 1)


def _asked(fetched: _Fetched) -> dict[Statement, dict[int, tuple[int, ...]]]:
    """What each request asks of each statement, in order of size; only of those of which everything is known."""
    found: dict[Statement, dict[int, list[int]]] = {}
    unknown = set[Statement]()
    for number, its in fetched.items():
        for statement, span in its:
            if span.asked:
                found.setdefault(statement, {}).setdefault(number, []).append(span.asked)
            else:
                unknown.add(statement)
    return {
        statement: {number: tuple(sorted(keys)) for number, keys in asked.items()}
        for statement, asked in found.items()
        if statement not in unknown and len(asked) >= _LEAST
    }


_Names = tuple[str, ...]
"""What a statement may go by: nothing, a field, two of them, or all of the payload."""


class _Fields:
    """What payloads hold, as numbers; of all of them only what is asked for, as there may be many.

    Args:
        bodies: payloads; those that are no JSON have no field.
        diversity: of these payloads.
    """

    def __init__(self, bodies: Sequence[bytes], diversity: Diversity) -> None:
        self._bodies = bodies
        self._fields = [stream.name for stream in diversity.streams[1:] if not stream.constant]
        first = [_decoded(body) for body in bodies[:LEARNED]]
        self._tables = find_tables([one for one in first if one is not None])
        self._known: dict[_Names, list[int]] = {}

    def at(self, places: Sequence[int]) -> list[tuple[_Names, list[int]]]:
        """Everything that statements may go by, of some payloads; what has the fewest values comes first."""
        found = [self._values(self._bodies[place]) for place in places]

        def column(*names: str) -> tuple[_Names, list[int]]:
            return names, [_together(values, names) for values in found]

        singles = sorted((column(name) for name in self._fields), key=_distinct)
        pairs = combinations([names[0] for names, _ in singles[:_PAIRED]], 2)
        return sorted([column(), *singles, *(column(*pair) for pair in pairs), column(WHOLE)], key=_distinct)

    def everywhere(self, names: _Names) -> list[int]:
        """Some of it, of all payloads."""
        if names not in self._known:
            self._known[names] = [_together(self._values(body), names) for body in self._bodies]
        return self._known[names]

    def _values(self, body: bytes) -> dict[str, int]:
        payload, found = _decoded(body), dict[str, list[object]]()
        for name, value in values_of(payload, self._tables) if payload is not None else ():
            found.setdefault(name, []).append(value)
        known = {name: key_of(msgspec.json.encode(found[name])) for name in self._fields if name in found}
        return {**known, WHOLE: key_of(body)}


def _together(values: Mapping[str, int], names: _Names) -> int:
    return hash(tuple(values.get(name, 0) for name in names))


def _distinct(column: tuple[_Names, list[int]]) -> int:
    return len(set(column[1]))


def _decoded(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _goes_by(columns: Sequence[tuple[_Names, list[int]]], asked: Sequence[tuple[int, ...]]) -> _Names | None:
    """Find the first whose values always come with the same keys; None where none is seen to."""
    for names, values in columns:
        shared = [keys for keys in _by_value(values, asked).values() if keys.total() > 1]
        asking = sum(keys.total() - keys[()] for keys in shared)
        others = sum(keys.total() - keys.most_common(1)[0][1] for keys in shared)
        if asking >= _LEAST and others <= _EXCEPTIONS * asking:
            return names
    return None


def _by_value(values: Iterable[int], asked: Iterable[tuple[int, ...]]) -> dict[int, Counter[tuple[int, ...]]]:
    found: dict[int, Counter[tuple[int, ...]]] = {}
    for value, keys in zip(values, asked, strict=True):
        found.setdefault(value, Counter())[keys] += 1
    return found


def _played(
    values: Sequence[int] | None,
    traced: Sequence[int],
    asked: Sequence[tuple[int, ...]],
    at_s: npt.NDArray[np.float64],
    *,
    life_s: float,
    size: int,
) -> npt.NDArray[np.float64]:
    """Share of what each payload's request asks that a cache has, shape [payloads]; 0 where it asks nothing."""
    if values is None:
        values = range(len(at_s))  # each request asks for something else as far as anybody knows
    of_value = _by_value([values[place] for place in traced], asked)
    known = {value: keys.most_common(1)[0][0] for value, keys in of_value.items()}
    usual = round(float(np.median([len(keys) for keys in asked if keys])))
    keys = [known[one] if one in known else tuple(hash((one, place)) for place in range(usual)) for one in values]
    asking = [place for place, its in enumerate(keys) if its]
    shares = np.zeros(len(keys))
    shares[asking] = answered_shares([keys[place] for place in asking], at_s[asking], life_s=life_s, size=size)
    return shares
