"""Search for the one change of the deployment's features that gives the pilot's answers, or the pilot's inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tailcut.parity.analysis.changes import Change, usual_changes
from tailcut.parity.analysis.tolerance import is_missing

Row = Mapping[str, Any]
Judge = Callable[[Sequence[Row], Sequence[int]], Sequence[bool] | None]
"""Feature rows and their places -> of each, whether it gives what the pilot gave there; None where it fails."""

_SCREENED = 8
_SCREEN_SHARE = 0.75
_LEAST_SHARE = 0.9
_MOST_SWAPS = 600


class Cause(NamedTuple):
    """A change of one feature that explains differences.

    Attributes:
        feature: its name; of two that are swapped "a and b".
        change: the pilot's value, where the deployment's is x.
        explained, of: rows that differ and then give the pilot's answer, and all that differ.
    """

    feature: str
    change: str
    explained: int
    of: int

    def __str__(self) -> str:
        return f"{self.feature}: {self.change}"


class Trial(NamedTuple):
    """A change to try.

    Attributes:
        feature, change: as of ``Cause``.
        apply: of one row.
    """

    feature: str
    change: str
    apply: Callable[[Row], Row]


def trials(rows: Sequence[Row], features: Sequence[str]) -> Iterator[Trial]:
    """List what to try: changes of each feature, then swaps of two.

    Args:
        rows: the deployment's feature rows.
        features: names of those that may be at fault.
    """
    for name in features:
        for change in usual_changes([row.get(name) for row in rows]):
            yield changed(name, change)
    kinds = {name: _kind([row.get(name) for row in rows]) for name in features}
    pairs = [
        (first, second)
        for place, first in enumerate(features)
        for second in features[place + 1 :]
        if kinds[first] and kinds[first] == kinds[second]
    ]
    for first, second in pairs[:_MOST_SWAPS]:
        yield Trial(f"{first} and {second}", "swapped", _swapping(first, second))


def changed(name: str, change: Change) -> Trial:
    """Make a trial of a change of one feature."""
    return Trial(name, change.text, lambda row: {**row, name: change.apply(row.get(name))})


def search(rows: Sequence[Row], differs: Sequence[bool], tried: Iterator[Trial], judge: Judge) -> list[Cause]:
    """Find the changes that explain most of what differs and spoil nothing that is equal.

    A change is tried on a few of the rows first, and on all where it explains those. Several are returned only where
    they explain the same, so that the data at hand cannot tell them apart.

    Args:
        rows: feature rows, both of requests that differ and, where there are any, of some that do not.
        differs: of each row, whether its answer differs.
        tried: what to try.
        judge: tells whether rows give the pilot's answer.

    Returns:
        the best; empty where nothing explains at least 90 % of the rows.
    """
    unequal = [place for place, differ in enumerate(differs) if differ]
    total = len(unequal)
    few, every = _spread(unequal, _SCREENED), range(len(rows))
    found: list[tuple[float, Cause]] = []
    for trial in tried:
        if not few or _right_share(trial, rows, few, judge) < _SCREEN_SHARE:
            continue
        right = judge([trial.apply(row) for row in rows], every)
        if right is None or sum(right) < _LEAST_SHARE * len(rows):
            continue
        explained = sum(fits for fits, differ in zip(right, differs, strict=True) if differ)
        if explained >= _LEAST_SHARE * total:
            found.append((sum(right), Cause(trial.feature, trial.change, explained, total)))
    best = max((share for share, _ in found), default=0)
    return _without_repeats([cause for share, cause in found if share == best])


def _right_share(trial: Trial, rows: Sequence[Row], places: Sequence[int], judge: Judge) -> float:
    before = [rows[place] for place in places]
    after = [trial.apply(row) for row in before]
    if all(dict(one) == dict(other) for one, other in zip(after, before, strict=True)):
        return 0.0  # it changes nothing here
    right = judge(after, places)
    return sum(right) / len(places) if right is not None else 0.0


def _spread(places: Sequence[int], most: int) -> list[int]:
    """Take places evenly: neighbours may be the same request."""
    step = max(1, len(places) // most)
    return list(places[::step])[:most]


def _without_repeats(causes: Sequence[Cause]) -> list[Cause]:
    """Keep one change per feature, the first: they are listed with the likeliest in front."""
    seen: dict[str, Cause] = {}
    for cause in causes:
        seen.setdefault(cause.feature, cause)
    return list(seen.values())


def _swapping(first: str, second: str) -> Callable[[Row], Row]:
    return lambda row: {**row, first: row.get(second), second: row.get(first)}


def _kind(values: Sequence[Any]) -> str:
    known = [value for value in values if not is_missing(value)]
    if known and all(isinstance(value, str) for value in known):
        return "text"
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in known)
    return "number" if known and numbers else ""
